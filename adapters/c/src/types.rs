//! The types and constants that C sees, by the names that it knows them by.

#![allow(non_camel_case_types, unreachable_pub)]
#![allow(dead_code, reason = "some of them are C's alone")]

use ringtree::{Dtype, Error, ErrorKind, ReduceOp, Result, UniqueId};
use std::ffi::{c_char, c_int};

/// The version that this header is of; ringtree_version() says which library is loaded.
pub const RINGTREE_VERSION_MAJOR: c_int = 0;
/// See RINGTREE_VERSION_MAJOR.
pub const RINGTREE_VERSION_MINOR: c_int = 1;
/// See RINGTREE_VERSION_MAJOR.
pub const RINGTREE_VERSION_PATCH: c_int = 0;
/// The length of a ringtree_unique_id_t.
pub const RINGTREE_UNIQUE_ID_BYTES: usize = 80;
/// The colour of a rank that is to be in none of the groups of a split.
pub const RINGTREE_SPLIT_NOCOLOR: c_int = -1;

const _: () = assert!(RINGTREE_UNIQUE_ID_BYTES == UniqueId::BYTES);

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum ringtree_result_t {
    /// It did what it should.
    RINGTREE_SUCCESS = 0,
    /// The call itself was wrong, and nothing was sent. Correct the call; the communicator is fine.
    RINGTREE_USAGE = 1,
    /// A setting is missing or malformed. Correct the setting that the message names.
    RINGTREE_CONFIGURATION = 2,
    /// The ranks could not be brought together. The message names what to check; start again.
    RINGTREE_JOIN = 3,
    /// Ranks made different calls. All ranks make the calls of a communicator in the same order.
    RINGTREE_MISMATCH = 4,
    /// A rank died, left while another needed it, or aborted. Start again from a checkpoint.
    RINGTREE_PEER_LOST = 5,
    /// A call did not end in time. Look at the ranks that the message names.
    RINGTREE_DEADLINE = 6,
    /// A peer sent bytes that belong to no call. Report it.
    RINGTREE_PROTOCOL = 7,
    /// The system refused something. The message names what, and why.
    RINGTREE_SYSTEM = 8,
}

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum ringtree_dtype_t {
    /// int8_t
    RINGTREE_I8 = 0,
    /// uint8_t, and any byte that is only moved
    RINGTREE_U8 = 1,
    /// int16_t
    RINGTREE_I16 = 2,
    /// uint16_t
    RINGTREE_U16 = 3,
    /// int32_t
    RINGTREE_I32 = 4,
    /// uint32_t
    RINGTREE_U32 = 5,
    /// int64_t
    RINGTREE_I64 = 6,
    /// uint64_t
    RINGTREE_U64 = 7,
    /// IEEE 754 half precision
    RINGTREE_F16 = 8,
    /// bfloat16
    RINGTREE_BF16 = 9,
    /// float
    RINGTREE_F32 = 10,
    /// double
    RINGTREE_F64 = 11,
}

/// How contributions are combined, element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum ringtree_op_t {
    /// The sum; integers wrap.
    RINGTREE_SUM = 0,
    /// The product; integers wrap.
    RINGTREE_PROD = 1,
    /// The smallest.
    RINGTREE_MIN = 2,
    /// The largest.
    RINGTREE_MAX = 3,
    /// The mean; integers truncate.
    RINGTREE_AVG = 4,
    /// Bitwise and; integers only.
    RINGTREE_BAND = 5,
    /// Bitwise or; integers only.
    RINGTREE_BOR = 6,
    /// Bitwise exclusive or; integers only.
    RINGTREE_BXOR = 7,
}

/// A `ringtree_dtype_t` as it comes from C, where it may be any number.
pub type dtype_from_c = c_int;
/// A `ringtree_op_t` as it comes from C.
pub type op_from_c = c_int;
/// A `ringtree_result_t` as it comes from C.
pub type result_from_c = c_int;

/// A group of ranks that work together.
pub struct ringtree_comm_t(());

/// A call that goes on while the program does something else.
pub struct ringtree_work_t(());

/// All that the ranks of one world need to find each other, and no stranger: an address and a
/// secret. A process that has it can join as any rank, so hand it on by private means.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ringtree_unique_id_t {
    /// The id; the secret is among them.
    pub bytes: [u8; RINGTREE_UNIQUE_ID_BYTES],
}

/// What is known of an error, besides its line.
#[derive(Debug)]
#[repr(C)]
pub struct ringtree_error_t {
    /// What kind it is.
    pub result: ringtree_result_t,
    /// The rank that saw it, or -1.
    pub rank: c_int,
    /// The rank that it is about, such as the one that died, or -1.
    pub peer: c_int,
    /// The number of ranks in `missing`.
    pub missing_count: c_int,
    /// The ranks that hold up what did not end in time.
    pub missing: *const c_int,
    /// The collective in which it happened, such as "all-reduce"; NULL for a message, and where it
    /// is not known.
    pub operation: *const c_char,
    /// The number of that call, from 1, or 0.
    pub sequence: u64,
    /// How long it had been under way in milliseconds, where it ran out of time, or 0.
    pub elapsed_ms: u64,
    /// One line for people, which names all of the above, the cause and what to do next.
    pub message: *const c_char,
}

