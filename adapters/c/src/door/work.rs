//! Exports the functions that wait for started calls and free their handles.

use crate::error::answer;
use crate::handles::WORK;
use crate::memory::{as_pointer, communicator, handles, place};
use crate::types::{number, ringtree_comm_t, ringtree_result_t, ringtree_work_t};
use ringtree::{Communicator, Error, ErrorKind, Result};
use ringtree_foreign::{Operation, Pending};
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

/// Starts a call with `start` and stores its handle in `out`. Stores null on failure.
pub(super) fn begin(
    comm: *mut ringtree_comm_t,
    out: Option<&mut MaybeUninit<*mut ringtree_work_t>>,
    start: impl FnOnce(&Communicator) -> Result<Box<dyn Operation>>,
) -> ringtree_result_t {
    answer(|| {
        let out = place("work", out)?.write(null_mut());
        let started = start(&*communicator(comm)?)?;
        *out = as_pointer(WORK.insert(Pending::from_operation(started)));
        Ok(())
    })
}

/// Returns the calls that `works` refers to, with their indices. Skips null handles.
fn calls(works: &[usize]) -> Result<Vec<(usize, Arc<Pending>)>> {
    let used = works.iter().enumerate().filter(|(_, work)| **work != 0);
    used.map(|(at, work)| Ok((at, WORK.own(*work)?))).collect()
}

/// Converts a limit from C. A negative number means no limit.
fn limit(limit_ms: i64) -> Option<Duration> {
    u64::try_from(limit_ms).ok().map(Duration::from_millis)
}

/// Waits until the call that `work` represents has completed, and returns the result of that call.
/// Any thread may call this function, even repeatedly. Corresponds to MPI_Wait and, if called for
/// each of several calls, to MPI_Waitall.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_work_wait(work: *mut ringtree_work_t) -> ringtree_result_t {
    answer(|| WORK.own(work.addr())?.wait())
}

/// Sets `is_finished` to 1 if the call that `work` represents has completed, and to 0 otherwise.
/// Does not block. Corresponds to MPI_Test.
///
/// If the call has completed, returns the result of that call, like ringtree_work_wait().
/// Otherwise, returns RINGTREE_SUCCESS. Also sets `is_finished` to 0 if the function returns
/// RINGTREE_USAGE because an argument is invalid.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_work_test(
    work: *mut ringtree_work_t,
    is_finished: Option<&mut MaybeUninit<c_int>>,
) -> ringtree_result_t {
    ringtree_work_wait_for(work, 0, is_finished)
}

/// Like ringtree_work_test(), but waits for up to `limit_ms` milliseconds until the call has
/// completed. If `limit_ms` is negative, waits without a limit.
///
/// The limit does not cancel the call, which continues in the background and keeps using its
/// buffers. The call fails only when the timeout of its communicator expires.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_work_wait_for(
    work: *mut ringtree_work_t,
    limit_ms: i64,
    is_finished: Option<&mut MaybeUninit<c_int>>,
) -> ringtree_result_t {
    answer(|| {
        let out = place("is_finished", is_finished)?.write(0);
        let call = WORK.own(work.addr())?;
        if Pending::wait_any(&[&call], limit(limit_ms)).is_none() {
            return Ok(());
        }
        *out = 1;
        call.wait()
    })
}

/// Waits for up to `limit_ms` milliseconds until one of the `count` calls in `works` has completed,
/// and sets `index` to its position. If `limit_ms` is negative, waits without a limit. If several
/// calls have completed, sets `index` to the first of them. Corresponds to MPI_Waitany.
///
/// Returns the result of that call, like ringtree_work_wait(). NULL handles are ignored, so a
/// program can free the handle, set it to NULL and wait for the next call. If the limit expires
/// first, or if all handles are NULL, sets `index` to -1 and returns RINGTREE_SUCCESS. All other
/// calls continue in the background.
///
/// Also sets `index` to -1 if the function returns RINGTREE_USAGE because an argument is invalid.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_work_wait_any(
    works: *const *mut ringtree_work_t,
    count: usize,
    limit_ms: i64,
    index: Option<&mut MaybeUninit<c_int>>,
) -> ringtree_result_t {
    answer(|| {
        let out = place("index", index)?.write(-1);
        let calls = calls(&handles(works, count)?)?;
        let waiting: Vec<&Pending> = calls.iter().map(|(_, call)| &**call).collect();
        let Some(first) = Pending::wait_any(&waiting, limit(limit_ms)) else {
            return Ok(());
        };
        *out = number(calls[first].0);
        waiting[first].wait()
    })
}

/// Destroys the handle of a completed call. Does not free the call's buffers. Corresponds to
/// MPI_Request_free, but never frees a call in flight.
///
/// Returns RINGTREE_USAGE if the call is still in flight, because the program would otherwise have
/// no way to find out when it may use the buffers again. NULL is ignored. The function does nothing
/// in a forked child of the process that started the call.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_work_free(work: *mut ringtree_work_t) -> ringtree_result_t {
    answer(|| {
        if work.is_null() {
            return Ok(());
        }
        let freed = WORK.take(work.addr(), |work| match work.is_finished() {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::Usage,
                "cannot free the work handle of a call that is still in flight; wait for the call \
                 first",
            )),
        });
        freed.map(drop)
    })
}
