//! Exports the collectives that run in the background, and the functions for their work handles.

use crate::call::Call;
use crate::error::answer;
use crate::handles::WORK;
use crate::memory::{as_pointer, communicator, place};
use crate::types::{dtype_from_c, op_from_c, ringtree_comm_t, ringtree_result_t, ringtree_work_t};
use ringtree::{Collective, Error, ErrorKind, Result};
use ringtree_foreign::Pending;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

/// Starts a call, which is then run by ringtree's own threads, and stores its handle in `out`.
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

/// Starts ringtree_all_reduce() in the background and returns immediately. Stores a handle to the
/// call in `work`.
///
/// The program owns the handle. It must call ringtree_work_wait() to wait until the call has
/// completed, or call ringtree_work_test() repeatedly until it has completed, and then free the
/// handle with ringtree_work_free(). Until the call has completed, the program must not use `send`
/// or `recv`. All ranks must make the calls on a communicator in the same order, whether the calls
/// block or are started in the background.
///
/// A started call is fastest if it works in place. Otherwise, it either copies `send` to `recv`
/// first or copies the result from a temporary buffer at the end.
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

/// Starts ringtree_broadcast() in the background. See ringtree_all_reduce_start().
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

/// Starts ringtree_reduce() in the background. See ringtree_all_reduce_start().
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

/// Starts ringtree_all_gather() in the background. See ringtree_all_reduce_start().
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

/// Starts ringtree_reduce_scatter() in the background. See ringtree_all_reduce_start().
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

/// Starts ringtree_all_to_all() in the background. See ringtree_all_reduce_start().
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

/// Starts ringtree_gather() in the background. See ringtree_all_reduce_start().
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

/// Starts ringtree_scatter() in the background. See ringtree_all_reduce_start().
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

/// Waits until the call that `work` represents has completed, and returns the result of that call.
/// Any thread may call this function, even repeatedly.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_work_wait(work: *mut ringtree_work_t) -> ringtree_result_t {
    answer(|| {
        WORK.refuse_children()?;
        WORK.get(work.addr())?.wait()
    })
}

/// Sets `is_finished` to 1 if the call that `work` represents has completed, and to 0 otherwise.
/// Does not block.
///
/// If the call has completed, returns the result of that call, like ringtree_work_wait().
/// Otherwise, returns RINGTREE_SUCCESS.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_work_test(
    work: *mut ringtree_work_t,
    is_finished: Option<&mut MaybeUninit<c_int>>,
) -> ringtree_result_t {
    answer(|| {
        let out = place("is_finished", is_finished)?;
        WORK.refuse_children()?;
        let work = WORK.get(work.addr())?;
        let is_finished = work.is_finished();
        out.write(c_int::from(is_finished));
        if is_finished { work.wait() } else { Ok(()) }
    })
}

/// Destroys the handle of a completed call. Does not free the call's buffers.
///
/// Returns RINGTREE_USAGE if the call is still in flight, because the program would otherwise have
/// no way to find out when it may use the buffers again. NULL is ignored. The function does nothing
/// in a forked child of the process that started the call.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_work_free(work: *mut ringtree_work_t) -> ringtree_result_t {
    answer(|| {
        if work.is_null() || WORK.is_of_parent() {
            return Ok(());
        }
        let ended = WORK.take(work.addr(), |work| match work.is_finished() {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::Usage,
                "cannot free the work handle of a call that is still in flight; wait for the call \
                 first",
            )),
        })?;
        // `wait` copies the result to `recv` unless the program has already called it.
        let _ = ended.wait();
        Ok(())
    })
}
