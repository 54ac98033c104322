//! Exports the collectives that run in the background.

use super::work::begin;
use crate::call::Call;
use crate::call::Lengths::{Both, Counts, Even};
use crate::types::{dtype_from_c, op_from_c, ringtree_comm_t, ringtree_result_t, ringtree_work_t};
use ringtree::plan::Collective::{
    AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

/// Starts a call and stores its handle in `out`. ringtree's own threads then run the call.
fn start(
    comm: *mut ringtree_comm_t,
    out: Option<&mut MaybeUninit<*mut ringtree_work_t>>,
    call: Call,
) -> ringtree_result_t {
    begin(comm, out, |comm| call.start(comm))
}

/// Starts ringtree_all_reduce() in the background and returns immediately. Stores a handle to the
/// call in `work`, or NULL on failure. Corresponds to MPI_Iallreduce.
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
    let call = Call::new(AllReduce, (send, recv), Even(count), dtype);
    start(comm, work, call.op(op))
}

/// Starts ringtree_broadcast() in the background. See ringtree_all_reduce_start(). On the root, the
/// function first copies `send` to `recv`, unless the call works in place. Corresponds to
/// MPI_Ibcast.
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
    let call = Call::new(Broadcast, (send, recv), Even(count), dtype);
    start(comm, work, call.root(root))
}

/// Starts ringtree_reduce() in the background. See ringtree_all_reduce_start(). Corresponds to
/// MPI_Ireduce.
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
    let call = Call::new(Reduce, (send, recv), Even(count), dtype);
    start(comm, work, call.op(op).root(root))
}

/// Starts ringtree_all_gather() in the background. See ringtree_all_reduce_start(). Corresponds to
/// MPI_Iallgather.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_all_gather_start(
    send: *const c_void,
    recv: *mut c_void,
    send_count: usize,
    dtype: dtype_from_c,
    comm: *mut ringtree_comm_t,
    work: Option<&mut MaybeUninit<*mut ringtree_work_t>>,
) -> ringtree_result_t {
    let call = Call::new(AllGather, (send, recv), Even(send_count), dtype);
    start(comm, work, call)
}

/// Starts ringtree_reduce_scatter() in the background. See ringtree_all_reduce_start(). Corresponds
/// to MPI_Ireduce_scatter_block.
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
    let call = Call::new(ReduceScatter, (send, recv), Even(recv_count), dtype);
    start(comm, work, call.op(op))
}

/// Starts ringtree_all_to_all() in the background. See ringtree_all_reduce_start(). Corresponds to
/// MPI_Ialltoall.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_all_to_all_start(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: dtype_from_c,
    comm: *mut ringtree_comm_t,
    work: Option<&mut MaybeUninit<*mut ringtree_work_t>>,
) -> ringtree_result_t {
    let call = Call::new(AllToAll, (send, recv), Even(count), dtype);
    start(comm, work, call)
}

/// Starts ringtree_gather() in the background. See ringtree_all_reduce_start(). Corresponds to
/// MPI_Igather.
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
    let call = Call::new(Gather, (send, recv), Even(send_count), dtype);
    start(comm, work, call.root(root))
}

/// Starts ringtree_scatter() in the background. See ringtree_all_reduce_start(). Corresponds to
/// MPI_Iscatter.
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
    let call = Call::new(Scatter, (send, recv), Even(recv_count), dtype);
    start(comm, work, call.root(root))
}

/// Starts ringtree_all_gather_v() in the background. See ringtree_all_reduce_start(). Corresponds
/// to MPI_Iallgatherv.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_all_gather_v_start(
    send: *const c_void,
    recv: *mut c_void,
    recv_counts: *const usize,
    dtype: dtype_from_c,
    comm: *mut ringtree_comm_t,
    work: Option<&mut MaybeUninit<*mut ringtree_work_t>>,
) -> ringtree_result_t {
    let call = Call::new(AllGather, (send, recv), Counts(recv_counts), dtype);
    start(comm, work, call)
}

/// Starts ringtree_reduce_scatter_v() in the background. See ringtree_all_reduce_start().
/// Corresponds to MPI_Ireduce_scatter.
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
    let call = Call::new(ReduceScatter, (send, recv), Counts(send_counts), dtype);
    start(comm, work, call.op(op))
}

/// Starts ringtree_gather_v() in the background. See ringtree_all_reduce_start(). Corresponds to
/// MPI_Igatherv.
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
    let call = Call::new(Gather, (send, recv), Counts(recv_counts), dtype);
    start(comm, work, call.root(root))
}

/// Starts ringtree_scatter_v() in the background. See ringtree_all_reduce_start(). Corresponds to
/// MPI_Iscatterv.
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
    let call = Call::new(Scatter, (send, recv), Counts(send_counts), dtype);
    start(comm, work, call.root(root))
}

/// Starts ringtree_all_to_all_v() in the background. See ringtree_all_reduce_start(). Unlike other
/// started calls, this function first waits until all ranks have called it and have compared their
/// counts. Corresponds to MPI_Ialltoallv.
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
    let call = Call::new(
        AllToAll,
        (send, recv),
        Both(send_counts, recv_counts),
        dtype,
    );
    start(comm, work, call)
}
