//! Describes a call. The communicator creates a description for each call. The description is the
//! key of the program cache, its digest travels with every message, and errors print it.

use crate::dtype::Dtype;
use crate::error::Error;
use crate::hash::fnv_1a;
use crate::op::ReduceOp;
use crate::plan::internal::spec::{moves_blocks, reduces};
use crate::plan::{Algorithm, Collective};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The operation that a call performs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// A collective of all ranks in the group.
    Collective(Collective),
    /// A message from one rank to another.
    SendRecv,
    /// A collective in which the ranks agree on the counts of an all-to-all.
    Agreement(Collective),
}

impl Kind {
    /// Returns the name that is used on the command line and in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Collective(collective) => collective.name(),
            Kind::Agreement(_) => Collective::AllToAll.name(),
            Kind::SendRecv => "send-recv",
        }
    }
}

/// The memory that holds the elements of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Medium {
    /// Host memory.
    #[default]
    Host,
    /// Device memory.
    Device,
}

/// The part of a buffer's division into blocks that all ranks must agree on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Split {
    /// Blocks whose lengths are as even as possible, or no blocks.
    #[default]
    Even,
    /// Blocks of equal length, except that the last blocks may be shorter or empty.
    Ceil,
    /// Blocks whose lengths the caller passes, with a hash of all lengths. In an all-to-all, the
    /// hash is 0 because no rank knows all lengths.
    Counts(u64),
}

impl Split {
    /// Returns the split for blocks of these lengths.
    #[must_use]
    pub fn by(counts: &[usize]) -> Self {
        Split::Counts(hash(counts.iter().copied()))
    }
}

