//! Binding a plan to lengths and places: chunks become bytes.

use super::program::{
    Action, Dependency, Endpoint, Lane, Piece, Program, ProgramStep, Space, in_order,
};
use crate::plan::layout::Layout;
use crate::plan::spec::{Collective, Demand};
use crate::plan::{ChunkRange, Plan, Source, Step};

/// Where a call's elements come from and where its result goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Placement {
    /// One buffer is both.
    #[default]
    InPlace,
    /// From an input that is only read into an output. The input of an all-gather and the output
    /// of a reduce-scatter are this rank's block alone.
    Into,
}

impl Program {
    /// Binds `plan` to a buffer of `count` elements of `element_bytes` each. `is_local` tells which
    /// ranks share this rank's host: what several of them are sent is written once.
    ///
    /// ```
    /// use ringtree::engine::bind::Placement;
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
    /// let program = Program::bind(&plan(&request)?, 100, 4, Placement::InPlace, &|_| false);
    /// let [send, reduce] = program.steps.as_slice() else { panic!("one exchange") };
    /// assert!(matches!(send.action, Action::Send { .. }));
    /// // The reduction overwrites a byte once that byte has been sent.
    /// assert_eq!((reduce.bytes, reduce.dependencies[0].step), (400, 0));
    /// # Ok::<(), String>(())
    /// ```
    #[must_use]
    pub fn bind(
        plan: &Plan,
        count: usize,
        element_bytes: usize,
        placement: Placement,
        is_local: &dyn Fn(usize) -> bool,
    ) -> Self {
        let request = &plan.request;
        let layout = Layout::new(request.collective, request.world_size, plan.chunks, count);
        let mut binder = Binder {
            plan,
            places: Places::new(plan, &layout, element_bytes, placement),
            is_local,
            program: Program::default(),
            send_lanes: vec![None; request.world_size],
            receive_lanes: vec![None; request.world_size],
            last: vec![Touch::default(); plan.chunks + plan.scratch],
        };
        for (round, steps) in plan.rounds.iter().enumerate() {
            for step in steps {
                binder.add(round, step);
            }
        }
        binder.copy_what_is_left();
        let mut program = binder.program;
        program.scratch_bytes = binder.places.scratch_bytes;
        program.order = in_order(&program.steps);
        let is_whole = |step: &ProgramStep| step.pieces.len() == 1;
        let longest_bytes = program.steps.iter().map(|step| step.bytes).max();
        program.longest_bytes = longest_bytes.filter(|_| program.steps.iter().all(is_whole));
        program
    }
}

/// Where each chunk lies.
struct Places {
    /// The first byte of each chunk of the whole buffer, and one past the last.
    starts: Vec<usize>,
    /// How many chunks the buffer has; scratch chunks come after them.
    chunks: usize,
    placement: Placement,
    /// The chunks whose result the caller has asked for, if not all.
    block: Option<std::ops::Range<usize>>,
    gathers: bool,
    /// Where the plan's own scratch starts.
    scratch_start: usize,
    scratch_bytes: usize,
}

impl Places {
    fn new(plan: &Plan, layout: &Layout, element_bytes: usize, placement: Placement) -> Self {
        let request = &plan.request;
        let starts: Vec<_> = (0..=plan.chunks)
            .map(|chunk| layout.start(chunk) * element_bytes)
            .collect();
        let pieces = plan.chunks / request.world_size.max(1);
        let block = request.collective.is_blocked();
        let block = block.then(|| request.rank * pieces..(request.rank + 1) * pieces);
        let scatters = request.collective == Collective::ReduceScatter;
        // What the output has no room for goes through scratch.
        let scratch_start = match placement {
            Placement::Into if scatters => starts[plan.chunks],
            _ => 0,
        };
        Self {
            scratch_bytes: scratch_start + periodic(&starts, plan.scratch),
            starts,
            chunks: plan.chunks,
            placement,
            block,
            gathers: request.collective == Collective::AllGather,
            scratch_start,
        }
    }

    fn piece(&self, space: Space, chunk: usize, base: usize) -> Piece {
        Piece {
            space,
            offset: self.starts[chunk] - base,
            bytes: self.starts[chunk + 1] - self.starts[chunk],
        }
    }

    /// Where this rank's block starts in the whole buffer.
    fn block_start(&self) -> usize {
        self.block
            .as_ref()
            .map_or(0, |block| self.starts[block.start])
    }

    /// Where the chunk's first content is read, before a step has written it.
    fn input(&self, chunk: usize) -> Piece {
        let base = if self.gathers { self.block_start() } else { 0 };
        // Only this rank's block of an all-gather has content, and only it is read.
        self.piece(Space::Input, chunk, base.min(self.starts[chunk]))
    }

