//! Defines the header's types and constants under their C names.

#![allow(non_camel_case_types, unreachable_pub)]
#![allow(dead_code, reason = "some of them are used only from C")]

use ringtree::comm::CallStats;
use ringtree::start::UniqueId;
use ringtree::{Dtype, Error, ErrorKind, ReduceOp, Result};
use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};

/// Length of a ringtree_unique_id_t, in bytes.
pub const RINGTREE_UNIQUE_ID_BYTES: usize = 80;

const _: () = assert!(RINGTREE_UNIQUE_ID_BYTES == UniqueId::BYTES);

/// `RINGTREE_SPLIT_NOCOLOR` of `macros.h`.
pub(crate) const RINGTREE_SPLIT_NOCOLOR: c_int = -1;
/// `RINGTREE_UNSET` of `macros.h`.
pub(crate) const RINGTREE_UNSET: c_int = -1;

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum ringtree_result_t {
    /// The call succeeded.
    RINGTREE_SUCCESS = 0,
    /// The call was invalid, and nothing was sent. Correct the program. The communicator remains
    /// usable.
    RINGTREE_USAGE = 1,
    /// A setting is missing or malformed. Correct the setting that the message names.
    RINGTREE_CONFIGURATION = 2,
    /// The ranks could not be connected. Check the cause that the message names, and then restart
    /// the job.
    RINGTREE_JOIN = 3,
    /// Different ranks made different calls. Make the calls on a communicator in the same order on
    /// all ranks.
    RINGTREE_MISMATCH = 4,
    /// A rank died, left while another rank still needed it, or aborted. Restart the job from a
    /// checkpoint.
    RINGTREE_PEER_LOST = 5,
    /// A call did not complete within its timeout. Check the ranks that the message names.
    RINGTREE_DEADLINE = 6,
    /// A peer sent data that does not belong to any call. Check that all ranks are running the same
    /// build. If they are, report a bug.
    RINGTREE_PROTOCOL = 7,
    /// Something that the call needs is unavailable: in most cases, the operating system refused a
    /// request. Errors that fit no other kind have this result too. The message names the cause.
    RINGTREE_SYSTEM = 8,
}

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum ringtree_dtype_t {
    /// int8_t
    RINGTREE_I8 = 0,
    /// uint8_t, or raw bytes of any type for calls that only move data
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

/// The operator that combines the ranks' contributions, element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum ringtree_op_t {
    /// The sum. Integers wrap around on overflow.
    RINGTREE_SUM = 0,
    /// The product. Integers wrap around on overflow.
    RINGTREE_PROD = 1,
    /// The minimum.
    RINGTREE_MIN = 2,
    /// The maximum.
    RINGTREE_MAX = 3,
    /// The mean. Integer sums wrap around on overflow, and the quotient is truncated.
    RINGTREE_AVG = 4,
    /// Bitwise AND, for integers only.
    RINGTREE_BAND = 5,
    /// Bitwise OR, for integers only.
    RINGTREE_BOR = 6,
    /// Bitwise XOR, for integers only.
    RINGTREE_BXOR = 7,
}

/// A `ringtree_dtype_t` from C, which can be any number.
pub type dtype_from_c = c_int;
/// A `ringtree_op_t` from C, which can be any number.
pub type op_from_c = c_int;
/// A `ringtree_result_t` from C, which can be any number.
pub type result_from_c = c_int;

/// A communicator, which is a group of ranks that exchange data with each other.
pub struct ringtree_comm_t(());

/// A call that has been started and runs in the background.
pub struct ringtree_work_t(());

/// The address and the secret that the ranks of a world use to find each other. Any process that
/// has the ID can join as any rank, so send the ID only over private channels.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ringtree_unique_id_t {
    /// The bytes of the ID, including the secret.
    pub bytes: [u8; RINGTREE_UNIQUE_ID_BYTES],
}

