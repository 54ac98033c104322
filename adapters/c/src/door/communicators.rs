//! Exports the functions that create, query, split and destroy communicators.

use crate::config::{join, new_id, place_of};
use crate::error::{answer, record};
use crate::handles::{COMMUNICATORS, refusal};
use crate::memory::{self, as_pointer, communicator, place, ranks, text, write_rows};
use crate::types::{
    RINGTREE_SPLIT_NOCOLOR, number, rank, ringtree_call_stats_t, ringtree_comm_t,
    ringtree_config_t, ringtree_result_t, ringtree_unique_id_t,
};
use ringtree::{Communicator, Error, ErrorKind, Result};
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::time::Duration;

/// An output parameter for a new handle.
type Place<'a> = Option<&'a mut MaybeUninit<*mut ringtree_comm_t>>;

/// Creates a communicator with `start` and stores its handle in `out`. Stores null on failure or if
/// `start` returns `None`.
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

/// Creates the communicator that contains all ranks that a launcher has started: `ringtree run`,
/// torchrun, mpirun or srun. Waits until every rank has joined, but no longer than
/// RINGTREE_TIMEOUT_MS. Corresponds to MPI_Init.
///
/// Stores the communicator in `comm`, or NULL on failure. The program must destroy it with
/// ringtree_comm_destroy().
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_init_from_env(
    comm: Option<&mut MaybeUninit<*mut ringtree_comm_t>>,
) -> ringtree_result_t {
    make(comm, || Communicator::from_env().map(Some))
}

/// Like ringtree_comm_init_from_env(), but creates a communicator that consists of a single rank if
/// the program was not started by a launcher.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_init_from_env_or_alone(
    comm: Option<&mut MaybeUninit<*mut ringtree_comm_t>>,
) -> ringtree_result_t {
    make(comm, || Communicator::from_env_or_alone().map(Some))
}

/// Creates an ID for a new world and stores it in `id`. Call this function on rank 0's host.
/// Corresponds to ncclGetUniqueId.
///
/// The program must send the ID to all ranks, and each rank must pass it to
/// ringtree_comm_init_rank(). Each world needs its own ID. This process keeps the port given in the
/// ID reserved until it joins as rank 0.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_get_unique_id(
    id: Option<&mut MaybeUninit<ringtree_unique_id_t>>,
) -> ringtree_result_t {
    answer(|| {
        let out = place("id", id)?;
        out.write(new_id()?);
        Ok(())
    })
}

/// Joins the world identified by `id` as rank `rank` of `world_size` ranks. Waits until every rank
/// has joined. Corresponds to ncclCommInitRank.
///
/// Stores the communicator in `comm`, or NULL on failure. The program must destroy it with
/// ringtree_comm_destroy().
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_init_rank(
    comm: Option<&mut MaybeUninit<*mut ringtree_comm_t>>,
    world_size: c_int,
    id: Option<&ringtree_unique_id_t>,
    rank: c_int,
) -> ringtree_result_t {
    make(comm, || {
        let id = id.ok_or_else(|| Error::new(ErrorKind::Usage, "id is NULL"))?;
        join(place_of(rank, world_size)?, id).map(Some)
    })
}

/// Joins a world as rank `rank` of `world_size` ranks at `rendezvous`, which is the "host:port" at
/// which rank 0 listens. Waits until every rank has joined. If the ranks are on several hosts,
/// RINGTREE_SECRET or RINGTREE_SECRET_FILE must be set.
///
/// Stores the communicator in `comm`, or NULL on failure. The program must destroy it with
/// ringtree_comm_destroy().
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_init_at(
    comm: Option<&mut MaybeUninit<*mut ringtree_comm_t>>,
    world_size: c_int,
    rendezvous: *const c_char,
    rank: c_int,
) -> ringtree_result_t {
    make(comm, || {
        let missing = || {
            Error::new(
                ErrorKind::Usage,
                "rendezvous is NULL; pass rank 0's \"host:port\"",
            )
        };
        let address = text(rendezvous).ok_or_else(missing)?;
        let builder = place_of(rank, world_size)?.rendezvous(&address);
        builder.connect().map(Some)
    })
}

