//! The one description of a call. The communicator makes it once; the cache of programs is asked
//! with it, its digest travels with every message, and errors print it.

use crate::dtype::Dtype;
use crate::error::Error;
use crate::op::ReduceOp;
use crate::plan::spec::{Algorithm, Collective};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Something that all ranks of the group do together.
    Collective(Collective),
    /// One message from one rank to another.
    SendRecv,
    /// A collective by which the ranks agree on the counts of an all-to-all.
    Agreement(Collective),
}

impl Kind {
    /// The name used on the command line and in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Collective(collective) => collective.name(),
            Kind::Agreement(_) => Collective::AllToAll.name(),
            Kind::SendRecv => "send-recv",
        }
    }
}

impl From<Collective> for Kind {
    fn from(collective: Collective) -> Self {
        Kind::Collective(collective)
    }
}

/// Where the elements of a call lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Medium {
    /// In the memory of the host.
    #[default]
    Host,
    /// In the memory of a device.
    Device,
}

/// How the blocks of a call lie, as far as all ranks must agree on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Split {
    /// As evenly as possible, or there are no blocks.
    #[default]
    Even,
    /// Blocks of equal length, the last ones shorter or empty.
    Ceil,
    /// By counts that the caller gives, which have this hash; in an all-to-all, of which no rank
    /// knows all counts, it is 0.
    Counts(u64),
}

impl Split {
    /// The split by these counts.
    #[must_use]
    pub fn by(counts: &[usize]) -> Self {
        Split::Counts(hash(counts.iter().copied()))
    }
}

