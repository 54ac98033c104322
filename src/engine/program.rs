//! A plan bound to a buffer's length: steps over byte ranges, and the bytes they wait for.
//!
//! Every step is a stream of bytes: its ranges, one after another. A [`Dependency`] says that
//! byte `at + i` of a step's stream waits for byte `from + i` of an earlier step's. They come from
//! the chunks the steps have in common: what a step reads must have been written, and what it
//! overwrites must have been read, in plan order. Steps and messages that turn out empty are
//! dropped; both ends drop the same ones.

use crate::plan::layout::Layout;
use crate::plan::{ChunkRange, Plan, Source, Step};
use crate::transport::Addressee;

/// Where bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// In the caller's buffer.
    Buffer,
    /// In the operation's scratch.
    Scratch,
}

/// A run of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// In which memory.
    pub space: Space,
    /// From which byte on.
    pub offset: usize,
    /// How many bytes.
    pub bytes: usize,
}

/// Bytes `at..at + bytes` of a step's stream wait for bytes `from..from + bytes` of `step`'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// First byte of the waiting stream.
    pub at: usize,
    /// How many.
    pub bytes: usize,
    /// The step waited for.
    pub step: usize,
    /// First byte of its stream.
    pub from: usize,
}

/// One peer's message into a fold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// The peer's receive lane.
    pub lane: usize,
    /// The peer.
    pub peer: usize,
    /// The message's number on that link.
    pub number: u32,
}

/// What a step does with its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sends them; one flow an addressee, from `first_flow` on.
    Send {
        /// The first of the step's flows.
        first_flow: usize,
        /// Who gets the message.
        to: Vec<Addressee>,
    },
    /// Waits until the addressees of a send that lends its bytes are through with them.
    Release {
        /// The first of the send's flows.
        first_flow: usize,
        /// Who reads them.
        to: Vec<Addressee>,
    },
    /// Stores a message.
    Store(Operand),
    /// Folds messages, with the bytes already there as operand number `own`.
    Fold {
        /// The messages, in order.
        operands: Vec<Operand>,
        /// Where the own bytes stand among the operands.
        own: Option<usize>,
        /// Whether the result is complete.
        completes: bool,
    },
    /// Copies from another place of this rank.
    Copy(Piece),
    /// Folds in what another place of this rank holds.
    Reduce {
        /// The other place.
        from: Piece,
        /// Whether the result is complete.
        completes: bool,
    },
}

/// One step over bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramStep {
    /// What is done.
    pub action: Action,
    /// The bytes, in stream order.
    pub pieces: Vec<Piece>,
    /// Their number.
    pub bytes: usize,
    /// The plan's round.
    pub round: usize,
    /// What the bytes wait for, by increasing `at`.
    pub dependencies: Vec<Dependency>,
    /// Whether a send lends its bytes, where the transport can, see [`Program::lending`].
    pub is_lent: bool,
}

/// The messages of one link and direction, in order: (step, flow).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The peer.
    pub peer: usize,
    /// Step and, for sends, flow of each message.
    pub messages: Vec<(usize, usize)>,
}

/// A bound plan. It depends on the plan, the count and the element size, on nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// The steps, in plan order.
    pub steps: Vec<ProgramStep>,
    /// One lane for each rank sent to.
    pub sends: Vec<Lane>,
    /// One lane for each rank received from.
    pub receives: Vec<Lane>,
    /// The local steps.
    pub locals: Vec<usize>,
    /// The releases of what is lent.
    pub releases: Vec<usize>,
    /// How many flows there are.
    pub flows: usize,
    /// Bytes of scratch.
    pub scratch_bytes: usize,
    /// The steps in an order in which they can be run one after the other, see [`in_order`].
    pub order: Vec<usize>,
    /// Bytes of the longest message, if every message and every step is one run of bytes.
    pub longest_bytes: Option<usize>,
}

