//! Defines programs. A program is a plan that is bound to the length of a buffer. It consists of
//! steps that operate on byte ranges, and of the dependencies between the steps.
//!
//! A step processes a stream of bytes, which consists of the step's ranges in sequence. A
//! [`Dependency`] means that byte `at + i` of a step's stream waits for byte `from + i` of an
//! earlier step's stream. Dependencies follow from the chunks that steps share: in plan order,
//! bytes are read after they were written, and overwritten after they were read.
//!
//! Empty local steps are dropped. An empty message carries the bytes of one element from scratch to
//! scratch, so that its receiver learns whether the sender makes the same call. In an all-to-all
//! with counts, both ends drop an empty message, because the ranks have already agreed on the
//! counts.

use crate::reduce::Kernel;

/// The arithmetic of an operation: its kernel, the size of its elements, and the divisor of `avg`.
#[derive(Clone, Copy, Debug)]
pub struct Arithmetic {
    /// The kernel, if the collective reduces.
    pub kernel: Option<Kernel>,
    /// Number of bytes per element.
    pub element_bytes: usize,
    /// Divisor of the complete result, if the operator is `avg`.
    pub divisor: Option<usize>,
}

/// One of the areas of memory that an operation uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// The caller's input, which is only read.
    Input,
    /// The caller's output.
    Output,
    /// The caller's buffer, if the call is in place.
    Buffer,
    /// The operation's scratch.
    Scratch,
}

/// A contiguous range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The memory that holds the bytes.
    pub space: Space,
    /// Offset of the first byte.
    pub offset: usize,
    /// Number of bytes.
    pub bytes: usize,
}

impl Piece {
    /// Returns the first `bytes` bytes of the piece.
    #[inline]
    #[must_use]
    pub fn shortened(self, bytes: usize) -> Self {
        Self {
            bytes: bytes.min(self.bytes),
            ..self
        }
    }
}

/// Returns the contiguous bytes that begin at byte `at` of the stream of `pieces`. They end at the
/// end of their piece, or after `most` bytes.
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

/// States that bytes `at..at + bytes` of a step's stream depend on bytes `from..from + bytes` of
/// the stream of `step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// First byte in the waiting step's stream.
    pub at: usize,
    /// Number of bytes.
    pub bytes: usize,
    /// The earlier step.
    pub step: usize,
    /// First byte in the earlier step's stream.
    pub from: usize,
}

/// One end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Index of the peer's lane among the program's sends or receives.
    pub lane: usize,
    /// The peer.
    pub peer: usize,
    /// Index of the message among the messages on this link in this direction.
    pub number: u32,
}

/// The action of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A send to one peer, or to several ranks on this host. If there are several, the bytes are
    /// written once and all receivers read them.
    Send {
        /// The receivers.
        to: Vec<Endpoint>,
        /// Index of the first receiver among the program's readers, if the bytes may be exposed
        /// instead of copied.
        exposed: Option<usize>,
    },
    /// A wait until the receivers of an exposed send have read the bytes.
    Complete {
        /// The receivers.
        to: Vec<Endpoint>,
        /// Index of the first receiver among the program's readers.
        first_reader: usize,
    },
    /// A receive that stores a message.
    Store(Endpoint),
    /// A receive that combines messages, and possibly this rank's bytes, in a single reduction.
    Reduce {
        /// The messages, in the order in which they are reduced.
        from: Vec<Endpoint>,
        /// Index of this rank's bytes among the operands. `None` if the reduction does not use
        /// them.
        own: Option<usize>,
        /// `true` if the result is complete.
        completes: bool,
    },
    /// A copy within this rank. The pieces are the source, in stream order.
    Copy(Vec<Piece>),
    /// A single reduction of this rank's own bytes.
    Fold {
        /// The operands, in the order in which they are reduced, each in stream order. The
        /// destination may be one of the operands.
        from: Vec<Vec<Piece>>,
        /// `true` if the result is complete.
        completes: bool,
    },
}

/// A step that operates on bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramStep {
    /// The operation that the step performs.
    pub action: Action,
    /// The bytes that a send reads, and that any other action writes, in stream order.
    pub pieces: Vec<Piece>,
    /// This rank's operand of a reduction, in stream order. Its pieces have the same lengths as
    /// those in `pieces`. Empty if `pieces` itself is the operand.
    pub own: Vec<Piece>,
    /// Number of bytes.
    pub bytes: usize,
    /// Round of the plan that the step belongs to.
    pub round: usize,
    /// Dependencies of the step, in ascending order of `at`.
    pub dependencies: Vec<Dependency>,
}

impl ProgramStep {
    /// Returns `true` if the step uses only memory of this rank.
    #[must_use]
    pub fn is_local(&self) -> bool {
        matches!(self.action, Action::Copy(_) | Action::Fold { .. })
    }
}

/// The messages that pass over one link in one direction, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The peer.
    pub peer: usize,
    /// The step that each message belongs to.
    pub steps: Vec<usize>,
}

/// A bound plan. It depends only on the plan, the lengths, the element size, the placement and the
/// set of ranks on this rank's host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// The steps, in plan order.
    pub steps: Vec<ProgramStep>,
    /// The lanes for sends, one for each receiver.
    pub sends: Vec<Lane>,
    /// The lanes for receives, one for each sender.
    pub receives: Vec<Lane>,
    /// Indices of the local steps.
    pub locals: Vec<usize>,
    /// Indices of the steps that wait until exposed bytes have been read.
    pub completions: Vec<usize>,
    /// Number of readers, added up over all exposed sends.
    pub readers: usize,
    /// Number of bytes of scratch.
    pub scratch_bytes: usize,
    /// Indices of the steps, in an order in which they can run one after the other. See `in_order`.
    pub order: Vec<usize>,
    /// Number of bytes in the longest message, if the bytes of every step are contiguous.
    pub longest_bytes: Option<usize>,
}

impl Program {
    /// Creates the program for a single message of `bytes` bytes to or from `peer`. A send only
    /// reads its memory.
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

    /// Returns the ranks with which this rank exchanges messages. A rank may appear twice.
    pub fn peers(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        self.sends
            .iter()
            .chain(&self.receives)
            .map(|lane| lane.peer)
    }
}

/// Returns the steps in plan order, except that the sends of a round precede the receives of the
/// previous round, unless they depend on them. So a waiting rank has already sent its next
/// contribution, which reduces the time that its peers wait. `engine/progress.md` explains why no
/// rank waits forever.
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
