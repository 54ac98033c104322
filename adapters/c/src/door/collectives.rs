//! Collectives that the caller waits for.

use crate::call::{ByCounts, Call};
use crate::error::answer;
use crate::memory::{communicator, counts};
use crate::types::{self, dtype_from_c, op_from_c, ringtree_comm_t, ringtree_result_t};
use ringtree::{Collective, ReduceOp, Result};
use std::ffi::{c_int, c_void};

/// Makes a call, and waits for it.
fn run(comm: *mut ringtree_comm_t, call: impl FnOnce() -> Result<Call>) -> ringtree_result_t {
    answer(|| call()?.run(&*communicator(comm)?))
}

/// Every rank's `recv` becomes the reduction of all ranks' `send`, element by element: `count` of
/// them. In place if both are the same.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_all_reduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: dtype_from_c,
    op: op_from_c,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    run(comm, || {
        let memory = (send.addr(), recv.addr(), count);
        Call::new(Collective::AllReduce, memory, dtype)?.op(op)
    })
}

/// Every rank's `recv` becomes the root's `send`. The others' `send` is not looked at. In place if
/// both are the same.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_broadcast(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: dtype_from_c,
    root: c_int,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    run(comm, || {
        let memory = (send.addr(), recv.addr(), count);
        Call::new(Collective::Broadcast, memory, dtype)?.root(root)
    })
}

/// The root's `recv` becomes the reduction of all ranks' `send`. The others' `recv` is not looked
/// at. In place if both are the same.
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
    run(comm, || {
        let memory = (send.addr(), recv.addr(), count);
        Call::new(Collective::Reduce, memory, dtype)?
            .op(op)?
            .root(root)
    })
}

/// Every rank's `recv` becomes all ranks' `send`, of `send_count` elements each, in rank order. In
/// place if `send` is this rank's block of `recv`.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_all_gather(
    send: *const c_void,
    recv: *mut c_void,
    send_count: usize,
    dtype: dtype_from_c,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    run(comm, || {
        let memory = (send.addr(), recv.addr(), send_count);
        Call::new(Collective::AllGather, memory, dtype)
    })
}

/// Every rank's `recv`, of `recv_count` elements, becomes its block of the reduction of all ranks'
/// `send`. In place if `recv` is this rank's block of `send`, the rest of which is unspecified then.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_reduce_scatter(
    send: *const c_void,
    recv: *mut c_void,
    recv_count: usize,
    dtype: dtype_from_c,
    op: op_from_c,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    run(comm, || {
        let memory = (send.addr(), recv.addr(), recv_count);
        Call::new(Collective::ReduceScatter, memory, dtype)?.op(op)
    })
}

/// Block j of rank i's `send` becomes block i of rank j's `recv`; a block has `count` elements. In
/// place if both are the same.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_all_to_all(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: dtype_from_c,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    run(comm, || {
        let memory = (send.addr(), recv.addr(), count);
        Call::new(Collective::AllToAll, memory, dtype)
    })
}

/// The root's `recv` becomes all ranks' `send`, of `send_count` elements each, in rank order. The
/// others' `recv` is not looked at. In place if the root's `send` is its block of `recv`.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_gather(
    send: *const c_void,
    recv: *mut c_void,
    send_count: usize,
    dtype: dtype_from_c,
    root: c_int,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    run(comm, || {
        let memory = (send.addr(), recv.addr(), send_count);
        Call::new(Collective::Gather, memory, dtype)?.root(root)
    })
}

/// Every rank's `recv`, of `recv_count` elements, becomes its block of the root's `send`. The
/// others' `send` is not looked at. In place if the root's `recv` is its block of `send`.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_scatter(
    send: *const c_void,
    recv: *mut c_void,
    recv_count: usize,
    dtype: dtype_from_c,
    root: c_int,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    run(comm, || {
        let memory = (send.addr(), recv.addr(), recv_count);
        Call::new(Collective::Scatter, memory, dtype)?.root(root)
    })
}

/// As ringtree_all_gather(), where rank j's block has recv_counts[j] elements: one number for each
/// rank, the same on all. `send` has as many as this rank's. Never in place.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_all_gather_v(
    send: *const c_void,
    recv: *mut c_void,
    recv_counts: *const usize,
    dtype: dtype_from_c,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    answer(|| {
        let comm = communicator(comm)?;
        let recv_counts = counts(recv_counts, comm.world_size())?;
        let call = ByCounts {
            collective: Collective::AllGather,
            send: send.addr(),
            recv: recv.addr(),
            send_counts: vec![recv_counts[comm.rank()]],
            recv_counts,
            dtype: types::dtype(dtype)?,
            op: ReduceOp::Sum,
        };
        call.run(&comm)
    })
}

/// As ringtree_reduce_scatter(), where rank j's block has send_counts[j] elements: one number for
/// each rank, the same on all. `recv` has as many as this rank's. Never in place.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_reduce_scatter_v(
    send: *const c_void,
    send_counts: *const usize,
    recv: *mut c_void,
    dtype: dtype_from_c,
    op: op_from_c,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    answer(|| {
        let comm = communicator(comm)?;
        let send_counts = counts(send_counts, comm.world_size())?;
        let call = ByCounts {
            collective: Collective::ReduceScatter,
            send: send.addr(),
            recv: recv.addr(),
            recv_counts: vec![send_counts[comm.rank()]],
            send_counts,
            dtype: types::dtype(dtype)?,
            op: types::op(op)?,
        };
        call.run(&comm)
    })
}

/// As ringtree_all_to_all(), where the block for rank j has send_counts[j] elements and the one from
/// rank i recv_counts[i]; blocks lie one after the other. Each rank knows its own numbers alone. If
/// those of two ranks disagree, all ranks get RINGTREE_MISMATCH. Never in place.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_all_to_all_v(
    send: *const c_void,
    send_counts: *const usize,
    recv: *mut c_void,
    recv_counts: *const usize,
    dtype: dtype_from_c,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    answer(|| {
        let comm = communicator(comm)?;
        let ranks = comm.world_size();
        let call = ByCounts {
            collective: Collective::AllToAll,
            send: send.addr(),
            recv: recv.addr(),
            send_counts: counts(send_counts, ranks)?,
            recv_counts: counts(recv_counts, ranks)?,
            dtype: types::dtype(dtype)?,
            op: ReduceOp::Sum,
        };
        call.run(&comm)
    })
}

/// Returns on no rank before every rank has called it.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_barrier(comm: *mut ringtree_comm_t) -> ringtree_result_t {
    answer(|| communicator(comm)?.barrier())
}