impl Program {
    /// Binds `plan` to a buffer of `count` elements of `element_bytes` each.
    ///
    /// ```
    /// use ringtree::engine::program::{Action, Program};
    /// use ringtree::plan::{Algorithm, Collective, Request, plan};
    ///
    /// let request = Request {
    ///     collective: Collective::AllReduce,
    ///     algorithm: Algorithm::RecursiveDoubling,
    ///     world_size: 2,
    ///     rank: 0,
    ///     root: 0,
    ///     pieces: 1,
    ///     ranks_per_host: 1,
    /// };
    /// let program = Program::bind(&plan(&request)?, 100, 4);
    /// let [send, fold] = program.steps.as_slice() else { panic!("one exchange") };
    /// assert!(matches!(send.action, Action::Send { .. }));
    /// // The fold overwrites a byte once that byte has been sent.
    /// assert_eq!((fold.bytes, fold.dependencies[0].step), (400, 0));
    /// # Ok::<(), String>(())
    /// ```
    #[must_use]
    pub fn bind(plan: &Plan, count: usize, element_bytes: usize) -> Self {
        let layout = Layout::new(
            plan.request.collective,
            plan.request.world_size,
            plan.chunks,
            count,
        );
        let mut binder = Binder {
            chunks: plan.chunks,
            start: &|chunk| layout.start(chunk) * element_bytes,
            program: Program::default(),
            send_lanes: vec![None; plan.request.world_size],
            receive_lanes: vec![None; plan.request.world_size],
            last: vec![Touch::default(); plan.chunks + plan.scratch],
        };
        for (round, steps) in plan.rounds.iter().enumerate() {
            for step in steps {
                binder.add(round, step);
            }
        }
        let mut program = binder.program;
        program.scratch_bytes = layout.start(plan.scratch) * element_bytes;
        program.order = in_order(&program.steps);
        let is_whole = program.steps.iter().all(|step| step.pieces.len() == 1);
        let longest_bytes = program.steps.iter().map(|step| step.bytes).max();
        program.longest_bytes = longest_bytes.filter(|_| is_whole);
        program
    }

    /// As many as there are steps, flows or lanes, whatever is more.
    #[must_use]
    pub fn size(&self) -> usize {
        let lanes = self.sends.len().max(self.receives.len());
        self.steps.len().max(self.flows).max(lanes)
    }

    /// Every rank this one exchanges messages with.
    pub fn peers(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        self.sends
            .iter()
            .chain(&self.receives)
            .map(|lane| lane.peer)
    }
}

/// The steps in plan order, but the sends of a round before the receives of the round before it,
/// as far as they do not depend on them: then a rank that waits has its next contribution out
/// already, and its peers wait less.
///
/// That no rank waits for ever in this order, given links that hold two messages of a rank to a
/// peer (and two of those to several peers, of which a rank has at most one a round). A rank's
/// rounds are those in which it does something; no link has two messages of one round. A send of
/// round q, or of the sender's next round after q, has on its link at most one message before it
/// that is not of a round below q. So it has room once receives of rounds below q are over. A
/// receive of round q waits for its messages, and for what is before it and them in the order of
/// their ranks: that is sends of rounds up to q, on its own rank also of the next, and receives of
/// rounds below q. So everything waits, in the end, for receives of rounds below q, and those of
/// the first round wait for sends alone. The operation before is a round before.
#[must_use]
pub fn in_order(steps: &[ProgramStep]) -> Vec<usize> {
    let mut order = Vec::with_capacity(steps.len());
    let mut held_back: Vec<usize> = Vec::new();
    let mut first = 0;
    while let Some(step) = steps.get(first) {
        let after = first + steps[first..].partition_point(|one| one.round == step.round);
        let is_send = |at: &usize| matches!(steps[*at].action, Action::Send { .. });
        let (sends, others): (Vec<_>, Vec<_>) = (first..after).partition(is_send);
        let waits = |at: &usize| {
            let mut dependencies = steps[*at].dependencies.iter();
            dependencies.any(|one| held_back.contains(&one.step))
        };
        let free = sends.iter().position(waits).unwrap_or(sends.len());
        order.extend_from_slice(&sends[..free]);
        order.append(&mut held_back);
        order.extend_from_slice(&sends[free..]);
        if others.iter().any(|at| is_local(&steps[*at])) {
            order.extend(others);
        } else {
            held_back = others;
        }
        first = after;
    }
    order.append(&mut held_back);
    order
}

fn is_local(step: &ProgramStep) -> bool {
    matches!(step.action, Action::Copy(_) | Action::Reduce { .. })
}

/// Who touched a chunk last: (step, byte of its stream).
#[derive(Clone, Default)]
struct Touch {
    write: Option<(usize, usize)>,
    reads: Vec<(usize, usize)>,
}

struct Binder<'a> {
    chunks: usize,
    start: &'a dyn Fn(usize) -> usize,
    program: Program,
    /// By peer, its lane among the program's.
    send_lanes: Vec<Option<usize>>,
    receive_lanes: Vec<Option<usize>>,
    last: Vec<Touch>,
}