    /// Where the chunk is written, and read once a step has written it.
    fn home(&self, chunk: usize) -> Piece {
        if chunk >= self.chunks {
            let scratch = chunk - self.chunks;
            return Piece {
                offset: self.scratch_start + periodic(&self.starts, scratch),
                ..self.piece(Space::Scratch, scratch % self.chunks, 0)
            };
        }
        match (self.placement, &self.block) {
            (Placement::InPlace, _) => self.piece(Space::Buffer, chunk, 0),
            (Placement::Into, Some(block)) if !self.gathers => {
                if block.contains(&chunk) {
                    self.piece(Space::Output, chunk, self.block_start())
                } else {
                    self.piece(Space::Scratch, chunk, 0)
                }
            }
            (Placement::Into, _) => self.piece(Space::Output, chunk, 0),
        }
    }
}

/// Where chunk `index` begins if buffers with these `starts` follow one another.
fn periodic(starts: &[usize], index: usize) -> usize {
    let chunks = starts.len() - 1;
    (index / chunks) * starts[chunks] + starts[index % chunks]
}

/// The steps that touched a chunk last: (step, byte of its stream).
#[derive(Clone, Default)]
struct Touch {
    write: Option<(usize, usize)>,
    reads: Vec<(usize, usize)>,
}

struct Binder<'a> {
    plan: &'a Plan,
    places: Places,
    is_local: &'a dyn Fn(usize) -> bool,
    program: Program,
    /// By peer, its lane among the program's.
    send_lanes: Vec<Option<usize>>,
    receive_lanes: Vec<Option<usize>>,
    last: Vec<Touch>,
}

