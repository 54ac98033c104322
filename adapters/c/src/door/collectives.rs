//! Exports the blocking collectives.

use crate::call::Call;
use crate::error::answer;
use crate::memory::{communicator, counts};
use crate::types::{dtype_from_c, op_from_c, ringtree_comm_t, ringtree_result_t};
use ringtree::Result;
use ringtree::plan::Collective;
use std::ffi::{c_int, c_void};

/// Runs a call, which `call` creates for the given number of ranks, and waits until it has
/// completed.
fn run(comm: *mut ringtree_comm_t, call: impl FnOnce(usize) -> Result<Call>) -> ringtree_result_t {
    answer(|| {
        let comm = communicator(comm)?;
        call(comm.world_size())?.run(&comm)
    })
}

/// Reduces `count` elements of every rank's `send` with `op` and writes the result to `recv` on
/// every rank. The call works in place if `send` and `recv` are equal.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_all_reduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: dtype_from_c,
    op: op_from_c,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    run(comm, |_| {
        let memory = (send.addr(), recv.addr(), count);
        Call::new(Collective::AllReduce, memory, dtype)?.op(op)
    })
}

/// Copies `count` elements of the root's `send` to `recv` on every rank. On all ranks except the
/// root, `send` is ignored. The call works in place if `send` and `recv` are equal.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_broadcast(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: dtype_from_c,
    root: c_int,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    run(comm, |_| {
        let memory = (send.addr(), recv.addr(), count);
        Call::new(Collective::Broadcast, memory, dtype)?.root(root)
    })
}

/// Reduces `count` elements of every rank's `send` with `op` and writes the result to `recv` on the
/// root. On all ranks except the root, `recv` is ignored. The call works in place if `send` and
/// `recv` are equal.
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
    run(comm, |_| {
        let memory = (send.addr(), recv.addr(), count);
        Call::new(Collective::Reduce, memory, dtype)?
            .op(op)?
            .root(root)
    })
}

/// Gathers `send_count` elements from every rank's `send` into `recv` on every rank, in rank order.
/// The call works in place if `send` is this rank's block of `recv`.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_all_gather(
    send: *const c_void,
    recv: *mut c_void,
    send_count: usize,
    dtype: dtype_from_c,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    run(comm, |_| {
        let memory = (send.addr(), recv.addr(), send_count);
        Call::new(Collective::AllGather, memory, dtype)
    })
}

/// Reduces every rank's `send` with `op` and writes block i of the result to `recv` on rank i.
/// `send` contains one block of `recv_count` elements per rank. The call works in place if `recv`
/// is this rank's block of `send`. In that case, the contents of the other blocks are unspecified
/// after the call.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_reduce_scatter(
    send: *const c_void,
    recv: *mut c_void,
    recv_count: usize,
    dtype: dtype_from_c,
    op: op_from_c,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    run(comm, |_| {
        let memory = (send.addr(), recv.addr(), recv_count);
        Call::new(Collective::ReduceScatter, memory, dtype)?.op(op)
    })
}

/// Copies block j of rank i's `send` to block i of rank j's `recv`. Each block has `count`
/// elements. The call works in place if `send` and `recv` are equal.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_all_to_all(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: dtype_from_c,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    run(comm, |_| {
        let memory = (send.addr(), recv.addr(), count);
        Call::new(Collective::AllToAll, memory, dtype)
    })
}

/// Gathers `send_count` elements from every rank's `send` into `recv` on the root, in rank order.
/// On all ranks except the root, `recv` is ignored. The call works in place if, on the root, `send`
/// is the root's block of `recv`.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_gather(
    send: *const c_void,
    recv: *mut c_void,
    send_count: usize,
    dtype: dtype_from_c,
    root: c_int,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    run(comm, |_| {
        let memory = (send.addr(), recv.addr(), send_count);
        Call::new(Collective::Gather, memory, dtype)?.root(root)
    })
}

