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
}

impl Kind {
    /// The name used on the command line and in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Collective(collective) => collective.name(),
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
    /// By counts that the caller gives.
    Counts,
}

/// The ranks without which a call cannot end on a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Needs {
    /// Each of the others.
    All,
    /// This one, and maybe others.
    Rank(usize),
    /// That depends on what the links hold, or on the lengths of blocks.
    Unknown,
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
    /// use ringtree::protocol::call::Call;
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
            Kind::Collective(collective) => Some(collective),
            Kind::SendRecv => None,
        }
    }

    /// Whether this is a send or a receive: numbered for each directed pair of ranks.
    #[must_use]
    pub fn is_pair(&self) -> bool {
        self.kind == Kind::SendRecv
    }

    /// The ranks without which the collective cannot end on `rank` of `ranks`, whatever else has
    /// come: it needs something from them that they cannot have sent before they make the call.
    /// A rank that only sends needs none, because links hold some of what is sent.
    #[must_use]
    pub fn needs(&self, rank: usize, ranks: usize) -> Needs {
        let is_root = rank == self.root;
        // Without that, some blocks may be empty.
        let has_all_blocks = self.split == Split::Even && self.count >= ranks;
        match self.collective() {
            _ if self.medium == Medium::Device => Needs::Unknown,
            Some(Collective::AllReduce | Collective::Barrier) => Needs::All,
            Some(Collective::Broadcast | Collective::Scatter) if !is_root => Needs::Rank(self.root),
            Some(Collective::Reduce) if is_root => Needs::All,
            Some(Collective::Gather) if is_root && has_all_blocks => Needs::All,
            Some(Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll)
                if has_all_blocks =>
            {
                Needs::All
            }
            _ => Needs::Unknown,
        }
    }

    /// Whether two ranks alone know how much one of them sends the other.
    #[must_use]
    pub fn is_counted_by_pairs(&self) -> bool {
        self.split == Split::Counts && self.collective().is_some_and(Collective::moves_blocks)
    }

    /// `error`, which was seen in this call.
    #[must_use]
    pub fn mark(&self, error: Error) -> Error {
        error.with_call(self.collective(), self.sequence)
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
        write!(formatter, "{} #{sequence} of ", kind.name())?;
        if !self.is_counted_by_pairs() {
            write!(formatter, "{count} ")?;
        }
        write!(formatter, "{dtype}")?;
        match split {
            Split::Even => {}
            Split::Ceil => write!(formatter, " in blocks rounded up")?,
            Split::Counts => write!(formatter, " by counts")?,
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
