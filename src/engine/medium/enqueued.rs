//! A device's stream: what the interpreter does with a program is written down as entries, which
//! are enqueued as often as the call is made.
//!
//! Each rank has *frames* that its peers can read. A send copies its bytes to a place of its own in
//! the frame and notifies the receivers; a receive awaits the notification and reads the bytes
//! where they lie. No place of a frame is written twice in an operation, so within an operation a
//! send waits for nothing, and an entry that was written down counts as done. A frame is used again
//! when all readers of its last operation are through.
//!
//! Both ends must know where a message lies. Programs depend on the rank and on what all ranks
//! know, so every rank lays out the frames of all.

use super::{Medium, Moved, Operands, Part};
use crate::engine::program::{Action, Endpoint, Lane, Piece, Program, Space, rest};
use crate::engine::run::Run;

/// The least that messages are apart.
const ALIGNMENT: usize = 256;
/// Messages lie in a frame as they lie in the sender's buffer within this many bytes: kernels read
/// whole vectors where all operands lie alike.
const VECTOR_BYTES: usize = 16;

/// Where a byte of the program's buffer lies in the caller's.
pub(crate) type Lies<'a> = &'a dyn Fn(usize) -> usize;

/// Which memory a place lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    /// The caller's buffer.
    Buffer,
    /// This rank's frame.
    Frame,
    /// The frame of a peer.
    Peer(usize),
}

/// A place in one of an operation's memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Which memory.
    pub memory: Where,
    /// The first byte.
    pub at: usize,
}

/// What a stream is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Wait until message `number` of `peer` lies in its frame.
    Await {
        /// The sender.
        peer: usize,
        /// The message's number among those from it in this operation.
        number: u32,
    },
    /// Tell `peer` that message `number` lies in this rank's frame.
    Notify {
        /// The receiver.
        peer: usize,
        /// The message's number among those to it in this operation.
        number: u32,
    },
    /// Copy bytes.
    Copy {
        /// From here.
        from: Place,
        /// To there.
        to: Place,
        /// So many.
        bytes: usize,
    },
    /// Reduce operands of equal length, which `to` may be one of.
    Reduce {
        /// The operands, in the order of the reduction.
        from: Vec<Place>,
        /// Where the result goes.
        to: Place,
        /// Bytes of each.
        bytes: usize,
        /// Whether the result is complete.
        completes: bool,
    },
}

impl Entry {
    /// The places that it reads or writes, and the bytes of each.
    #[must_use]
    pub(crate) fn places(&self) -> (Vec<Place>, usize) {
        match self {
            Self::Await { .. } | Self::Notify { .. } => (Vec::new(), 0),
            Self::Copy { from, to, bytes } => (vec![*from, *to], *bytes),
            Self::Reduce {
                from, to, bytes, ..
            } => (from.iter().chain([to]).copied().collect(), *bytes),
        }
    }
}

/// What one rank's stream is told for an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    /// In this order.
    pub entries: Vec<Entry>,
    /// The ranks that read this rank's frame, and how many messages each gets.
    pub readers: Vec<(usize, u32)>,
    /// The ranks whose frames this rank reads, and how many messages of each.
    pub sources: Vec<(usize, u32)>,
}

/// Whether every frame of `programs` fits `frame_bytes`, no link carries more than `messages_max`
/// messages, and no reduction has more than `operands_max` operands. Where messages begin in a
/// frame depends on `lies`, so the answer is for this `lies` alone.
#[must_use]
pub(crate) fn fits(
    programs: &[Program],
    lies: Lies<'_>,
    frame_bytes: usize,
    messages_max: usize,
    operands_max: usize,
) -> bool {
    programs.iter().all(|program| {
        let operands = program.steps.iter().map(|step| match &step.action {
            Action::Reduce { from, .. } => from.len() + 1,
            Action::Fold { from, .. } => from.len(),
            _ => 2,
        });
        Frame::new(program, lies).bytes <= frame_bytes
            && program
                .sends
                .iter()
                .all(|lane| lane.steps.len() <= messages_max)
            && operands.max().unwrap_or(0) <= operands_max
    })
}

/// Writes down what `rank`'s stream is told, given the programs of all ranks.
#[must_use]
pub(crate) fn script(programs: &[Program], lies: Lies<'_>, rank: usize) -> Script {
    let program = &programs[rank];
    let mut recorder = Recorder {
        program,
        frame: Frame::new(program, lies),
        incoming: programs
            .iter()
            .map(|peer| incoming(peer, lies, rank))
            .collect(),
        entries: Vec::new(),
    };
    let mut run = Run::default();
    run.start(program);
    let ran = run.block(program, &mut recorder, &mut |_| true);
    assert!(
        matches!(ran, Ok(true)),
        "invariant: entries always count as done"
    );
    let count = |lane: &Lane| (lane.peer, lane.steps.len() as u32);
    Script {
        entries: recorder.entries,
        readers: program.sends.iter().map(count).collect(),
        sources: program.receives.iter().map(count).collect(),
    }
}

/// Where the messages of a program lie in its rank's frame.
struct Frame {
    /// By step; of steps that send nothing it says nothing.
    starts: Vec<usize>,
    scratch_at: usize,
    bytes: usize,
}

