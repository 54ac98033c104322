//! Starting, asking, splitting and leaving.

use crate::error::answer;
use crate::handles::COMMUNICATORS;
use crate::memory::{as_pointer, communicator, place, ranks, text};
use crate::types::{
    RINGTREE_SPLIT_NOCOLOR, RINGTREE_UNIQUE_ID_BYTES, number, rank, ringtree_comm_t,
    ringtree_result_t, ringtree_unique_id_t,
};
use ringtree::{Builder, Communicator, Error, Result, UniqueId};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Where a new handle goes.
type Place<'a> = Option<&'a mut MaybeUninit<*mut ringtree_comm_t>>;

/// The ids that this process made, whose ports it keeps until its rank 0 has taken them.
static IDS: Mutex<BTreeMap<[u8; RINGTREE_UNIQUE_ID_BYTES], UniqueId>> = Mutex::new(BTreeMap::new());

fn ids() -> MutexGuard<'static, BTreeMap<[u8; RINGTREE_UNIQUE_ID_BYTES], UniqueId>> {
    IDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a communicator, and puts its handle at `out`: null, if there is none.
fn make(out: Place<'_>, start: impl FnOnce() -> Result<Option<Communicator>>) -> ringtree_result_t {
    answer(|| {
        let out = place("comm", out)?;
        out.write(null_mut());
        if let Some(comm) = start()? {
            out.write(as_pointer(COMMUNICATORS.insert(comm)));
        }
        Ok(())
    })
}

/// Joins all ranks, as the variables that `ringtree run` and torchrun set say. Waits until every
/// rank has come, at most RINGTREE_TIMEOUT_MS.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_init_from_env(
    comm: Option<&mut MaybeUninit<*mut ringtree_comm_t>>,
) -> ringtree_result_t {
    make(comm, || Communicator::from_env().map(Some))
}

/// The same; or, in a program that no launcher has started, one rank alone.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_init_from_env_or_alone(
    comm: Option<&mut MaybeUninit<*mut ringtree_comm_t>>,
) -> ringtree_result_t {
    make(comm, || Communicator::from_env_or_alone().map(Some))
}

/// Makes an id for a world, on the host of its rank 0. The program hands it on to all ranks, each
/// of which gives it to ringtree_comm_init_rank(). Each world takes an id of its own. The port in
/// it is kept free until rank 0, in this process, has joined.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_get_unique_id(
    id: Option<&mut MaybeUninit<ringtree_unique_id_t>>,
) -> ringtree_result_t {
    answer(|| {
        let out = place("id", id)?;
        let id = UniqueId::new()?;
        let bytes = id.to_bytes();
        ids().insert(bytes, id);
        out.write(ringtree_unique_id_t { bytes });
        Ok(())
    })
}

/// Joins the world of this id as `rank` of `world_size`. Waits until every rank has come.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_init_rank(
    comm: Option<&mut MaybeUninit<*mut ringtree_comm_t>>,
    world_size: c_int,
    id: Option<&ringtree_unique_id_t>,
    rank: c_int,
) -> ringtree_result_t {
    make(comm, || {
        let bytes = id.ok_or_else(|| Error::usage("id is NULL"))?.bytes;
        let made_here = ids().get(&bytes).cloned();
        let id = match made_here {
            Some(id) => id,
            None => UniqueId::from_bytes(&bytes)?,
        };
        let comm = place_of(rank, world_size)?.unique_id(&id).connect()?;
        if comm.rank() == 0 {
            ids().remove(&bytes);
        }
        Ok(Some(comm))
    })
}

/// Joins as `rank` of `world_size` at `rendezvous`, the "host:port" at which rank 0 listens. Between
/// hosts, RINGTREE_SECRET or RINGTREE_SECRET_FILE must be set. Waits until every rank has come.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_init_at(
    comm: Option<&mut MaybeUninit<*mut ringtree_comm_t>>,
    world_size: c_int,
    rendezvous: *const c_char,
    rank: c_int,
) -> ringtree_result_t {
    make(comm, || {
        let address = text(rendezvous).ok_or_else(|| Error::usage("rendezvous is NULL"))?;
        let builder = place_of(rank, world_size)?.rendezvous(&address);
        builder.connect().map(Some)
    })
}

fn place_of(own: c_int, world_size: c_int) -> Result<Builder> {
    let negative = |_| Error::usage(format!("there cannot be {world_size} ranks"));
    Builder::for_rank(
        rank("rank", own)?,
        usize::try_from(world_size).map_err(negative)?,
    )
}

