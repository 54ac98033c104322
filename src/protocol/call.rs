//! What a rank says it is doing: the full description of a call and its digest.

use crate::dtype::Dtype;
use crate::op::ReduceOp;
use std::borrow::Cow;
use std::fmt;

/// A call, as far as all ranks must agree on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The call's number in its group, from 1.
    pub sequence: u64,
    /// The collective's name.
    pub collective: Cow<'static, str>,
    /// The algorithm's name.
    pub algorithm: Cow<'static, str>,
    /// Pieces per block.
    pub pieces: u32,
    /// Elements of the whole buffer.
    pub count: u64,
    /// Type of the elements.
    pub dtype: Dtype,
    /// The operator, where the collective reduces.
    pub op: Option<ReduceOp>,
    /// The root, where the collective has one.
    pub root: Option<u32>,
}

/// The name of a message from one rank to another, in the place of a collective's.
pub const PAIR: &str = "send-recv";

/// The longest name a decoded call may carry.
const NAME_BYTES_MAX: usize = 32;
const NONE: u32 = u32::MAX;

impl Call {
    /// A digest of everything but the sequence number (FNV-1a). Equal calls have equal digests;
    /// different ones differ but for one chance in four thousand million.
    #[must_use]
    pub fn digest(&self) -> u32 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut add = |bytes: &[u8]| {
            for byte in bytes {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        add(self.collective.as_bytes());
        add(&[0]);
        add(self.algorithm.as_bytes());
        add(&self.tail());
        (hash ^ (hash >> 32)) as u32
    }

    /// The fields of fixed size after the sequence number.
    fn tail(&self) -> [u8; 18] {
        let mut bytes = [0; 18];
        bytes[..4].copy_from_slice(&self.pieces.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.count.to_le_bytes());
        bytes[12] = self.dtype.code();
        bytes[13] = self.op.map_or(u8::MAX, ReduceOp::code);
        bytes[14..].copy_from_slice(&self.root.unwrap_or(NONE).to_le_bytes());
        bytes
    }

    /// The call as bytes, for a control message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.sequence.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.tail());
        for name in [&self.collective, &self.algorithm] {
            let length = name.len().min(NAME_BYTES_MAX);
            // At most 32.
            bytes.push(length as u8);
            bytes.extend_from_slice(&name.as_bytes()[..length]);
        }
        bytes
    }

    /// The call in `bytes`; `None` if they are no call.
    ///
    /// ```
    /// use ringtree::protocol::call::Call;
    /// let call = Call {
    ///     sequence: 3, collective: "barrier".into(), algorithm: "flat".into(), pieces: 1,
    ///     count: 1, dtype: ringtree::Dtype::U8, op: None, root: None,
    /// };
    /// assert_eq!(Call::decode(&call.encode()), Some(call));
    /// ```
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (sequence, rest) = bytes.split_first_chunk::<8>()?;
        let (pieces, rest) = rest.split_first_chunk::<4>()?;
        let (count, rest) = rest.split_first_chunk::<8>()?;
        let ([dtype, op], rest) = rest.split_first_chunk::<2>()?;
        let (root, mut rest) = rest.split_first_chunk::<4>()?;
        let mut name = || {
            let (length, after) = rest.split_first()?;
            let (name, after) = after.split_at_checked(usize::from(*length))?;
            rest = after;
            let name = std::str::from_utf8(name).ok()?;
            (name.len() <= NAME_BYTES_MAX).then(|| Cow::Owned(name.to_owned()))
        };
        let (collective, algorithm) = (name()?, name()?);
        let root = u32::from_le_bytes(*root);
        Some(Self {
            sequence: u64::from_le_bytes(*sequence),
            collective,
            algorithm,
            pieces: u32::from_le_bytes(*pieces),
            count: u64::from_le_bytes(*count),
            dtype: Dtype::from_code(*dtype)?,
            op: if *op == u8::MAX {
                None
            } else {
                Some(ReduceOp::from_code(*op)?)
            },
            root: (root != NONE).then_some(root),
        })
    }

    /// Whether this is a send or a receive: numbered for each directed pair of ranks, and `root`
    /// is who receives.
    #[must_use]
    pub fn is_pair(&self) -> bool {
        self.collective == PAIR
    }

    /// The short name, such as `all-reduce #12`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{} #{}", self.collective, self.sequence)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            sequence,
            collective,
            algorithm,
            pieces,
            count,
            dtype,
            op,
            root,
        } = self;
        write!(formatter, "{collective} #{sequence} of {count} {dtype}")?;
        if let Some(op) = op {
            write!(formatter, ", {op}")?;
        }
        if let Some(root) = root {
            write!(formatter, ", root {root}")?;
        }
        write!(formatter, ", by {algorithm}")?;
        if *pieces > 1 {
            write!(formatter, " in {pieces} pieces")?;
        }
        Ok(())
    }
}
