//! Converts errors to their C representation and keeps each thread's last error.

use crate::types::{number, ringtree_error_t, ringtree_result_t};
use ringtree::{Error, Result};
use ringtree_foreign::catch_panic;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::ptr::{from_ref, null};

/// An error in C layout, together with the memory that its pointers refer to.
struct Told {
    fields: Box<ringtree_error_t>,
    _line: CString,
    _operation: Option<CString>,
    _missing: Vec<c_int>,
}

thread_local! {
    static LAST: RefCell<Option<Told>> = const { RefCell::new(None) };
}

impl Told {
    fn new(error: &Error) -> Self {
        // The line has no control characters, so this cannot fail.
        let line = CString::new(error.to_string()).unwrap_or_default();
        let operation = error.collective().map(|one| one.name());
        let operation = operation.and_then(|name| CString::new(name).ok());
        let missing: Vec<c_int> = error.missing().iter().map(|rank| number(*rank)).collect();
        let rank = |rank: Option<usize>| rank.map_or(-1, number);
        let elapsed = error.elapsed().map_or(0, |time| time.as_millis());
        let fields = ringtree_error_t {
            result: ringtree_result_t::of(error),
            rank: rank(error.rank()),
            peer: rank(error.peer()),
            missing_count: number(missing.len()),
            missing: missing.first().map_or(null(), from_ref),
            operation: operation.as_ref().map_or(null(), |name| name.as_ptr()),
            sequence: error.sequence().unwrap_or(0),
            elapsed_ms: u64::try_from(elapsed).unwrap_or(u64::MAX),
            message: line.as_ptr(),
            missing_total: number(error.missing_count()),
        };
        Self {
            fields: Box::new(fields),
            _line: line,
            _operation: operation,
            _missing: missing,
        }
    }
}

/// Runs the body of an exported function and returns its result. If it fails, stores the error as
/// this thread's last error.
pub(crate) fn answer(act: impl FnOnce() -> Result<()>) -> ringtree_result_t {
    let Err(error) = catch_panic(act) else {
        return ringtree_result_t::RINGTREE_SUCCESS;
    };
    record(&error)
}

/// Stores `error` as this thread's last error, and returns its result.
pub(crate) fn record(error: &Error) -> ringtree_result_t {
    let told = Told::new(error);
    let result = told.fields.result;
    // A thread that is exiting may have already destroyed its `LAST`.
    let _ = LAST.try_with(|last| last.replace(Some(told)));
    result
}

/// Returns this thread's last error, or null if no call has failed.
pub(crate) fn last() -> *const ringtree_error_t {
    let look = |last: &RefCell<Option<Told>>| match &*last.borrow() {
        Some(told) => from_ref(&*told.fields),
        None => null(),
    };
    LAST.try_with(look).unwrap_or(null())
}

/// Returns the line that describes this thread's last error, or an empty string if no call has
/// failed.
pub(crate) fn last_line() -> *const c_char {
    let look = |last: &RefCell<Option<Told>>| match &*last.borrow() {
        Some(told) => told.fields.message,
        None => c"".as_ptr(),
    };
    LAST.try_with(look).unwrap_or(c"".as_ptr())
}
