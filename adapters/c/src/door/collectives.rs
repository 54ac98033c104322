//! Exports the blocking collectives.

use crate::call::Call;
use crate::call::Lengths::{Both, Counts, Even};
use crate::error::answer;
use crate::memory::communicator;
use crate::types::{dtype_from_c, op_from_c, ringtree_comm_t, ringtree_result_t};
use ringtree::plan::Collective::{
    AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
};
use std::ffi::{c_int, c_void};

/// Runs a call and waits until it has completed.
fn run(comm: *mut ringtree_comm_t, call: Call) -> ringtree_result_t {
    answer(|| call.run(&*communicator(comm)?))
}

/// Reduces `count` elements of every rank's `send` with `op` and writes the result to `recv` on
/// every rank. The call works in place if `send` and `recv` are equal, which replaces MPI_IN_PLACE.
/// Corresponds to MPI_Allreduce and ncclAllReduce.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_all_reduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: dtype_from_c,
    op: op_from_c,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    let call = Call::new(AllReduce, (send, recv), Even(count), dtype);
    run(comm, call.op(op))
}

/// Copies `count` elements of the root's `send` to `recv` on every rank. On all ranks except the
/// root, `send` is ignored. The call works in place if `send` and `recv` are equal. Corresponds to
/// MPI_Bcast and ncclBroadcast.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_broadcast(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: dtype_from_c,
    root: c_int,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    let call = Call::new(Broadcast, (send, recv), Even(count), dtype);
    run(comm, call.root(root))
}

/// Reduces `count` elements of every rank's `send` with `op` and writes the result to `recv` on the
/// root. On all ranks except the root, `recv` is ignored. The call works in place if `send` and
/// `recv` are equal. Corresponds to MPI_Reduce and ncclReduce.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_reduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: dtype_from_c,
    op: op_from_c,
    root: c_int,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    let call = Call::new(Reduce, (send, recv), Even(count), dtype);
    run(comm, call.op(op).root(root))
}

/// Gathers `send_count` elements from every rank's `send` into `recv` on every rank, in rank order.
/// The call works in place if `send` is this rank's block of `recv`. Corresponds to MPI_Allgather
/// and ncclAllGather.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_all_gather(
    send: *const c_void,
    recv: *mut c_void,
    send_count: usize,
    dtype: dtype_from_c,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    let call = Call::new(AllGather, (send, recv), Even(send_count), dtype);
    run(comm, call)
}

/// Reduces every rank's `send` with `op` and writes block i of the result to `recv` on rank i.
/// `send` contains one block of `recv_count` elements per rank. The call works in place if `recv`
/// is this rank's block of `send`. In that case, the contents of the other blocks are unspecified
/// after the call. Corresponds to MPI_Reduce_scatter_block and ncclReduceScatter.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_reduce_scatter(
    send: *const c_void,
    recv: *mut c_void,
    recv_count: usize,
    dtype: dtype_from_c,
    op: op_from_c,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    let call = Call::new(ReduceScatter, (send, recv), Even(recv_count), dtype);
    run(comm, call.op(op))
}

/// Copies block j of rank i's `send` to block i of rank j's `recv`. Each block has `count`
/// elements. The call works in place if `send` and `recv` are equal. Corresponds to MPI_Alltoall
/// and ncclAlltoAll.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_all_to_all(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: dtype_from_c,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    let call = Call::new(AllToAll, (send, recv), Even(count), dtype);
    run(comm, call)
}

/// Gathers `send_count` elements from every rank's `send` into `recv` on the root, in rank order.
/// On all ranks except the root, `recv` is ignored. The call works in place if, on the root, `send`
/// is the root's block of `recv`. Corresponds to MPI_Gather and ncclGather.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_gather(
    send: *const c_void,
    recv: *mut c_void,
    send_count: usize,
    dtype: dtype_from_c,
    root: c_int,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    let call = Call::new(Gather, (send, recv), Even(send_count), dtype);
    run(comm, call.root(root))
}

/// Copies block i of the root's `send` to `recv` on rank i. Each block has `recv_count` elements.
/// On all ranks except the root, `send` is ignored. The call works in place if, on the root, `recv`
/// is the root's block of `send`. Corresponds to MPI_Scatter and ncclScatter.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_scatter(
    send: *const c_void,
    recv: *mut c_void,
    recv_count: usize,
    dtype: dtype_from_c,
    root: c_int,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    let call = Call::new(Scatter, (send, recv), Even(recv_count), dtype);
    run(comm, call.root(root))
}

/// Like ringtree_all_gather(), but the block of rank j has recv_counts[j] elements. `recv_counts`
/// contains one number per rank and must be the same on all ranks. `send` must be as long as this
/// rank's block. Corresponds to MPI_Allgatherv.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_all_gather_v(
    send: *const c_void,
    recv: *mut c_void,
    recv_counts: *const usize,
    dtype: dtype_from_c,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    let call = Call::new(AllGather, (send, recv), Counts(recv_counts), dtype);
    run(comm, call)
}

/// Like ringtree_reduce_scatter(), but the block of rank j has send_counts[j] elements.
/// `send_counts` contains one number per rank and must be the same on all ranks. `recv` must be as
/// long as this rank's block. Corresponds to MPI_Reduce_scatter.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_reduce_scatter_v(
    send: *const c_void,
    send_counts: *const usize,
    recv: *mut c_void,
    dtype: dtype_from_c,
    op: op_from_c,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    let call = Call::new(ReduceScatter, (send, recv), Counts(send_counts), dtype);
    run(comm, call.op(op))
}

/// Like ringtree_gather(), but the block of rank j has recv_counts[j] elements. `recv_counts`
/// contains one number per rank and must be the same on all ranks, not only on the root. `send`
/// must be as long as this rank's block. Corresponds to MPI_Gatherv.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_gather_v(
    send: *const c_void,
    recv: *mut c_void,
    recv_counts: *const usize,
    dtype: dtype_from_c,
    root: c_int,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    let call = Call::new(Gather, (send, recv), Counts(recv_counts), dtype);
    run(comm, call.root(root))
}

/// Like ringtree_scatter(), but the block of rank j has send_counts[j] elements. `send_counts`
/// contains one number per rank and must be the same on all ranks, not only on the root. `recv`
/// must be as long as this rank's block. Corresponds to MPI_Scatterv.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_scatter_v(
    send: *const c_void,
    send_counts: *const usize,
    recv: *mut c_void,
    dtype: dtype_from_c,
    root: c_int,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    let call = Call::new(Scatter, (send, recv), Counts(send_counts), dtype);
    run(comm, call.root(root))
}

/// Like ringtree_all_to_all(), but the block for rank j has send_counts[j] elements and the block
/// from rank i has recv_counts[i] elements. Blocks are contiguous. Each rank passes only its own
/// counts. If the counts passed by two ranks do not match, the call returns RINGTREE_MISMATCH on
/// all ranks. This function cannot work in place. Corresponds to MPI_Alltoallv.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_all_to_all_v(
    send: *const c_void,
    send_counts: *const usize,
    recv: *mut c_void,
    recv_counts: *const usize,
    dtype: dtype_from_c,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    let call = Call::new(
        AllToAll,
        (send, recv),
        Both(send_counts, recv_counts),
        dtype,
    );
    run(comm, call)
}

/// Waits until every rank has called this function. Corresponds to MPI_Barrier.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_barrier(comm: *mut ringtree_comm_t) -> ringtree_result_t {
    answer(|| communicator(comm)?.barrier())
}
