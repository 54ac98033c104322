//! A plan bound to a buffer's length: steps over byte ranges, and the bytes they wait for.
//!
//! Every step is a stream of bytes: its ranges, one after another. A [`Dependency`] says that
//! byte `at + i` of a step's stream waits for byte `from + i` of an earlier step's. They come from
//! the chunks the steps have in common: what a step reads must have been written, and what it
//! overwrites must have been read, in plan order. Local steps that turn out empty are dropped. A
//! message without elements has the bytes of one, from scratch into scratch: so its receiver learns
//! whether its sender makes the same call. In an all-to-all by counts, on which the ranks have
//! agreed before, both ends drop it.

use crate::reduce::Kernel;

/// What an operation does to elements: its kernel, their size and what `avg` divides by.
#[derive(Clone, Copy, Debug)]
pub struct Arithmetic {
    /// The kernel, where the collective reduces.
    pub kernel: Option<Kernel>,
    /// Bytes per element.
    pub element_bytes: usize,
    /// What the complete result is divided by.
    pub divisor: Option<usize>,
}

/// Where bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// In the caller's input, which is only read.
    Input,
    /// In the caller's output.
    Output,
    /// In the caller's buffer that is both.
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

impl Piece {
    /// The first `bytes` bytes of it.
    #[inline]
    #[must_use]
    pub fn shortened(self, bytes: usize) -> Self {
        Self {
            bytes: bytes.min(self.bytes),
            ..self
        }
    }
}

/// The piece that byte `at` of a stream falls in, from there on, at most `most` bytes of it.
#[inline]
#[must_use]
pub(crate) fn rest(pieces: &[Piece], at: usize, most: usize) -> Piece {
    if let [piece] = pieces {
        return Piece {
            space: piece.space,
            offset: piece.offset + at,
            bytes: (piece.bytes - at).min(most),
        };
    }
    let mut skip = at;
    for piece in pieces {
        if skip < piece.bytes {
            return Piece {
                space: piece.space,
                offset: piece.offset + skip,
                bytes: (piece.bytes - skip).min(most),
            };
        }
        skip -= piece.bytes;
    }
    Piece {
        space: Space::Buffer,
        offset: 0,
        bytes: 0,
    }
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

/// One end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The peer's lane among the program's sends, or among its receives.
    pub lane: usize,
    /// The peer.
    pub peer: usize,
    /// The message's number on that link and direction.
    pub number: u32,
}

/// What a step does with its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sends them: to one peer, or to several ranks of this host that all read what is written
    /// once.
    Send {
        /// The receivers.
        to: Vec<Endpoint>,
        /// Where the bytes may be exposed instead of copied: the place of the first receiver among
        /// the program's readers.
        exposed: Option<usize>,
    },
    /// Waits until the receivers of a send that exposed its bytes have read them.
    Complete {
        /// The receivers.
        to: Vec<Endpoint>,
        /// The place of the first among the program's readers.
        first_reader: usize,
    },
    /// Stores a message.
    Store(Endpoint),
    /// Reduces messages, in one fold, with this rank's bytes as operand number `own`.
    Reduce {
        /// The messages, in the order of the fold.
        from: Vec<Endpoint>,
        /// The place of this rank's bytes among the operands.
        own: Option<usize>,
        /// Whether the result is complete.
        completes: bool,
    },
    /// Copies from another place of this rank, in stream order.
    Copy(Vec<Piece>),
    /// Reduces what places of this rank hold, in one fold.
    Fold {
        /// The operands in the order of the fold, each in stream order. One of them may lie where
        /// the result goes.
        from: Vec<Vec<Piece>>,
        /// Whether the result is complete.
        completes: bool,
    },
}

/// One step over bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramStep {
    /// What is done.
    pub action: Action,
    /// The bytes that are read by a send, and written by any other action, in stream order.
    pub pieces: Vec<Piece>,
    /// This rank's operand of a reduction, in stream order, in pieces as long as those of
    /// `pieces`; empty where it lies in `pieces` itself.
    pub own: Vec<Piece>,
    /// How many bytes.
    pub bytes: usize,
    /// The plan's round.
    pub round: usize,
    /// What the bytes wait for, by increasing `at`.
    pub dependencies: Vec<Dependency>,
}

impl ProgramStep {
    /// Whether the step touches this rank's memory alone.
    #[must_use]
    pub fn is_local(&self) -> bool {
        matches!(self.action, Action::Copy(_) | Action::Fold { .. })
    }
}

/// The messages of one link and direction, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The peer.
    pub peer: usize,
    /// The step of each message.
    pub steps: Vec<usize>,
}

/// A bound plan. It depends on the plan, the count, the element size, the placement and on which
/// ranks share this rank's host, on nothing else.
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
    /// The steps that wait for the readers of exposed bytes.
    pub completions: Vec<usize>,
    /// How many readers all exposed sends have.
    pub readers: usize,
    /// Bytes of scratch.
    pub scratch_bytes: usize,
    /// The steps in an order in which they can be run one after the other, see `in_order`.
    pub order: Vec<usize>,
    /// Bytes of the longest message, if every message and every step is one run of bytes.
    pub longest_bytes: Option<usize>,
}

impl Program {
    /// One message of `bytes` bytes to `peer` or from it. What is sent is only read.
    #[must_use]
    pub fn message(peer: usize, sends: bool, bytes: usize) -> Self {
        let mut program = Self {
            longest_bytes: Some(bytes),
            ..Self::default()
        };
        if bytes == 0 {
            return program;
        }
        let one = Endpoint {
            lane: 0,
            peer,
            number: 0,
        };
        let to = || Action::Send {
            to: vec![one],
            exposed: None,
        };
        let (lanes, action, space) = match sends {
            true => (&mut program.sends, to(), Space::Input),
            false => (&mut program.receives, Action::Store(one), Space::Buffer),
        };
        lanes.push(Lane {
            peer,
            steps: vec![0],
        });
        let whole = Piece {
            space,
            offset: 0,
            bytes,
        };
        program.steps.push(ProgramStep {
            action,
            pieces: vec![whole],
            own: Vec::new(),
            bytes,
            round: 0,
            dependencies: Vec::new(),
        });
        program.order.push(0);
        program
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
/// already, and its peers wait less. `engine/progress.md` says why no rank waits for ever.
#[must_use]
pub(crate) fn in_order(steps: &[ProgramStep]) -> Vec<usize> {
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
        if others.iter().any(|at| steps[*at].is_local()) {
            order.extend(others);
        } else {
            held_back = others;
        }
        first = after;
    }
    order.append(&mut held_back);
    order
}
