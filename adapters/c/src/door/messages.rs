//! Messages from rank to rank, waited for or started.

use crate::error::answer;
use crate::handles::WORK;
use crate::memory::{as_pointer, communicator, elements, place};
use crate::types::{self, dtype_from_c, ringtree_comm_t, ringtree_result_t, ringtree_work_t};
use ringtree::with_element;
use ringtree_foreign::{Operation, Pending};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

/// Sends `count` elements to `peer`, which must receive as many of the same type. May return before
/// it does, and may wait until it does. Messages from one rank to another are received in the order
/// in which they were sent. Two ranks that both send and then both receive may wait for each other:
/// start one of the two.
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
        with_element!(dtype, T => comm.send(&elements::<T>(send.addr(), count)?, peer))
    })
}

/// Receives `count` elements from `peer`.
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
        with_element!(dtype, T => comm.recv(&mut elements::<T>(recv.addr(), count)?, peer))
    })
}

/// Starts ringtree_send(). Any number of messages may be under way.
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

/// Starts ringtree_recv(). Any number of messages may be under way.
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

/// Starts a message: its memory as address and count, the type, the peer, and whether it is sent.
fn start(
    ((address, count), dtype, peer, is_sent): ((usize, usize), dtype_from_c, c_int, bool),
    comm: *mut ringtree_comm_t,
    work: Option<&mut MaybeUninit<*mut ringtree_work_t>>,
) -> ringtree_result_t {
    answer(|| {
        let out = place("work", work)?;
        let (dtype, peer) = (types::dtype(dtype)?, types::rank("peer", peer)?);
        let comm = communicator(comm)?;
        let started: Box<dyn Operation> = with_element!(dtype, T => {
            let memory = elements::<T>(address, count)?;
            match is_sent {
                true => Box::new(comm.send_async(memory, peer)?),
                false => Box::new(comm.recv_async(memory, peer)?),
            }
        });
        out.write(as_pointer(WORK.insert(Pending::of_operation(started))));
        Ok(())
    })
}