/// Puts a number of the communicator at `out`.
fn ask(
    comm: *mut ringtree_comm_t,
    (what, out): (&str, Option<&mut MaybeUninit<c_int>>),
    of: impl FnOnce(&Communicator) -> usize,
) -> ringtree_result_t {
    answer(|| {
        let out = place(what, out)?;
        out.write(number(of(&*communicator(comm)?)));
        Ok(())
    })
}

/// This process's number in the communicator, from 0.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_rank(
    comm: *mut ringtree_comm_t,
    rank: Option<&mut MaybeUninit<c_int>>,
) -> ringtree_result_t {
    ask(comm, ("rank", rank), Communicator::rank)
}

/// How many ranks the communicator has.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_count(
    comm: *mut ringtree_comm_t,
    count: Option<&mut MaybeUninit<c_int>>,
) -> ringtree_result_t {
    ask(comm, ("count", count), Communicator::world_size)
}

/// This process's number on its host, from 0: the same in every communicator.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_local_rank(
    comm: *mut ringtree_comm_t,
    local_rank: Option<&mut MaybeUninit<c_int>>,
) -> ringtree_result_t {
    ask(comm, ("local_rank", local_rank), Communicator::local_rank)
}

/// How long each later call on this handle may take, in milliseconds, before it ends with
/// RINGTREE_DEADLINE on all ranks; 0 for as long as it takes. At first it is RINGTREE_TIMEOUT_MS, or
/// five minutes.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_set_timeout_ms(
    comm: *mut ringtree_comm_t,
    timeout_ms: u64,
) -> ringtree_result_t {
    answer(|| {
        COMMUNICATORS.replace(comm.addr(), |old| match timeout_ms {
            0 => old.patient(),
            _ => old.with_timeout(Duration::from_millis(timeout_ms)),
        })
    })
}

/// Makes a communicator of the ranks that give the same `color`, numbered by `key`, and where keys
/// are equal by their ranks here. All ranks of `comm` call it. A rank that gives
/// RINGTREE_SPLIT_NOCOLOR is in none, and gets NULL.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_split(
    comm: *mut ringtree_comm_t,
    color: c_int,
    key: c_int,
    new_comm: Option<&mut MaybeUninit<*mut ringtree_comm_t>>,
) -> ringtree_result_t {
    make(new_comm, || {
        let negative = |_| Error::usage(format!("{color} is no colour: they count from 0"));
        let color = match color {
            RINGTREE_SPLIT_NOCOLOR => None,
            _ => Some(usize::try_from(color).map_err(negative)?),
        };
        // In the same order, from 0 on.
        let key = key.abs_diff(c_int::MIN) as usize;
        communicator(comm)?.split(color, key)
    })
}

/// Makes a communicator of the `count` ranks of this list, numbered in its order. Its members alone
/// call this.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_subgroup(
    comm: *mut ringtree_comm_t,
    members: *const c_int,
    count: usize,
    new_comm: Option<&mut MaybeUninit<*mut ringtree_comm_t>>,
) -> ringtree_result_t {
    make(new_comm, || {
        let members = ranks(members, count)?.into_iter();
        let members = members.map(|one| rank("member", one));
        let members = members.collect::<Result<Vec<usize>>>()?;
        communicator(comm)?.subgroup(&members).map(Some)
    })
}

/// Gives up: every call under way and every later one ends, on all ranks, with an error that names
/// this rank and the `reason`, which may be NULL. Destroys the handle. Any thread may call it, also
/// while others wait in calls.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_abort(
    comm: *mut ringtree_comm_t,
    reason: *const c_char,
) -> ringtree_result_t {
    answer(|| {
        let comm = COMMUNICATORS.take(comm.addr(), |_| Ok(()))?;
        let rank = comm.rank();
        let line = match text(reason) {
            Some(reason) => format!("rank {rank} aborted: {reason}"),
            None => format!("rank {rank} aborted; look at its output"),
        };
        comm.fail(&Error::peer_lost(rank, line).with_rank(rank));
        Ok(())
    })
}

/// Leaves, and destroys the handle: what was sent is delivered, then the other ranks are told. Calls
/// of other threads and work under way go on to their ends, and the other ranks are told after the
/// last of them; work stays to be waited for and freed. A program that ends without it looks to the
/// other ranks like one that died. NULL is ignored, and so is all in a child that was forked from
/// the process that joined.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_destroy(comm: *mut ringtree_comm_t) -> ringtree_result_t {
    answer(|| {
        // Leaving is the parent's to do.
        if comm.is_null() || COMMUNICATORS.is_of_parent() {
            return Ok(());
        }
        COMMUNICATORS.take(comm.addr(), |_| Ok(())).map(drop)
    })
}