/// Returns a hash of `numbers`. Two different sequences have the same hash with a probability of
/// 2⁻⁶⁴.
pub fn hash(numbers: impl IntoIterator<Item = usize>) -> u64 {
    numbers.into_iter().fold(0, |hash, number| {
        // The finalizer of splitmix64.
        let mut mixed = (hash ^ number as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}

/// The part of a call that all ranks must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Call {
    /// Sequence number of the call in its group, counted from 1; 0 until one is assigned.
    pub sequence: u64,
    /// Operation of the call.
    pub kind: Kind,
    /// Number of elements in the complete buffer; 0 in an all-to-all by counts, because no rank
    /// knows the number.
    pub count: usize,
    /// Division of the buffer into blocks.
    pub split: Split,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Operator of the call, if its collective reduces.
    pub op: Option<ReduceOp>,
    /// Root of a collective that has a root, or receiver of a message; otherwise 0.
    pub root: usize,
    /// The requested algorithm; `None` if the library chooses.
    pub algorithm: Option<Algorithm>,
    /// Requested number of pieces per block; 0 if the library chooses.
    pub pieces: usize,
    /// Memory that holds the elements.
    pub medium: Medium,
    /// Tag of a message; 0 in a collective.
    pub tag: u32,
}

impl Call {
    /// Creates a call on `count` elements of type f32, with root 0. If the collective reduces, its
    /// operator is the sum. A barrier has no data; each rank contributes one byte to show that it
    /// has arrived.
    ///
    /// ```
    /// use ringtree::Dtype;
    /// use ringtree::plan::{Algorithm, Collective};
    /// use ringtree::internal::protocol::call::Call;
    /// let call = Call::new(Collective::AllReduce, 1000).dtype(Dtype::F64).by(Algorithm::Ring);
    /// assert_eq!(call.numbered(2).to_string(), "all-reduce #2 of 1000 f64, sum, by ring");
    /// ```
    #[must_use]
    pub fn new(collective: Collective, count: usize) -> Self {
        let (count, dtype, op) = match collective {
            Collective::Barrier => (1, Dtype::U8, Some(ReduceOp::Bor)),
            _ => (
                count,
                Dtype::F32,
                reduces(collective).then_some(ReduceOp::Sum),
            ),
        };
        Self {
            sequence: 0,
            kind: Kind::Collective(collective),
            count,
            split: Split::Even,
            dtype,
            op,
            root: 0,
            algorithm: None,
            pieces: 0,
            medium: Medium::Host,
            tag: 0,
        }
    }

    /// Creates a barrier.
    #[must_use]
    pub fn barrier() -> Self {
        Self::new(Collective::Barrier, 1)
    }

    /// Creates the call for a message of `count` elements to rank `to`.
    #[must_use]
    pub fn message(count: usize, dtype: Dtype, to: usize) -> Self {
        // Like a broadcast, it has a root and no operator.
        Self {
            kind: Kind::SendRecv,
            algorithm: Some(Algorithm::Flat),
            pieces: 1,
            ..Self::new(Collective::Broadcast, count)
                .dtype(dtype)
                .root(to)
        }
    }

    /// Sets the tag of a message.
    #[must_use]
    pub fn tagged(self, tag: u32) -> Self {
        Self { tag, ..self }
    }

    /// Sets the type of the elements.
    #[must_use]
    pub fn dtype(self, dtype: Dtype) -> Self {
        Self { dtype, ..self }
    }

    /// Sets the operator.
    #[must_use]
    pub fn op(self, op: ReduceOp) -> Self {
        Self {
            op: Some(op),
            ..self
        }
    }

    /// Sets the root.
    #[must_use]
    pub fn root(self, root: usize) -> Self {
        Self { root, ..self }
    }

    /// Sets the algorithm.
    #[must_use]
    pub fn by(self, algorithm: Algorithm) -> Self {
        Self {
            algorithm: Some(algorithm),
            ..self
        }
    }

    /// Marks the call as the one that agrees on the counts of an all-to-all.
    #[must_use]
    pub fn agreeing(self) -> Self {
        let collective = self.collective();
        Self {
            kind: collective.map_or(self.kind, Kind::Agreement),
            ..self
        }
    }

    /// Sets the sequence number of the call.
    #[must_use]
    pub fn numbered(self, sequence: u64) -> Self {
        Self { sequence, ..self }
    }

    /// Returns a digest (FNV-1a) of all fields except the sequence number. Two different calls have
    /// the same digest with a probability of 2⁻³².
    #[must_use]
    pub fn digest(&self) -> u32 {
        let encoded = postcard::to_stdvec(&self.numbered(0));
        let bytes = encoded.expect("invariant: encoding to memory does not fail");
        let hash = fnv_1a(bytes);
        (hash ^ (hash >> 32)) as u32
    }

    /// Returns the collective, or `None` if the call is a send or a receive.
    #[must_use]
    pub fn collective(&self) -> Option<Collective> {
        match self.kind {
            Kind::Collective(collective) | Kind::Agreement(collective) => Some(collective),
            Kind::SendRecv => None,
        }
    }

    /// Returns `true` if the call is a send or a receive. These are numbered separately for each
    /// pair of sender and receiver.
    #[must_use]
    pub fn is_pair(&self) -> bool {
        self.kind == Kind::SendRecv
    }

    /// Returns the count, type, sequence number and tag of a message as text.
    #[must_use]
    pub fn payload(&self) -> String {
        let Self {
            count, dtype, tag, ..
        } = self;
        let tag = match tag {
            0 => String::new(),
            tag => format!(", tag {tag}"),
        };
        format!("{count} {dtype} as message #{}{tag}", self.sequence)
    }

    /// Returns `true` if `other` is the same call with different block lengths. The sum of the
    /// lengths may differ, too.
    #[must_use]
    pub fn differs_in_counts(&self, other: &Self) -> bool {
        let rest = |call: &Self| Self {
            count: 0,
            split: Split::Even,
            algorithm: None,
            pieces: 0,
            ..*call
        };
        let are_counted = matches!(
            (self.split, other.split),
            (Split::Counts(one), Split::Counts(other)) if one != other
        );
        are_counted && rest(self) == rest(other)
    }

    /// Returns `true` if the number of elements that one rank sends to another is known only to
    /// those two ranks.
    #[must_use]
    pub fn is_counted_by_pairs(&self) -> bool {
        let moves_blocks = self.collective().is_some_and(moves_blocks);
        moves_blocks && matches!(self.split, Split::Counts(_))
    }

    /// Records this call in `error`.
    #[must_use]
    pub fn mark(&self, error: Error) -> Error {
        let collective = match self.kind {
            Kind::Agreement(_) => Some(Collective::AllToAll),
            _ => self.collective(),
        };
        error.with_call(collective, self.sequence)
    }

    /// Returns the short name of the call, such as `all-reduce #12`. A receive from any rank has no
    /// sequence number until a message arrives.
    #[must_use]
    pub fn name(&self) -> String {
        if self.is_pair() && self.sequence == 0 {
            return "a receive from any rank".into();
        }
        format!("{} #{}", self.kind.name(), self.sequence)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Kind::Agreement(_) = self.kind {
            return write!(
                formatter,
                "{} by counts (agreeing on the counts)",
                self.name()
            );
        }
        write!(formatter, "{} #{} of ", self.kind.name(), self.sequence)?;
        if !self.is_counted_by_pairs() {
            write!(formatter, "{} ", self.count)?;
        }
        write!(formatter, "{}", self.dtype)?;
        match self.split {
            Split::Even => {}
            Split::Ceil => write!(formatter, " in blocks rounded up")?,
            Split::Counts(_) => write!(formatter, " by counts")?,
        }
        let collective = self.collective();
        if let Some(op) = self.op.filter(|_| collective != Some(Collective::Barrier)) {
            write!(formatter, ", {op}")?;
        }
        let Some(collective) = collective else {
            write!(formatter, " to rank {}", self.root)?;
            return match self.tag {
                0 => Ok(()),
                tag => write!(formatter, ", tag {tag}"),
            };
        };
        if collective.is_rooted() {
            write!(formatter, ", root {}", self.root)?;
        }
        if let Some(algorithm) = self.algorithm {
            write!(formatter, ", by {algorithm}")?;
        }
        if self.medium == Medium::Device {
            write!(formatter, " on devices")?;
        }
        if self.pieces > 1 {
            write!(formatter, " in {} pieces", self.pieces)?;
        }
        Ok(())
    }
}