/// Copies block i of the root's `send` to `recv` on rank i. Each block has `recv_count` elements.
/// On all ranks except the root, `send` is ignored. The call works in place if, on the root, `recv`
/// is the root's block of `send`.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_scatter(
    send: *const c_void,
    recv: *mut c_void,
    recv_count: usize,
    dtype: dtype_from_c,
    root: c_int,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    run(comm, |_| {
        let memory = (send.addr(), recv.addr(), recv_count);
        Call::new(Collective::Scatter, memory, dtype)?.root(root)
    })
}

/// Like ringtree_all_gather(), but the block of rank j has recv_counts[j] elements. `recv_counts`
/// contains one number per rank and must be the same on all ranks. `send` must be as long as this
/// rank's block.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_all_gather_v(
    send: *const c_void,
    recv: *mut c_void,
    recv_counts: *const usize,
    dtype: dtype_from_c,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    run(comm, |ranks| {
        let memory = (send.addr(), recv.addr(), 0);
        let call = Call::new(Collective::AllGather, memory, dtype)?;
        Ok(call.counts(counts(recv_counts, ranks)?))
    })
}

/// Like ringtree_reduce_scatter(), but the block of rank j has send_counts[j] elements.
/// `send_counts` contains one number per rank and must be the same on all ranks. `recv` must be as
/// long as this rank's block.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_reduce_scatter_v(
    send: *const c_void,
    send_counts: *const usize,
    recv: *mut c_void,
    dtype: dtype_from_c,
    op: op_from_c,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    run(comm, |ranks| {
        let memory = (send.addr(), recv.addr(), 0);
        let call = Call::new(Collective::ReduceScatter, memory, dtype)?.op(op)?;
        Ok(call.counts(counts(send_counts, ranks)?))
    })
}

/// Like ringtree_gather(), but the block of rank j has recv_counts[j] elements. `recv_counts`
/// contains one number per rank and must be the same on all ranks, not only on the root. `send`
/// must be as long as this rank's block.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_gather_v(
    send: *const c_void,
    recv: *mut c_void,
    recv_counts: *const usize,
    dtype: dtype_from_c,
    root: c_int,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    run(comm, |ranks| {
        let memory = (send.addr(), recv.addr(), 0);
        let call = Call::new(Collective::Gather, memory, dtype)?.root(root)?;
        Ok(call.counts(counts(recv_counts, ranks)?))
    })
}

/// Like ringtree_scatter(), but the block of rank j has send_counts[j] elements. `send_counts`
/// contains one number per rank and must be the same on all ranks, not only on the root. `recv`
/// must be as long as this rank's block.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_scatter_v(
    send: *const c_void,
    send_counts: *const usize,
    recv: *mut c_void,
    dtype: dtype_from_c,
    root: c_int,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    run(comm, |ranks| {
        let memory = (send.addr(), recv.addr(), 0);
        let call = Call::new(Collective::Scatter, memory, dtype)?.root(root)?;
        Ok(call.counts(counts(send_counts, ranks)?))
    })
}

/// Like ringtree_all_to_all(), but the block for rank j has send_counts[j] elements and the block
/// from rank i has recv_counts[i] elements. Blocks are contiguous. Each rank passes only its own
/// counts. If the counts passed by two ranks do not match, the call returns RINGTREE_MISMATCH on
/// all ranks. This function cannot work in place.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_all_to_all_v(
    send: *const c_void,
    send_counts: *const usize,
    recv: *mut c_void,
    recv_counts: *const usize,
    dtype: dtype_from_c,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    run(comm, |ranks| {
        let memory = (send.addr(), recv.addr(), 0);
        let call = Call::new(Collective::AllToAll, memory, dtype)?;
        let sent = counts(send_counts, ranks)?;
        Ok(call.both_counts(sent, counts(recv_counts, ranks)?))
    })
}

/// Waits until every rank has called this function.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_barrier(comm: *mut ringtree_comm_t) -> ringtree_result_t {
    answer(|| communicator(comm)?.barrier())
}