impl Binder<'_> {
    fn chunk(&self, chunk: usize) -> Piece {
        let (space, chunk) = if chunk < self.chunks {
            (Space::Buffer, chunk)
        } else {
            (Space::Scratch, chunk - self.chunks)
        };
        let offset = (self.start)(chunk);
        Piece {
            space,
            offset,
            bytes: (self.start)(chunk + 1) - offset,
        }
    }

    fn range(&self, range: ChunkRange) -> Piece {
        let (first, last) = (self.chunk(range.first), self.chunk(range.end() - 1));
        Piece {
            bytes: last.offset + last.bytes - first.offset,
            ..first
        }
    }

    fn add(&mut self, round: usize, step: &Step) {
        let one;
        let (written, read_only): (&[ChunkRange], &[ChunkRange]) = match step {
            Step::Send { ranges, .. } => (&[], ranges),
            Step::Receive { ranges, .. } => (ranges, &[]),
            Step::Copy { from, to } | Step::Reduce { from, to, .. } => {
                one = [*to, *from];
                (&one[..1], &one[1..])
            }
        };
        let streamed = if written.is_empty() {
            read_only
        } else {
            written
        };
        let pieces: Vec<_> = streamed.iter().map(|range| self.range(*range)).collect();
        let bytes = pieces.iter().map(|piece| piece.bytes).sum();
        if bytes == 0 {
            return;
        }
        let index = self.program.steps.len();
        let action = self.action(index, step);
        let mut dependencies = Vec::new();
        // A receive that only stores reads nothing, but waiting for the last writer is the same.
        self.touch(index, written, true, &mut dependencies);
        self.touch(index, read_only, false, &mut dependencies);
        dependencies.sort_by_key(|dependency| dependency.at);
        self.program.steps.push(ProgramStep {
            action,
            pieces,
            bytes,
            round,
            dependencies,
            is_lent: false,
        });
    }

    /// Notes that step `index` writes or reads `ranges`, and what it must wait for.
    fn touch(
        &mut self,
        index: usize,
        ranges: &[ChunkRange],
        writes: bool,
        dependencies: &mut Vec<Dependency>,
    ) {
        let mut at = 0;
        for chunk in ranges.iter().flat_map(|range| range.first..range.end()) {
            let bytes = self.chunk(chunk).bytes;
            let touch = &mut self.last[chunk];
            if bytes > 0 {
                let reads = if writes { touch.reads.as_slice() } else { &[] };
                for (step, from) in touch.write.iter().chain(reads) {
                    add_dependency(
                        dependencies,
                        Dependency {
                            at,
                            bytes,
                            step: *step,
                            from: *from,
                        },
                    );
                }
            }
            if writes {
                touch.write = Some((index, at));
                touch.reads.clear();
            } else {
                touch.reads.push((index, at));
            }
            at += bytes;
        }
    }

    fn action(&mut self, index: usize, step: &Step) -> Action {
        match step {
            Step::Send { peers, .. } => {
                let first_flow = self.program.flows;
                self.program.flows += peers.len();
                let flow = |(nth, peer): (usize, &usize)| {
                    let at = lane(&mut self.program.sends, &mut self.send_lanes, *peer);
                    let messages = &mut self.program.sends[at].messages;
                    messages.push((index, first_flow + nth));
                    // Far fewer messages than 2^32.
                    let number = (messages.len() - 1) as u32;
                    Addressee {
                        peer: *peer,
                        number,
                    }
                };
                Action::Send {
                    first_flow,
                    to: peers.iter().enumerate().map(flow).collect(),
                }
            }
            Step::Receive {
                sources, completes, ..
            } => {
                let own = sources.iter().position(|source| *source == Source::Own);
                let peers = sources.iter().filter_map(|source| match source {
                    Source::Own => None,
                    Source::Peer(peer) => Some(*peer),
                });
                let operands: Vec<_> = peers
                    .map(|peer| {
                        let lanes = &mut self.program.receives;
                        let at = lane(lanes, &mut self.receive_lanes, peer);
                        let messages = &mut lanes[at].messages;
                        messages.push((index, 0));
                        // Far fewer messages than 2^32.
                        let number = (messages.len() - 1) as u32;
                        Operand {
                            lane: at,
                            peer,
                            number,
                        }
                    })
                    .collect();
                match (operands.as_slice(), own) {
                    ([operand], None) => Action::Store(*operand),
                    _ => Action::Fold {
                        operands,
                        own,
                        completes: *completes,
                    },
                }
            }
            Step::Copy { from, .. } => {
                self.program.locals.push(index);
                Action::Copy(self.range(*from))
            }
            Step::Reduce {
                from, completes, ..
            } => {
                self.program.locals.push(index);
                Action::Reduce {
                    from: self.range(*from),
                    completes: *completes,
                }
            }
        }
    }
}

/// The place of the peer's lane, which is made if need be.
fn lane(lanes: &mut Vec<Lane>, lane_of_peer: &mut [Option<usize>], peer: usize) -> usize {
    *lane_of_peer[peer].get_or_insert_with(|| {
        lanes.push(Lane {
            peer,
            messages: Vec::new(),
        });
        lanes.len() - 1
    })
}

/// Adds a dependency, as part of the one before it where it goes on from there.
fn add_dependency(dependencies: &mut Vec<Dependency>, new: Dependency) {
    let joins = |old: &&mut Dependency| {
        old.step == new.step && old.at + old.bytes == new.at && old.from + old.bytes == new.from
    };
    match dependencies.iter_mut().rev().take(4).find(joins) {
        Some(old) => old.bytes += new.bytes,
        None => dependencies.push(new),
    }
}
