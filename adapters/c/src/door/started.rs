//! Exports the collectives that run in the background.

use crate::call::Call;
use crate::error::answer;
use crate::handles::WORK;
use crate::memory::{as_pointer, communicator, counts, place};
use crate::types::{dtype_from_c, op_from_c, ringtree_comm_t, ringtree_result_t, ringtree_work_t};
use ringtree::Result;
use ringtree::plan::Collective;
use ringtree_foreign::Pending;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

/// Starts a call, which `call` creates for the given number of ranks, and stores its handle in
/// `out`. ringtree's own threads then run the call.
fn start(
    comm: *mut ringtree_comm_t,
    out: Option<&mut MaybeUninit<*mut ringtree_work_t>>,
    call: impl FnOnce(usize) -> Result<Call>,
) -> ringtree_result_t {
    answer(|| {
        let out = place("work", out)?;
        let comm = communicator(comm)?;
        let started = call(comm.world_size())?.start(&comm)?;
        out.write(as_pointer(WORK.insert(Pending::of_operation(started))));
        Ok(())
    })
}

/// Starts ringtree_all_reduce() in the background and returns immediately. Stores a handle to the
/// call in `work`.
///
/// The program owns the handle. It must wait until the call has completed, with
/// ringtree_work_wait(), ringtree_work_wait_for(), ringtree_work_wait_any() or repeated calls of
/// ringtree_work_test(), and then free the handle with ringtree_work_free(). All ranks must make
/// the calls on a communicator in the same order, whether the calls block or are started in the
/// background.
///
/// The call uses the program's buffers and copies neither of them. Until it has completed, the
/// program must keep `send` and `recv` allocated, must not write to `send` and must not use `recv`.
/// This also applies if the communicator is destroyed or aborted in the meantime: only the
/// functions above tell when the call no longer uses the buffers. Arrays of counts may be reused
/// as soon as the function that starts the call returns.
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
    start(comm, work, |_| {
        let memory = (send.addr(), recv.addr(), count);
        Call::new(Collective::AllReduce, memory, dtype)?.op(op)
    })
}

/// Starts ringtree_broadcast() in the background. See ringtree_all_reduce_start(). On the root, the
/// function first copies `send` to `recv`, unless the call works in place.
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
    start(comm, work, |_| {
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
    start(comm, work, |_| {
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
    start(comm, work, |_| {
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
    start(comm, work, |_| {
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
    start(comm, work, |_| {
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
    start(comm, work, |_| {
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
    start(comm, work, |_| {
        let memory = (send.addr(), recv.addr(), recv_count);
        Call::new(Collective::Scatter, memory, dtype)?.root(root)
    })
}

/// Starts ringtree_all_gather_v() in the background. See ringtree_all_reduce_start().
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_all_gather_v_start(
    send: *const c_void,
    recv: *mut c_void,
    recv_counts: *const usize,
    dtype: dtype_from_c,
    comm: *mut ringtree_comm_t,
    work: Option<&mut MaybeUninit<*mut ringtree_work_t>>,
) -> ringtree_result_t {
    start(comm, work, |ranks| {
        let memory = (send.addr(), recv.addr(), 0);
        let call = Call::new(Collective::AllGather, memory, dtype)?;
        Ok(call.counts(counts(recv_counts, ranks)?))
    })
}

/// Starts ringtree_reduce_scatter_v() in the background. See ringtree_all_reduce_start().
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_reduce_scatter_v_start(
    send: *const c_void,
    send_counts: *const usize,
    recv: *mut c_void,
    dtype: dtype_from_c,
    op: op_from_c,
    comm: *mut ringtree_comm_t,
    work: Option<&mut MaybeUninit<*mut ringtree_work_t>>,
) -> ringtree_result_t {
    start(comm, work, |ranks| {
        let memory = (send.addr(), recv.addr(), 0);
        let call = Call::new(Collective::ReduceScatter, memory, dtype)?.op(op)?;
        Ok(call.counts(counts(send_counts, ranks)?))
    })
}

/// Starts ringtree_gather_v() in the background. See ringtree_all_reduce_start().
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_gather_v_start(
    send: *const c_void,
    recv: *mut c_void,
    recv_counts: *const usize,
    dtype: dtype_from_c,
    root: c_int,
    comm: *mut ringtree_comm_t,
    work: Option<&mut MaybeUninit<*mut ringtree_work_t>>,
) -> ringtree_result_t {
    start(comm, work, |ranks| {
        let memory = (send.addr(), recv.addr(), 0);
        let call = Call::new(Collective::Gather, memory, dtype)?.root(root)?;
        Ok(call.counts(counts(recv_counts, ranks)?))
    })
}

/// Starts ringtree_scatter_v() in the background. See ringtree_all_reduce_start().
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_scatter_v_start(
    send: *const c_void,
    send_counts: *const usize,
    recv: *mut c_void,
    dtype: dtype_from_c,
    root: c_int,
    comm: *mut ringtree_comm_t,
    work: Option<&mut MaybeUninit<*mut ringtree_work_t>>,
) -> ringtree_result_t {
    start(comm, work, |ranks| {
        let memory = (send.addr(), recv.addr(), 0);
        let call = Call::new(Collective::Scatter, memory, dtype)?.root(root)?;
        Ok(call.counts(counts(send_counts, ranks)?))
    })
}

/// Starts ringtree_all_to_all_v() in the background. See ringtree_all_reduce_start(). Unlike other
/// started calls, this function first waits until all ranks have called it and have compared their
/// counts.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_all_to_all_v_start(
    send: *const c_void,
    send_counts: *const usize,
    recv: *mut c_void,
    recv_counts: *const usize,
    dtype: dtype_from_c,
    comm: *mut ringtree_comm_t,
    work: Option<&mut MaybeUninit<*mut ringtree_work_t>>,
) -> ringtree_result_t {
    start(comm, work, |ranks| {
        let memory = (send.addr(), recv.addr(), 0);
        let call = Call::new(Collective::AllToAll, memory, dtype)?;
        let sent = counts(send_counts, ranks)?;
        Ok(call.both_counts(sent, counts(recv_counts, ranks)?))
    })
}