/// The settings of a new communicator, for ringtree_comm_init_config().
///
/// Initialize it with RINGTREE_CONFIG_INITIALIZER, and then change fields. Fields that a program
/// does not change have the value that the environment specifies, or a default. Fields that the
/// program sets take precedence over the environment. Texts need to be valid only until the
/// function returns. A later version may add fields at the end.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ringtree_config_t<'a> {
    /// Size of the structure that the program was compiled with. RINGTREE_CONFIG_INITIALIZER sets
    /// it.
    pub size: usize,
    /// Name of the communicator in errors and warnings.
    pub name: *const c_char,
    /// Name or address of the network interface for data connections, like RINGTREE_INTERFACE.
    pub interface: *const c_char,
    /// Name of the site that this host belongs to, like RINGTREE_SITE.
    pub site: *const c_char,
    /// "auto", "tcp" or "shm", like RINGTREE_TRANSPORT. Must be the same on all ranks.
    pub transport: *const c_char,
    /// The "host:port" at which rank 0 listens.
    pub rendezvous: *const c_char,
    /// An ID from ringtree_get_unique_id(). Replaces `rendezvous` and `secret`.
    pub id: Option<&'a ringtree_unique_id_t>,
    /// The secret of the job as 64 hexadecimal digits, like RINGTREE_SECRET.
    pub secret: *const c_char,
    /// Timeout for startup and for each call, in milliseconds. If the value is 0, calls have no
    /// timeout, and startup has the default one. See ringtree_comm_set_timeout_ms().
    pub timeout_ms: i64,
    /// Time after which a waiting call prints a warning, in milliseconds. The value 0 disables
    /// warnings. See RINGTREE_STALL_WARNING_S.
    pub stall_warning_ms: i64,
    /// Number of ranks. Must be set if `rank` is set.
    pub world_size: c_int,
    /// Rank of this process. If neither `rank` nor `world_size` is set, both come from the
    /// launcher. A program without a launcher then gets a communicator that consists of one rank,
    /// or RINGTREE_CONFIGURATION if `id` or `rendezvous` is set.
    pub rank: c_int,
    /// 1 to compare the calls of all ranks before they start, like RINGTREE_CHECK=calls. Must be
    /// the same on all ranks.
    pub check_calls: c_int,
    /// 1 for sums that do not depend on the algorithm, like RINGTREE_REPRODUCIBLE=1. Must be the
    /// same on all ranks.
    pub reproducible: c_int,
}

/// A configuration must not end in padding. Otherwise, a field that a later version adds could
/// occupy the padding, which older programs do not initialize.
const _: () = {
    type Config = ringtree_config_t<'static>;
    let end = std::mem::offset_of!(Config, reproducible) + size_of::<c_int>();
    assert!(size_of::<Config>() == end);
};

/// The count of one kind of call over one transport.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ringtree_call_stats_t {
    /// Name of the collective, such as "all-reduce", or "send" or "recv". The string is static.
    pub call: *const c_char,
    /// Transport of the call's messages: "shm", "tcp", "shm+tcp" or "none". The string is static.
    pub transport: *const c_char,
    /// Number of calls that were made.
    pub calls: u64,
    /// Number of bytes in the buffers of these calls. If a call has two buffers, the larger one
    /// counts.
    pub bytes: u64,
    /// Number of nanoseconds for which threads waited for these calls.
    pub waited_ns: u64,
}

