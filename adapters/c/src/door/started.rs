//! Collectives that go on while the program does something else.

use crate::call::Call;
use crate::error::answer;
use crate::handles::WORK;
use crate::memory::{as_pointer, communicator, place};
use crate::types::{dtype_from_c, op_from_c, ringtree_comm_t, ringtree_result_t, ringtree_work_t};
use ringtree::{Collective, Error, Result};
use ringtree_foreign::Pending;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

/// Makes a call, and leaves it to the library's own threads.
fn start(
    comm: *mut ringtree_comm_t,
    out: Option<&mut MaybeUninit<*mut ringtree_work_t>>,
    call: impl FnOnce() -> Result<Call>,
) -> ringtree_result_t {
    answer(|| {
        let out = place("work", out)?;
        let started = call()?.start(&*communicator(comm)?)?;
        out.write(as_pointer(WORK.insert(Pending::of_operation(started))));
        Ok(())
    })
}

/// Starts ringtree_all_reduce(), and returns at once. It goes on by itself. Until its work has ended
/// the program leaves `send` and `recv` alone. All ranks start and make the calls of a communicator
/// in the same order. Every `work` is waited for, or tested until it has ended, and then freed.
/// In place is best: where `send` and `recv` are two, this copies one to the other, or the result
/// from a place of its own.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_all_reduce_start(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: dtype_from_c,
    op: op_from_c,
    comm: *mut ringtree_comm_t,
    work: Option<&mut MaybeUninit<*mut ringtree_work_t>>,
) -> ringtree_result_t {
    start(comm, work, || {
        let memory = (send.addr(), recv.addr(), count);
        Call::new(Collective::AllReduce, memory, dtype)?.op(op)
    })
}

/// Starts ringtree_broadcast().
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_broadcast_start(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: dtype_from_c,
    root: c_int,
    comm: *mut ringtree_comm_t,
    work: Option<&mut MaybeUninit<*mut ringtree_work_t>>,
) -> ringtree_result_t {
    start(comm, work, || {
        let memory = (send.addr(), recv.addr(), count);
        Call::new(Collective::Broadcast, memory, dtype)?.root(root)
    })
}

/// Starts ringtree_reduce().
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_reduce_start(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: dtype_from_c,
    op: op_from_c,
    root: c_int,
    comm: *mut ringtree_comm_t,
    work: Option<&mut MaybeUninit<*mut ringtree_work_t>>,
) -> ringtree_result_t {
    start(comm, work, || {
        let memory = (send.addr(), recv.addr(), count);
        Call::new(Collective::Reduce, memory, dtype)?
            .op(op)?
            .root(root)
    })
}

/// Starts ringtree_all_gather().
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_all_gather_start(
    send: *const c_void,
    recv: *mut c_void,
    send_count: usize,
    dtype: dtype_from_c,
    comm: *mut ringtree_comm_t,
    work: Option<&mut MaybeUninit<*mut ringtree_work_t>>,
) -> ringtree_result_t {
    start(comm, work, || {
        let memory = (send.addr(), recv.addr(), send_count);
        Call::new(Collective::AllGather, memory, dtype)
    })
}

/// Starts ringtree_reduce_scatter().
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_reduce_scatter_start(
    send: *const c_void,
    recv: *mut c_void,
    recv_count: usize,
    dtype: dtype_from_c,
    op: op_from_c,
    comm: *mut ringtree_comm_t,
    work: Option<&mut MaybeUninit<*mut ringtree_work_t>>,
) -> ringtree_result_t {
    start(comm, work, || {
        let memory = (send.addr(), recv.addr(), recv_count);
        Call::new(Collective::ReduceScatter, memory, dtype)?.op(op)
    })
}

/// Starts ringtree_all_to_all().
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_all_to_all_start(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: dtype_from_c,
    comm: *mut ringtree_comm_t,
    work: Option<&mut MaybeUninit<*mut ringtree_work_t>>,
) -> ringtree_result_t {
    start(comm, work, || {
        let memory = (send.addr(), recv.addr(), count);
        Call::new(Collective::AllToAll, memory, dtype)
    })
}

/// Starts ringtree_gather().
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_gather_start(
    send: *const c_void,
    recv: *mut c_void,
    send_count: usize,
    dtype: dtype_from_c,
    root: c_int,
    comm: *mut ringtree_comm_t,
    work: Option<&mut MaybeUninit<*mut ringtree_work_t>>,
) -> ringtree_result_t {
    start(comm, work, || {
        let memory = (send.addr(), recv.addr(), send_count);
        Call::new(Collective::Gather, memory, dtype)?.root(root)
    })
}

/// Starts ringtree_scatter().
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_scatter_start(
    send: *const c_void,
    recv: *mut c_void,
    recv_count: usize,
    dtype: dtype_from_c,
    root: c_int,
    comm: *mut ringtree_comm_t,
    work: Option<&mut MaybeUninit<*mut ringtree_work_t>>,
) -> ringtree_result_t {
    start(comm, work, || {
        let memory = (send.addr(), recv.addr(), recv_count);
        Call::new(Collective::Scatter, memory, dtype)?.root(root)
    })
}

/// Waits until a call has ended, and returns its result. May be called again, and by any thread.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_work_wait(work: *mut ringtree_work_t) -> ringtree_result_t {
    answer(|| {
        WORK.refuse_children()?;
        WORK.get(work.addr())?.wait()
    })
}

/// Puts at `has_ended` whether a call has ended, 1 or 0. If it has, returns its result as
/// ringtree_work_wait() does.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_work_test(
    work: *mut ringtree_work_t,
    has_ended: Option<&mut MaybeUninit<c_int>>,
) -> ringtree_result_t {
    answer(|| {
        let out = place("has_ended", has_ended)?;
        WORK.refuse_children()?;
        let work = WORK.get(work.addr())?;
        let has_ended = work.has_ended();
        out.write(c_int::from(has_ended));
        if has_ended { work.wait() } else { Ok(()) }
    })
}

/// Destroys the handle of a call that has ended, which is all that this frees. RINGTREE_USAGE if it
/// is still under way: its buffers are in use, and nothing would say until when. NULL is ignored, and
/// so is all in a child that was forked from the process that started it.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_work_free(work: *mut ringtree_work_t) -> ringtree_result_t {
    answer(|| {
        if work.is_null() || WORK.is_of_parent() {
            return Ok(());
        }
        let ended = WORK.take(work.addr(), |work| match work.has_ended() {
            true => Ok(()),
            false => Err(Error::usage(
                "the call is still under way: wait for it before you free its work",
            )),
        })?;
        // It has ended; this brings the result where it belongs, if the program has not asked for it.
        let _ = ended.wait();
        Ok(())
    })
}