/// Creates a communicator with the settings in `config`. Waits until every rank has joined.
/// Depending on the fields that are set, the ranks find each other like those of
/// ringtree_comm_init_rank(), ringtree_comm_init_at() or ringtree_comm_init_from_env_or_alone().
/// Corresponds to ncclCommInitRankConfig.
///
/// Stores the communicator in `comm`, or NULL on failure. The program must destroy it with
/// ringtree_comm_destroy(). If the program was compiled with an older header, fields that it does
/// not have use their defaults. If it was compiled with a newer header that has more fields, the
/// function returns RINGTREE_USAGE.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_init_config(
    comm: Option<&mut MaybeUninit<*mut ringtree_comm_t>>,
    config: *const ringtree_config_t<'_>,
) -> ringtree_result_t {
    make(comm, || memory::config(config)?.connect().map(Some))
}

/// Calls `of` with the communicator and stores the number that it returns in `out`, the output
/// parameter named `what`.
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

/// Sets `rank` to the rank of this process in the communicator. Ranks are counted from 0.
/// Corresponds to MPI_Comm_rank and ncclCommUserRank.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_rank(
    comm: *mut ringtree_comm_t,
    rank: Option<&mut MaybeUninit<c_int>>,
) -> ringtree_result_t {
    ask(comm, ("rank", rank), Communicator::rank)
}

/// Sets `count` to the number of ranks in the communicator. Corresponds to MPI_Comm_size and
/// ncclCommCount.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_count(
    comm: *mut ringtree_comm_t,
    count: Option<&mut MaybeUninit<c_int>>,
) -> ringtree_result_t {
    ask(comm, ("count", count), Communicator::world_size)
}

/// Sets `local_rank` to the index of this process among the processes on its host, counted from 0.
/// It is the same in every communicator.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_local_rank(
    comm: *mut ringtree_comm_t,
    local_rank: Option<&mut MaybeUninit<c_int>>,
) -> ringtree_result_t {
    ask(comm, ("local_rank", local_rank), Communicator::local_rank)
}

/// Sets `async_error` to the result of the communicator's first error, or to RINGTREE_SUCCESS if
/// this rank does not know of an error. Does not block and does not communicate. Corresponds to
/// ncclCommGetAsyncError.
///
/// An error is known as soon as this rank learns that another rank has died or aborted, even if no
/// call is in flight. ringtree_last_error() then describes this error, and strings that it has
/// returned before are no longer valid. The function itself returns RINGTREE_SUCCESS in both cases.
/// Programs need this function only while they make no calls, because every call on a failed
/// communicator returns the error as well.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_get_async_error(
    comm: *mut ringtree_comm_t,
    async_error: Option<&mut MaybeUninit<ringtree_result_t>>,
) -> ringtree_result_t {
    answer(|| {
        let out = place("async_error", async_error)?;
        let found = COMMUNICATORS.own(comm.addr())?.error();
        out.write(found.map_or(ringtree_result_t::RINGTREE_SUCCESS, |error| record(&error)));
        Ok(())
    })
}

/// Sets the timeout, in milliseconds, for subsequent calls on this handle. A value of 0 means no
/// timeout. A call that takes longer than the timeout fails with RINGTREE_DEADLINE on all ranks.
/// The default is the value of RINGTREE_TIMEOUT_MS, or five minutes if that variable is not set.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_set_timeout_ms(
    comm: *mut ringtree_comm_t,
    timeout_ms: u64,
) -> ringtree_result_t {
    answer(|| {
        COMMUNICATORS.replace(comm.addr(), |old| match timeout_ms {
            0 => old.without_timeout(),
            _ => old.with_timeout(Duration::from_millis(timeout_ms)),
        })
    })
}

