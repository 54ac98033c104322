//! Records the entries that a device's streams run for a call. The recorded entries are enqueued
//! each time the call is made.
//!
//! Each rank has *frames* that its peers can read. A send copies its bytes to a separate place in
//! the frame and notifies the receivers. A receive waits for the notification and reads the bytes
//! in place. No place in a frame is written twice within an operation. So within an operation, a
//! send never waits, and an entry counts as done once it is recorded. A frame is reused when all
//! readers of the last operation that used it are done.
//!
//! Both ends must know where a message is stored. Programs depend only on the rank and on
//! information that all ranks have, so every rank computes the layout of all frames.

use super::{Medium, Moved, Operands, Part};
use crate::engine::program::{Action, Endpoint, Lane, Piece, Program, Space, rest};
use crate::engine::run::Run;

/// Alignment, in bytes, of the places where messages are stored in a frame.
const ALIGNMENT: usize = 256;
/// Size of a vector in bytes. A message's offset in the frame and its offset in the sender's buffer
/// are equal modulo this size. Kernels can read complete vectors if all operands are aligned
/// identically.
const VECTOR_BYTES: usize = 16;

/// A function that maps an offset in the program's buffer to an offset in the caller's buffer.
pub(crate) type MapOffset<'a> = &'a dyn Fn(usize) -> usize;

/// The memory that contains a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceMemory {
    /// The caller's buffer.
    Buffer,
    /// This rank's frame.
    Frame,
    /// A peer's frame.
    Peer(usize),
}

/// A location in one of an operation's memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The memory that contains the place.
    pub memory: PlaceMemory,
    /// Offset of the first byte.
    pub at: usize,
}

/// An instruction for a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A wait until message `number` from `peer` is in that peer's frame.
    Await {
        /// The sender.
        peer: usize,
        /// Index of the message among the messages from the sender in this operation.
        number: u32,
    },
    /// A notification to `peer` that message `number` is in this rank's frame.
    Notify {
        /// The receiver.
        peer: usize,
        /// Index of the message among the messages to the receiver in this operation.
        number: u32,
    },
    /// A copy of bytes.
    Copy {
        /// Source.
        from: Place,
        /// Destination.
        to: Place,
        /// Number of bytes.
        bytes: usize,
    },
    /// A reduction of operands that have the same length. `to` may be one of the operands.
    Reduce {
        /// The operands, in the order in which they are reduced.
        from: Vec<Place>,
        /// The destination of the result.
        to: Place,
        /// Number of bytes in each operand.
        bytes: usize,
        /// `true` if the result is complete.
        completes: bool,
    },
}

impl Entry {
    /// Returns the places that the entry reads or writes, and the number of bytes at each place.
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

/// The entries that one rank's streams run for an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    /// The entries in order.
    pub entries: Vec<Entry>,
    /// Ranks that read this rank's frame, each with the number of messages that the rank reads.
    pub readers: Vec<(usize, u32)>,
    /// Ranks whose frames this rank reads, each with the number of messages that this rank reads.
    pub sources: Vec<(usize, u32)>,
}

/// Returns `true` if every frame that `programs` use fits in `frame_bytes`, no link carries more
/// than `messages_max` messages, and no reduction has more than `operands_max` operands. The
/// positions of messages in a frame depend on `lies`, so the result applies only to the given
/// `lies`.
#[must_use]
pub(crate) fn fits(
    programs: &[Program],
    lies: MapOffset<'_>,
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

/// Records the script for `rank`, given the programs of all ranks.
#[must_use]
pub(crate) fn script(programs: &[Program], lies: MapOffset<'_>, rank: usize) -> Script {
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

/// The positions of a program's messages in the frame of the rank that runs it.
struct Frame {
    /// Offset of each step's message, indexed by step. Unused for steps that send nothing.
    starts: Vec<usize>,
    scratch_at: usize,
    bytes: usize,
}

impl Frame {
    fn new(program: &Program, lies: MapOffset<'_>) -> Self {
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

/// Returns the offset, in the sender's frame, of each message that the program `sender` sends to
/// `rank`, in the order of the messages.
fn incoming(sender: &Program, lies: MapOffset<'_>, rank: usize) -> Vec<usize> {
    let frame = Frame::new(sender, lies);
    let lanes = sender.sends.iter().filter(|lane| lane.peer == rank);
    lanes
        .flat_map(|lane| lane.steps.iter().map(|step| frame.starts[*step]))
        .collect()
}

/// A medium that records entries and moves no bytes.
struct Recorder<'a> {
    program: &'a Program,
    frame: Frame,
    /// Offset of each message in its sender's frame, indexed by peer and message.
    incoming: Vec<Vec<usize>>,
    entries: Vec<Entry>,
}

impl Recorder<'_> {
    fn own(&self, piece: Piece) -> Place {
        match piece.space {
            Space::Scratch => Place {
                memory: PlaceMemory::Frame,
                at: self.frame.scratch_at + piece.offset,
            },
            // The call is in place, so all other spaces refer to the buffer.
            Space::Input | Space::Output | Space::Buffer => Place {
                memory: PlaceMemory::Buffer,
                at: piece.offset,
            },
        }
    }

    /// Returns the place of byte `offset` of a message.
    fn message(&self, from: &Endpoint, offset: usize) -> Place {
        Place {
            memory: PlaceMemory::Peer(from.peer),
            at: self.incoming[from.peer][from.number as usize] + offset,
        }
    }

    /// Returns the operands of a reduction. At the beginning of a reduction, first records waits
    /// for the messages.
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
            memory: PlaceMemory::Frame,
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

    fn is_acknowledged(&mut self, _peer: usize, _position: usize) -> bool {
        true
    }

    fn element_bytes(&self) -> usize {
        1
    }

    fn flush(&mut self) {}
}
