//! Exports the functions for messages between two ranks. Each function either blocks or starts
//! sending or receiving a message in the background.

use super::work::begin;
use crate::error::answer;
use crate::memory::{communicator, elements};
use crate::types::{self, dtype_from_c, ringtree_comm_t, ringtree_result_t, ringtree_work_t};
use ringtree::with_element;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

/// Sends `count` elements to `peer`, which must receive the same number of elements of the same
/// type. Corresponds to MPI_Send and ncclSend.
///
/// The function may return before the peer receives the elements, or it may block until the peer
/// does so. Messages from one rank to another are received in the order in which they were sent. If
/// two ranks both send to each other before they receive, they may end up waiting for each other.
/// To avoid this, use ringtree_send_start() on one of them.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_send(
    send: *const c_void,
    count: usize,
    dtype: dtype_from_c,
    peer: c_int,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    answer(|| {
        let (dtype, peer) = (types::dtype(dtype)?, types::rank("peer", peer)?);
        let comm = communicator(comm)?;
        with_element!(dtype, T => comm.send(&elements::<T>("send", (send.addr(), count))?, peer))
    })
}

/// Receives `count` elements from `peer` into `recv`. Waits until they have arrived. Corresponds to
/// MPI_Recv and ncclRecv.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_recv(
    recv: *mut c_void,
    count: usize,
    dtype: dtype_from_c,
    peer: c_int,
    comm: *mut ringtree_comm_t,
) -> ringtree_result_t {
    answer(|| {
        let (dtype, peer) = (types::dtype(dtype)?, types::rank("peer", peer)?);
        let comm = communicator(comm)?;
        let memory = (recv.addr(), count);
        with_element!(dtype, T => comm.recv(&mut elements::<T>("recv", memory)?, peer))
    })
}

/// Starts ringtree_send() in the background. Any number of messages may be in flight at the same
/// time. The rules for buffers and work are the same as for ringtree_all_reduce_start().
/// Corresponds to MPI_Isend. Together with ringtree_recv(), it replaces MPI_Sendrecv.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_send_start(
    send: *const c_void,
    count: usize,
    dtype: dtype_from_c,
    peer: c_int,
    comm: *mut ringtree_comm_t,
    work: Option<&mut MaybeUninit<*mut ringtree_work_t>>,
) -> ringtree_result_t {
    start(((send.addr(), count), dtype, peer, true), comm, work)
}

/// Starts ringtree_recv() in the background. Any number of messages may be in flight at the same
/// time. The rules for buffers and work are the same as for ringtree_all_reduce_start().
/// Corresponds to MPI_Irecv.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_recv_start(
    recv: *mut c_void,
    count: usize,
    dtype: dtype_from_c,
    peer: c_int,
    comm: *mut ringtree_comm_t,
    work: Option<&mut MaybeUninit<*mut ringtree_work_t>>,
) -> ringtree_result_t {
    start(((recv.addr(), count), dtype, peer, false), comm, work)
}

/// Starts a message. The first parameter contains the address and the count, the element type, the
/// peer, and `true` if the message is sent.
fn start(
    (memory, dtype, peer, is_sent): ((usize, usize), dtype_from_c, c_int, bool),
    comm: *mut ringtree_comm_t,
    work: Option<&mut MaybeUninit<*mut ringtree_work_t>>,
) -> ringtree_result_t {
    begin(comm, work, |comm| {
        let (dtype, peer) = (types::dtype(dtype)?, types::rank("peer", peer)?);
        with_element!(dtype, T => {
            let memory = elements::<T>(if is_sent { "send" } else { "recv" }, memory)?;
            Ok(match is_sent {
                true => Box::new(comm.start_send(memory, peer)?),
                false => Box::new(comm.start_recv(memory, peer)?),
            })
        })
    })
}