/// Reports how often this rank has made each kind of call on the communicator. Stores at most
/// `capacity` structures in `stats`, and the number that exist in `count`. `stats` may be NULL if
/// `capacity` is 0.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_get_stats(
    comm: *mut ringtree_comm_t,
    stats: *mut ringtree_call_stats_t,
    capacity: usize,
    count: Option<&mut MaybeUninit<usize>>,
) -> ringtree_result_t {
    answer(|| {
        let count = place("count", count)?;
        let rows = communicator(comm)?.stats();
        let rows: Vec<_> = rows.iter().map(ringtree_call_stats_t::of).collect();
        write_rows("stats", (stats, capacity), &rows)?;
        count.write(rows.len());
        Ok(())
    })
}

/// Creates one communicator for each color and stores the one that contains this rank in
/// `new_comm`. Corresponds to MPI_Comm_split and ncclCommSplit.
///
/// The members of each new communicator are the ranks that pass the same `color`, ordered by `key`.
/// Ranks with equal keys keep their relative order in `comm`. All ranks of `comm` must call this
/// function. A rank that passes RINGTREE_SPLIT_NOCOLOR does not join any group and gets NULL. The
/// program must destroy `new_comm` with ringtree_comm_destroy().
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_split(
    comm: *mut ringtree_comm_t,
    color: c_int,
    key: c_int,
    new_comm: Option<&mut MaybeUninit<*mut ringtree_comm_t>>,
) -> ringtree_result_t {
    make(new_comm, || {
        let negative = |_| {
            Error::new(
                ErrorKind::Usage,
                format!("color {color} must be at least 0"),
            )
        };
        let color = match color {
            RINGTREE_SPLIT_NOCOLOR => None,
            _ => Some(usize::try_from(color).map_err(negative)?),
        };
        // `split` requires keys of at least 0, so shift them all.
        let key = key.abs_diff(c_int::MIN) as usize;
        communicator(comm)?.split_optional(color, key)
    })
}

/// Creates a communicator that consists of the `count` ranks in `members`, numbered in the order of
/// the list, and stores it in `new_comm`. Only these ranks may call this function, and all of them
/// must call it. The program must destroy `new_comm` with ringtree_comm_destroy(). Corresponds to
/// MPI_Comm_create_group and ncclCommShrink.
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

/// Aborts the communicator and destroys the handle. Every call in flight and every subsequent call
/// fails on all ranks with an error that names this rank and `reason`, which may be NULL. Any
/// thread may call this function, even while other threads are waiting in calls. Corresponds to
/// ncclCommAbort and MPI_Abort, but does not end any process.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_abort(
    comm: *mut ringtree_comm_t,
    reason: *const c_char,
) -> ringtree_result_t {
    answer(|| {
        let taken = COMMUNICATORS.take(comm.addr(), |_| Ok(()))?;
        let comm = taken.ok_or_else(refusal)?;
        let rank = comm.rank();
        let line = match text(reason) {
            Some(reason) => format!("rank {rank} aborted: {reason}"),
            None => format!("rank {rank} aborted; check its output"),
        };
        comm.abort(&ringtree::internal::errors::lost(rank, line));
        Ok(())
    })
}

/// Leaves the communicator and destroys the handle. Delivers everything that has been sent, and
/// then notifies the other ranks that this rank is leaving. Corresponds to MPI_Finalize,
/// MPI_Comm_free and ncclCommDestroy.
///
/// Calls from other threads and work in flight still complete, and the other ranks are notified
/// only after the last of them has completed. The program must still wait for that work and free
/// it. If a program exits without calling this function, it appears to the other ranks to have
/// died. NULL is ignored. The function does nothing in a forked child of the process that joined.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_comm_destroy(comm: *mut ringtree_comm_t) -> ringtree_result_t {
    answer(|| match comm.is_null() {
        true => Ok(()),
        false => COMMUNICATORS.take(comm.addr(), |_| Ok(())).map(drop),
    })
}