impl Binder<'_> {
    /// Whether the chunk is read where the input lies: no step has written it yet. One without
    /// bytes lies nowhere: no step writes it, and it must not make its neighbours look unwritten.
    fn is_input(&self, chunk: usize) -> bool {
        self.places.placement == Placement::Into
            && chunk < self.places.chunks
            && self.places.home(chunk).bytes > 0
            && self.last[chunk].write.is_none()
    }

    /// Where the chunk is read now.
    fn source(&self, chunk: usize) -> Piece {
        if self.is_input(chunk) {
            self.places.input(chunk)
        } else {
            self.places.home(chunk)
        }
    }

    fn sources(&self, ranges: &[ChunkRange]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for chunk in chunks(ranges) {
            append(&mut pieces, self.source(chunk));
        }
        pieces
    }

    /// Where the chunks are written, and, if this rank's bytes are an operand that lies elsewhere,
    /// where that lies, in pieces of the same lengths.
    fn destinations(&self, ranges: &[ChunkRange], reads_own: bool) -> (Vec<Piece>, Vec<Piece>) {
        let (mut pieces, mut own): (Vec<Piece>, Vec<Piece>) = (Vec::new(), Vec::new());
        let reads_input = reads_own && chunks(ranges).any(|chunk| self.is_input(chunk));
        for chunk in chunks(ranges) {
            let home = self.places.home(chunk);
            if !reads_input {
                append(&mut pieces, home);
                continue;
            }
            let source = self.source(chunk);
            let joins = pieces.last().is_some_and(|last| follows(last, &home))
                && own.last().is_some_and(|last| follows(last, &source));
            match (pieces.last_mut(), own.last_mut()) {
                (Some(piece), Some(operand)) if joins => {
                    piece.bytes += home.bytes;
                    operand.bytes += source.bytes;
                }
                _ if home.bytes > 0 => {
                    pieces.push(home);
                    own.push(source);
                }
                _ => {}
            }
        }
        (pieces, own)
    }

    fn add(&mut self, round: usize, step: &Step) {
        match step {
            Step::Send { peers, ranges } => {
                let (local, remote): (Vec<_>, Vec<_>) =
                    peers.iter().partition(|peer| (self.is_local)(**peer));
                if !local.is_empty() {
                    self.send(round, &local, ranges);
                }
                for peer in remote {
                    self.send(round, &[peer], ranges);
                }
            }
            Step::Receive {
                sources,
                ranges,
                completes,
            } => self.receive(round, sources, ranges, *completes),
            Step::Copy { from, to } => {
                let from = std::slice::from_ref(from);
                let action = Action::Copy(self.sources(from));
                self.local(round, action, from, *to);
            }
            Step::Reduce {
                from,
                to,
                completes,
            } => {
                let operands = from.iter().map(|one| self.sources(&[*one]));
                let action = Action::Fold {
                    from: operands.collect(),
                    completes: *completes,
                };
                self.local(round, action, from, *to);
            }
        }
    }

    fn send(&mut self, round: usize, peers: &[&usize], ranges: &[ChunkRange]) {
        let pieces = self.sources(ranges);
        if pieces.is_empty() {
            return;
        }
        let index = self.program.steps.len();
        let to = peers
            .iter()
            .map(|peer| endpoint(&mut self.program.sends, &mut self.send_lanes, **peer, index));
        let to = to.collect();
        let mut dependencies = Vec::new();
        self.touch(index, ranges, false, &mut dependencies);
        let action = Action::Send { to, exposed: None };
        self.push(round, action, (pieces, Vec::new()), dependencies);
    }

    fn receive(
        &mut self,
        round: usize,
        sources: &[Source],
        ranges: &[ChunkRange],
        completes: bool,
    ) {
        let own = sources.iter().position(|source| *source == Source::Own);
        let places = self.destinations(ranges, own.is_some());
        if places.0.is_empty() {
            return;
        }
        let index = self.program.steps.len();
        let peers = sources.iter().filter_map(|source| match source {
            Source::Own => None,
            Source::Peer(peer) => Some(*peer),
        });
        let (lanes, of_peer) = (&mut self.program.receives, &mut self.receive_lanes);
        let from: Vec<_> = peers
            .map(|peer| endpoint(lanes, of_peer, peer, index))
            .collect();
        let action = match (from.as_slice(), own) {
            ([from], None) => Action::Store(*from),
            _ => Action::Reduce {
                from,
                own,
                completes,
            },
        };
        let mut dependencies = Vec::new();
        // A receive that only stores reads nothing, but waiting for the last writer is the same.
        self.touch(index, ranges, true, &mut dependencies);
        self.push(round, action, places, dependencies);
    }

    fn local(&mut self, round: usize, action: Action, from: &[ChunkRange], to: ChunkRange) {
        let places = self.destinations(&[to], false);
        if places.0.is_empty() {
            return;
        }
        let index = self.program.steps.len();
        self.program.locals.push(index);
        let mut dependencies = Vec::new();
        self.touch(index, &[to], true, &mut dependencies);
        for one in from.iter().filter(|one| **one != to) {
            self.touch(index, &[*one], false, &mut dependencies);
        }
        self.push(round, action, places, dependencies);
    }

    /// What the plan leaves where it was, and the caller wants in the output, is copied there.
    fn copy_what_is_left(&mut self) {
        let request = &self.plan.request;
        let pieces = self.places.chunks / request.world_size.max(1);
        let round = self.plan.rounds.len();
        for chunk in 0..self.places.chunks {
            let block = if request.collective.is_blocked() {
                chunk / pieces.max(1)
            } else {
                0
            };
            let demand = request
                .collective
                .demands(request.rank, request.root, block);
            if self.is_input(chunk) && demand != Demand::Anything {
                let from = [ChunkRange::new(chunk, 1)];
                let action = Action::Copy(self.sources(&from));
                self.local(round, action, &[], from[0]);
            }
        }
    }

    fn push(
        &mut self,
        round: usize,
        action: Action,
        (pieces, own): (Vec<Piece>, Vec<Piece>),
        mut dependencies: Vec<Dependency>,
    ) {
        dependencies.sort_by_key(|dependency| dependency.at);
        self.program.steps.push(ProgramStep {
            action,
            bytes: pieces.iter().map(|piece| piece.bytes).sum(),
            pieces,
            own,
            round,
            dependencies,
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
        for chunk in chunks(ranges) {
            let bytes = self.places.home(chunk).bytes;
            // The input is never written: nothing waits for its readers.
            let is_input = !writes && self.is_input(chunk);
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
            } else if !is_input {
                touch.reads.push((index, at));
            }
            at += bytes;
        }
    }
}

fn chunks(ranges: &[ChunkRange]) -> impl Iterator<Item = usize> + '_ {
    ranges.iter().flat_map(|range| range.first..range.end())
}

/// Whether `next` begins where `last` ends.
fn follows(last: &Piece, next: &Piece) -> bool {
    last.space == next.space && last.offset + last.bytes == next.offset
}

/// Adds a piece, as part of the one before it where it goes on from there.
fn append(pieces: &mut Vec<Piece>, next: Piece) {
    match pieces.last_mut() {
        Some(last) if follows(last, &next) => last.bytes += next.bytes,
        _ if next.bytes > 0 => pieces.push(next),
        _ => {}
    }
}

/// The next message of step `step` on the lane of `peer`, which is made if need be.
fn endpoint(
    lanes: &mut Vec<Lane>,
    lane_of_peer: &mut [Option<usize>],
    peer: usize,
    step: usize,
) -> Endpoint {
    let lane = *lane_of_peer[peer].get_or_insert_with(|| {
        lanes.push(Lane {
            peer,
            steps: Vec::new(),
        });
        lanes.len() - 1
    });
    let steps = &mut lanes[lane].steps;
    steps.push(step);
    Endpoint {
        lane,
        peer,
        // Far fewer messages than 2^32.
        number: (steps.len() - 1) as u32,
    }
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