impl Frame {
    fn new(program: &Program, lies: Lies<'_>) -> Self {
        let mut end = 0;
        let mut place = |bytes: usize, residue: usize| {
            let start = end + residue;
            end = (start + bytes).next_multiple_of(ALIGNMENT);
            start
        };
        let residue = |piece: &Piece| match piece.space {
            Space::Scratch => 0,
            _ => lies(piece.offset) % VECTOR_BYTES,
        };
        let starts = program.steps.iter().map(|step| match step.action {
            Action::Send { .. } => place(step.bytes, step.pieces.first().map_or(0, residue)),
            _ => 0,
        });
        let starts = starts.collect();
        let scratch_at = place(program.scratch_bytes, 0);
        Self {
            starts,
            scratch_at,
            bytes: end,
        }
    }
}

/// Where the messages of `sender`'s program to `rank` begin in its frame, by number.
fn incoming(sender: &Program, lies: Lies<'_>, rank: usize) -> Vec<usize> {
    let frame = Frame::new(sender, lies);
    let lanes = sender.sends.iter().filter(|lane| lane.peer == rank);
    lanes
        .flat_map(|lane| lane.steps.iter().map(|step| frame.starts[*step]))
        .collect()
}

/// Writes entries down.
struct Recorder<'a> {
    program: &'a Program,
    frame: Frame,
    /// By peer and number.
    incoming: Vec<Vec<usize>>,
    entries: Vec<Entry>,
}

impl Recorder<'_> {
    fn own(&self, piece: Piece) -> Place {
        match piece.space {
            Space::Scratch => Place {
                memory: Where::Frame,
                at: self.frame.scratch_at + piece.offset,
            },
            // In place, all else is the buffer.
            Space::Input | Space::Output | Space::Buffer => Place {
                memory: Where::Buffer,
                at: piece.offset,
            },
        }
    }

    /// Where a message lies, from byte `offset` of it on.
    fn message(&self, from: &Endpoint, offset: usize) -> Place {
        Place {
            memory: Where::Peer(from.peer),
            at: self.incoming[from.peer][from.number as usize] + offset,
        }
    }

    /// The operands of a reduction, once their messages have come.
    fn operands(&mut self, operands: Operands<'_>, own: Place, offset: usize) -> Vec<Place> {
        if offset == 0 {
            self.await_all(operands.from);
        }
        let messages = operands.from.iter();
        let mut places: Vec<_> = messages.map(|one| self.message(one, offset)).collect();
        if let Some(at) = operands.own {
            places.insert(at, own);
        }
        places
    }

    fn await_all(&mut self, from: &[Endpoint]) {
        let awaits = from.iter().map(|one| Entry::Await {
            peer: one.peer,
            number: one.number,
        });
        self.entries.extend(awaits);
    }

    fn reduce_at(&mut self, operands: Operands<'_>, own: Place, part: Part, into: Piece) -> Moved {
        let completes = operands.completes;
        let entry = Entry::Reduce {
            from: self.operands(operands, own, part.offset),
            to: self.own(into),
            bytes: into.bytes,
            completes,
        };
        self.entries.push(entry);
        Ok(into.bytes)
    }
}

impl Medium for Recorder<'_> {
    fn send(&mut self, to: &[Endpoint], part: Part, piece: Piece, _exposes: bool) -> Moved {
        let step = self.program.sends[to[0].lane].steps[to[0].number as usize];
        let at = Place {
            memory: Where::Frame,
            at: self.frame.starts[step] + part.offset,
        };
        self.entries.push(Entry::Copy {
            from: self.own(piece),
            to: at,
            bytes: piece.bytes,
        });
        if part.offset + piece.bytes == part.message_bytes {
            let notifications = to.iter().map(|one| Entry::Notify {
                peer: one.peer,
                number: one.number,
            });
            self.entries.extend(notifications);
        }
        Ok(piece.bytes)
    }

    fn store(&mut self, from: Endpoint, part: Part, into: Piece) -> Moved {
        if part.offset == 0 {
            self.await_all(&[from]);
        }
        self.entries.push(Entry::Copy {
            from: self.message(&from, part.offset),
            to: self.own(into),
            bytes: into.bytes,
        });
        Ok(into.bytes)
    }

    fn reduce(&mut self, operands: Operands<'_>, part: Part, into: Piece) -> Moved {
        let own = self.own(into);
        self.reduce_at(operands, own, part, into)
    }

    fn reduce_from(
        &mut self,
        operands: Operands<'_>,
        own: Piece,
        part: Part,
        into: Piece,
    ) -> Moved {
        let own = self.own(own);
        self.reduce_at(operands, own, part, into)
    }

    fn copy(&mut self, from: Piece, to: Piece) {
        self.entries.push(Entry::Copy {
            from: self.own(from),
            to: self.own(to),
            bytes: to.bytes,
        });
    }

    fn fold(&mut self, from: &[Vec<Piece>], offset: usize, into: Piece, completes: bool) {
        let operand = |one: &Vec<Piece>| self.own(rest(one, offset, into.bytes));
        let entry = Entry::Reduce {
            from: from.iter().map(operand).collect(),
            to: self.own(into),
            bytes: into.bytes,
            completes,
        };
        self.entries.push(entry);
    }

    fn is_ready(&self, _peer: usize) -> bool {
        true
    }

    fn position(&self, _peer: usize) -> usize {
        0
    }

    fn is_through(&mut self, _peer: usize, _position: usize) -> bool {
        true
    }

    fn element_bytes(&self) -> usize {
        1
    }

    fn flush(&mut self) {}
}