impl ringtree_call_stats_t {
    pub(crate) fn of(stats: &CallStats) -> Self {
        Self {
            call: static_name(stats.call),
            transport: static_name(stats.transport),
            calls: stats.calls,
            bytes: stats.bytes,
            waited_ns: u64::try_from(stats.waited.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

/// Returns a static text for C with the contents of `name`. There are only a few different names.
fn static_name(name: &'static str) -> *const c_char {
    static NAMES: Mutex<BTreeMap<&str, CString>> = Mutex::new(BTreeMap::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let text = || CString::new(name).unwrap_or_default();
    // The text stays at its address, because an entry is never removed.
    names.entry(name).or_insert_with(text).as_ptr()
}

/// A function that receives an event. `level` is a ringtree_level_t. `rank` is the rank that the
/// event concerns, or -1. `text` is one line, and is valid only during the call. `context` is the
/// value that was passed to ringtree_set_log().
pub type ringtree_log_t =
    Option<extern "C" fn(level: c_int, rank: c_int, text: *const c_char, context: *mut c_void)>;

/// The level of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum ringtree_level_t {
    /// An error.
    RINGTREE_LEVEL_ERROR = 1,
    /// Something that needs attention, such as a call that has been waiting for a long time.
    RINGTREE_LEVEL_WARN = 2,
    /// Something that happens seldom, such as a join.
    RINGTREE_LEVEL_INFO = 3,
    /// Details, such as the algorithm of each class of calls.
    RINGTREE_LEVEL_DEBUG = 4,
}

/// The fields and the message of an error.
#[derive(Debug)]
#[repr(C)]
pub struct ringtree_error_t {
    /// The kind of the error.
    pub result: ringtree_result_t,
    /// The rank that detected the error, or -1 if it is not known.
    pub rank: c_int,
    /// The rank that the error concerns, such as a rank that died, or -1 if there is none.
    pub peer: c_int,
    /// Number of ranks in `missing`.
    pub missing_count: c_int,
    /// The ranks that were holding up the call that timed out.
    pub missing: *const c_int,
    /// Name of the collective in which the error occurred, such as "all-reduce". NULL if the error
    /// occurred in a send or receive, or if the collective is not known.
    pub operation: *const c_char,
    /// Number of the call in which the error occurred, counted from 1, or 0 if there is no such
    /// number.
    pub sequence: u64,
    /// Number of milliseconds for which the call was in flight before it timed out, or 0 if it did
    /// not time out.
    pub elapsed_ms: u64,
    /// A human-readable line that contains all of the above, as well as the cause and the next
    /// step.
    pub message: *const c_char,
    /// Number of ranks that were known to hold up the call. `missing` contains the first of them.
    pub missing_total: c_int,
}

impl ringtree_result_t {
    /// All results with their descriptions, indexed by number.
    pub(crate) const ALL: [(Self, &'static std::ffi::CStr); 9] = [
        (Self::RINGTREE_SUCCESS, c"success"),
        (Self::RINGTREE_USAGE, c"invalid call"),
        (Self::RINGTREE_CONFIGURATION, c"invalid configuration"),
        (Self::RINGTREE_JOIN, c"the ranks could not connect"),
        (Self::RINGTREE_MISMATCH, c"mismatched calls"),
        (Self::RINGTREE_PEER_LOST, c"a rank was lost"),
        (Self::RINGTREE_DEADLINE, c"a call timed out"),
        (Self::RINGTREE_PROTOCOL, c"a peer sent invalid data"),
        (
            Self::RINGTREE_SYSTEM,
            c"something that the call needs is unavailable",
        ),
    ];

    /// Returns the result for the kind of `error`.
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

/// Returns the element type with this number.
///
/// # Errors
/// Returns [`ErrorKind::Usage`] if there is no type with this number.
pub(crate) fn dtype(number: dtype_from_c) -> Result<Dtype> {
    let found = usize::try_from(number)
        .ok()
        .and_then(|at| Dtype::ALL.get(at).copied());
    found.ok_or_else(|| {
        Error::new(
            ErrorKind::Usage,
            format!("{number} is not a ringtree_dtype_t"),
        )
    })
}

/// Returns the operator with this number.
///
/// # Errors
/// Returns [`ErrorKind::Usage`] if there is no operator with this number.
pub(crate) fn op(number: op_from_c) -> Result<ReduceOp> {
    let found = usize::try_from(number).ok();
    let found = found.and_then(|at| ReduceOp::ALL.get(at).copied());
    found.ok_or_else(|| Error::new(ErrorKind::Usage, format!("{number} is not a ringtree_op_t")))
}

/// Converts a rank from C.
///
/// # Errors
/// Returns [`ErrorKind::Usage`] if the number is negative.
pub(crate) fn rank(what: &str, number: c_int) -> Result<usize> {
    let negative = |_| {
        Error::new(
            ErrorKind::Usage,
            format!("{what} {number} is out of range: ranks start at 0"),
        )
    };
    usize::try_from(number).map_err(negative)
}

/// Converts a rank or a number of ranks for C.
pub(crate) fn number(of: usize) -> c_int {
    c_int::try_from(of).unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the Rust name of a C constant.
    fn name(of: impl std::fmt::Debug) -> String {
        let name = format!("{of:?}");
        name.strip_prefix("RINGTREE_").unwrap().to_lowercase()
    }

    #[test]
    fn types_and_operators_match_the_library() {
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
            assert!(
                dtype(wrong).unwrap_err().kind() == ErrorKind::Usage
                    && op(wrong).unwrap_err().kind() == ErrorKind::Usage
            );
        }
    }

    #[test]
    fn results_are_indexed_by_their_number() {
        for (at, (result, _)) in ringtree_result_t::ALL.into_iter().enumerate() {
            assert_eq!(result as usize, at);
        }
    }
}