impl ringtree_result_t {
    /// All of them, by their numbers.
    pub(crate) const ALL: [(Self, &'static std::ffi::CStr); 9] = [
        (Self::RINGTREE_SUCCESS, c"success"),
        (Self::RINGTREE_USAGE, c"wrong usage"),
        (Self::RINGTREE_CONFIGURATION, c"wrong configuration"),
        (Self::RINGTREE_JOIN, c"the ranks did not come together"),
        (Self::RINGTREE_MISMATCH, c"the ranks made different calls"),
        (Self::RINGTREE_PEER_LOST, c"a rank is lost"),
        (Self::RINGTREE_DEADLINE, c"the deadline has passed"),
        (Self::RINGTREE_PROTOCOL, c"a peer broke the protocol"),
        (Self::RINGTREE_SYSTEM, c"the system refused something"),
    ];

    pub(crate) fn of(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Usage => Self::RINGTREE_USAGE,
            ErrorKind::Configuration => Self::RINGTREE_CONFIGURATION,
            ErrorKind::Join => Self::RINGTREE_JOIN,
            ErrorKind::Mismatch => Self::RINGTREE_MISMATCH,
            ErrorKind::PeerLost => Self::RINGTREE_PEER_LOST,
            ErrorKind::Deadline => Self::RINGTREE_DEADLINE,
            ErrorKind::Protocol => Self::RINGTREE_PROTOCOL,
            _ => Self::RINGTREE_SYSTEM,
        }
    }
}

/// # Errors
/// [`Error::usage`]: no type has this number.
pub(crate) fn dtype(number: dtype_from_c) -> Result<Dtype> {
    let found = u8::try_from(number).ok().and_then(Dtype::from_code);
    found.ok_or_else(|| Error::usage(format!("{number} is no ringtree_dtype_t")))
}

/// # Errors
/// [`Error::usage`]: no operator has this number.
pub(crate) fn op(number: op_from_c) -> Result<ReduceOp> {
    let found = usize::try_from(number).ok();
    let found = found.and_then(|at| ReduceOp::ALL.get(at).copied());
    found.ok_or_else(|| Error::usage(format!("{number} is no ringtree_op_t")))
}

/// The number of a rank.
///
/// # Errors
/// [`Error::usage`]: it is negative.
pub(crate) fn rank(what: &str, number: c_int) -> Result<usize> {
    let negative = |_| Error::usage(format!("{what} {number} is no rank: they count from 0"));
    usize::try_from(number).map_err(negative)
}

/// A rank, or a number of them, for C.
pub(crate) fn number(of: usize) -> c_int {
    c_int::try_from(of).unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rust's spelling of C's name.
    fn name(of: impl std::fmt::Debug) -> String {
        let name = format!("{of:?}");
        name.strip_prefix("RINGTREE_").unwrap().to_lowercase()
    }

    #[test]
    fn numbers_and_names_are_the_librarys() {
        use ringtree_dtype_t::*;
        use ringtree_op_t::*;
        let dtypes = [
            RINGTREE_I8,
            RINGTREE_U8,
            RINGTREE_I16,
            RINGTREE_U16,
            RINGTREE_I32,
            RINGTREE_U32,
            RINGTREE_I64,
            RINGTREE_U64,
            RINGTREE_F16,
            RINGTREE_BF16,
            RINGTREE_F32,
            RINGTREE_F64,
        ];
        assert_eq!(dtypes.len(), Dtype::ALL.len());
        for one in dtypes {
            assert_eq!(dtype(one as c_int).unwrap().name(), name(one));
        }
        let ops = [
            RINGTREE_SUM,
            RINGTREE_PROD,
            RINGTREE_MIN,
            RINGTREE_MAX,
            RINGTREE_AVG,
            RINGTREE_BAND,
            RINGTREE_BOR,
            RINGTREE_BXOR,
        ];
        assert_eq!(ops.len(), ReduceOp::ALL.len());
        for one in ops {
            assert_eq!(op(one as c_int).unwrap().name(), name(one));
        }
        for wrong in [-1, 12, 256 + 10, c_int::MIN, c_int::MAX] {
            assert!(dtype(wrong).unwrap_err().is_usage() && op(wrong).unwrap_err().is_usage());
        }
    }

    #[test]
    fn results_stand_at_their_numbers_and_the_version_is_the_packages() {
        for (at, (result, _)) in ringtree_result_t::ALL.into_iter().enumerate() {
            assert_eq!(result as usize, at);
        }
        let version = [
            RINGTREE_VERSION_MAJOR,
            RINGTREE_VERSION_MINOR,
            RINGTREE_VERSION_PATCH,
        ];
        let version = version.map(|part| part.to_string()).join(".");
        assert_eq!(version, env!("CARGO_PKG_VERSION"));
    }
}