/// A hash of `numbers`. Different ones have different hashes but for one chance in 2⁶⁴.
pub fn hash(numbers: impl IntoIterator<Item = usize>) -> u64 {
    numbers.into_iter().fold(0, |hash, number| {
        // The finalizer of splitmix64.
        let mut mixed = (hash ^ number as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}

/// A call, as far as all ranks must agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Call {
    /// The call's number in its group, from 1; 0 while it has none.
    pub sequence: u64,
    /// What is done.
    pub kind: Kind,
    /// Elements of the whole buffer; 0 in an all-to-all by counts, where no rank knows them.
    pub count: usize,
    /// How its blocks lie.
    pub split: Split,
    /// Type of the elements.
    pub dtype: Dtype,
    /// The operator, where the collective reduces.
    pub op: Option<ReduceOp>,
    /// The root, where the collective has one, and the receiver of a message; else 0.
    pub root: usize,
    /// The algorithm; `None` while it is the library's choice.
    pub algorithm: Option<Algorithm>,
    /// Pieces per block; 0 while they are the library's choice.
    pub pieces: usize,
    /// Where the elements lie.
    pub medium: Medium,
    /// What the two ends of a message call it; 0 in a collective.
    pub tag: u32,
}

impl Call {
    /// A call on `count` elements of f32, with root 0; a reduction sums. A barrier has no data: its
    /// one byte says that a rank has come.
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
                collective.reduces().then_some(ReduceOp::Sum),
            ),
        };
        Self {
            sequence: 0,
            kind: collective.into(),
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

    /// A barrier.
    #[must_use]
    pub fn barrier() -> Self {
        Self::new(Collective::Barrier, 1)
    }

    /// A message of `count` elements to rank `to`.
    #[must_use]
    pub fn message(count: usize, dtype: Dtype, to: usize) -> Self {
        Self {
            sequence: 0,
            kind: Kind::SendRecv,
            count,
            split: Split::Even,
            dtype,
            op: None,
            root: to,
            algorithm: Some(Algorithm::Flat),
            pieces: 1,
            medium: Medium::Host,
            tag: 0,
        }
    }

    /// The same, called `tag` by its two ends.
    #[must_use]
    pub fn tagged(self, tag: u32) -> Self {
        Self { tag, ..self }
    }

    /// The same on elements of `dtype`.
    #[must_use]
    pub fn dtype(self, dtype: Dtype) -> Self {
        Self { dtype, ..self }
    }

    /// The same with the operator `op`.
    #[must_use]
    pub fn op(self, op: ReduceOp) -> Self {
        Self {
            op: Some(op),
            ..self
        }
    }

    /// The same, from or to `root`.
    #[must_use]
    pub fn root(self, root: usize) -> Self {
        Self { root, ..self }
    }

    /// The same, by `algorithm`.
    #[must_use]
    pub fn by(self, algorithm: Algorithm) -> Self {
        Self {
            algorithm: Some(algorithm),
            ..self
        }
    }

    /// The same, as part of the agreement on the counts of an all-to-all.
    #[must_use]
    pub fn agreeing(self) -> Self {
        let collective = self.collective();
        Self {
            kind: collective.map_or(self.kind, Kind::Agreement),
            ..self
        }
    }

    /// The same under its number.
    #[must_use]
    pub fn numbered(self, sequence: u64) -> Self {
        Self { sequence, ..self }
    }

    /// A digest of everything but the sequence number (FNV-1a). Equal calls have equal digests;
    /// different ones differ but for one chance in four thousand million.
    #[must_use]
    pub fn digest(&self) -> u32 {
        let encoded = postcard::to_stdvec(&self.numbered(0));
        let bytes = encoded.expect("invariant: memory takes every call");
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        (hash ^ (hash >> 32)) as u32
    }

    /// The collective, unless the call is a send or a receive.
    #[must_use]
    pub fn collective(&self) -> Option<Collective> {
        match self.kind {
            Kind::Collective(collective) | Kind::Agreement(collective) => Some(collective),
            Kind::SendRecv => None,
        }
    }

    /// Whether this is a send or a receive: numbered for each directed pair of ranks.
    #[must_use]
    pub fn is_pair(&self) -> bool {
        self.kind == Kind::SendRecv
    }

    /// What a message consists of, and under which number it is.
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

    /// Whether `other` is the same call by other counts, which may have another sum.
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

    /// Whether two ranks alone know how much one of them sends the other.
    #[must_use]
    pub fn is_counted_by_pairs(&self) -> bool {
        let moves_blocks = self.collective().is_some_and(Collective::moves_blocks);
        moves_blocks && matches!(self.split, Split::Counts(_))
    }

    /// `error`, which was seen in this call.
    #[must_use]
    pub fn mark(&self, error: Error) -> Error {
        let collective = match self.kind {
            Kind::Agreement(_) => Some(Collective::AllToAll),
            _ => self.collective(),
        };
        error.with_call(collective, self.sequence)
    }

    /// The short name, such as `all-reduce #12`. A receive from any rank has no number before a
    /// message has come.
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
        let Self {
            sequence,
            kind,
            count,
            split,
            dtype,
            op,
            root,
            algorithm,
            pieces,
            medium,
            tag,
        } = self;
        if let Kind::Agreement(_) = kind {
            return write!(formatter, "{} by counts (agreeing on them)", self.name());
        }
        write!(formatter, "{} #{sequence} of ", kind.name())?;
        if !self.is_counted_by_pairs() {
            write!(formatter, "{count} ")?;
        }
        write!(formatter, "{dtype}")?;
        match split {
            Split::Even => {}
            Split::Ceil => write!(formatter, " in blocks rounded up")?,
            Split::Counts(_) => write!(formatter, " by counts")?,
        }
        let collective = self.collective();
        if let Some(op) = op.filter(|_| collective != Some(Collective::Barrier)) {
            write!(formatter, ", {op}")?;
        }
        let Some(collective) = collective else {
            write!(formatter, " to rank {root}")?;
            return match tag {
                0 => Ok(()),
                _ => write!(formatter, ", tag {tag}"),
            };
        };
        if collective.is_rooted() {
            write!(formatter, ", root {root}")?;
        }
        if let Some(algorithm) = algorithm {
            write!(formatter, ", by {algorithm}")?;
        }
        if *medium == Medium::Device {
            write!(formatter, " on devices")?;
        }
        if *pieces > 1 {
            write!(formatter, " in {pieces} pieces")?;
        }
        Ok(())
    }
}
