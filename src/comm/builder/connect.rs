//! Connects a rank that has complete settings: joins the world, starts a runtime, and measures the
//! links if no table of link speeds is known.

use crate::bootstrap::join::join;
use crate::bootstrap::settings::Settings;
use crate::comm::tuning::{self, MEASURING_GROUP, TuningOrigin};
use crate::comm::{Communicator, Parts};
use crate::control::Membership;
use crate::error::{Error, Result};
use crate::event::{Event, EventQueue, Joined};
use crate::link::tcp::Reactor;
use crate::plan::internal::topology::at_sites;
use crate::plan::{Algorithm, TuningTable};
use crate::protocol::members::Members;
use crate::runtime::crowding::Crowding;
use crate::runtime::fork_guard::RuntimeHandle;
use crate::runtime::local::LocalRanks;
use crate::runtime::process::{Callbacks, ProcessHost, Shared};
use crate::sys::generation::count_forks;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

/// Number of the group that contains all ranks.
const WORLD: u32 = 0;

pub(super) fn connect(settings: &Settings) -> Result<Communicator> {
    count_forks().map_err(|error| Error::io("cannot register a handler for forks", &error))?;
    let table = tuning::Start::of(settings)?;
    let algorithm = settings
        .algorithm
        .as_deref()
        .map(str::parse::<Algorithm>)
        .transpose();
    let algorithm =
        algorithm.map_err(|error| Error::configuration(format!("RINGTREE_ALGORITHM: {error}")))?;
    let reactor = Reactor::new().map_err(|error| Error::io("cannot set up epoll", &error))?;
    let reactor = Arc::new(reactor);
    let joined = join(settings)?;
    let membership = joined.membership.clone();
    let (rank, world_size) = (membership.rank, membership.world_size);
    let local = local_ranks(&membership, &reactor)?;
    let shared = Arc::new(Shared::new(Arc::clone(&reactor), local));
    let (local_rank, local_count) = membership.place_on_host();
    let local_count = settings.local_world_size.unwrap_or(local_count);
    let cores = membership.cores_if_bound();
    let host = host_of(settings, &shared, rank, (local_count, cores));
    let own = RuntimeHandle::new(rank, Box::new(host));
    let runtime = own.get()?;
    runtime.set_stall_warning(settings.stall_warning);
    shared.connect(membership.control.clone(), own.downgrade());
    let host_names = membership.peers.iter().map(|peer| peer.host_name.clone());
    let members = Members::everyone(world_size).on_hosts(host_names);
    let (checks, at_most) = (settings.checks_calls, settings.timeout);
    runtime.add_group(WORLD, rank, &members, checks, at_most)?;
    let (hosts, sites) = (membership.hosts(), membership.sites()?);
    let topology = at_sites(&hosts, &sites);
    let known = table.known_by(&membership, &topology);
    if known.is_none() {
        runtime.add_group(MEASURING_GROUP, rank, &members, false, at_most)?;
    }
    let callbacks = Callbacks(Arc::clone(&shared));
    joined.start(Arc::new(callbacks), Some(reactor.as_raw_fd()))?;
    end_when_cancelled(settings, &own);
    let mut parts = Parts {
        rank,
        hosts: hosts.into(),
        sites: sites.into(),
        members,
        local_rank: settings.local_rank.unwrap_or(local_rank),
        group: WORLD,
        runtime: own,
        transport_name: transport_name(membership.local_ranks().len(), world_size),
        timeout: settings.timeout,
        device_path: settings.device_path,
        tuning: TuningTable::default(),
        tuning_origin: TuningOrigin::BuiltIn,
        algorithm,
        // Calls that measure links are neither checked nor restricted to reproducible algorithms.
        checks_calls: false,
        is_reproducible: false,
    };
    (parts.tuning, parts.tuning_origin) = match known {
        Some(known) => known,
        None => tuning::measured(&parts, settings, &membership)?,
    };
    parts.checks_calls = settings.checks_calls;
    parts.is_reproducible = settings.is_reproducible;
    emit_joined(settings, &membership, &parts);
    let comm = Communicator::assemble(parts);
    match settings.start.cancel.disarm() {
        true => Err(settings.cancelled()),
        false => Ok(comm),
    }
}

fn emit_joined(settings: &Settings, membership: &Membership, parts: &Parts) {
    let own = &membership.peers[membership.rank];
    let joined = Joined {
        rank: membership.rank,
        world_size: membership.world_size,
        host: own.host_name.clone(),
        launcher: settings.launcher,
        address: match membership.world_size {
            1 => String::new(),
            _ => own.address.to_string(),
        },
        transport: transports(&membership.local_ranks(), membership.world_size),
        tuning: parts.tuning_origin.to_string(),
    };
    let runtime = parts.runtime.get().ok();
    if let Some(events) = runtime.and_then(|runtime| runtime.events()) {
        events.emit(Event::Joined(Box::new(joined)));
    }
}

/// Creates the [`ProcessHost`] that the runtime of `rank` runs on.
fn host_of(
    settings: &Settings,
    shared: &Arc<Shared>,
    rank: usize,
    (local_count, cores): (usize, Option<usize>),
) -> ProcessHost {
    let available = || std::thread::available_parallelism().map_or(1, usize::from);
    let cores = cores.unwrap_or_else(available);
    ProcessHost {
        shared: Arc::clone(shared),
        start: Instant::now(),
        has_own_core: local_count <= cores,
        crowding: Crowding::default(),
        rank,
        interrupt: settings.start.interrupt.clone(),
        events: EventQueue::new(),
        report_fd: settings.report_fd,
    }
}

/// Makes all operations of `runtime` fail if the startup is canceled. From this point on, the
/// startup may wait in a collective, which itself does not check for cancellation.
fn end_when_cancelled(settings: &Settings, runtime: &RuntimeHandle) {
    let (runtime, cause) = (runtime.downgrade(), settings.cancelled());
    settings.start.cancel.on_cancel(move || {
        if let Some(runtime) = runtime.upgrade() {
            runtime.give_up(&cause);
        }
    });
}

fn local_ranks(membership: &Membership, reactor: &Arc<Reactor>) -> Result<Option<LocalRanks>> {
    let Some(near) = &membership.local else {
        return Ok(None);
    };
    near.end_sleeps_of(reactor)
        .map_err(|error| Error::io("cannot set up epoll", &error))?;
    let neighbours = membership.local_ranks();
    Ok(LocalRanks::new(
        Arc::clone(near),
        membership.rank,
        neighbours,
    ))
}

/// Returns the transport name for a group of `count` ranks. `local` is the number of ranks in the
/// group that share memory with this rank, including itself.
pub(in crate::comm) fn transport_name(local: usize, count: usize) -> &'static str {
    match local {
        all if all == count && all > 1 => "shm",
        0 | 1 => "tcp",
        _ => "shm+tcp",
    }
}

/// Describes the transport to each rank. `local` contains the ranks that share memory with this
/// rank, including itself, in ascending order.
fn transports(local: &[usize], world_size: usize) -> String {
    match local.len() {
        0 | 1 => "TCP to all ranks".to_owned(),
        all if all == world_size => "shared memory to all ranks".to_owned(),
        _ => format!("shared memory to ranks {}, TCP to others", ranges(local)),
    }
}

/// Returns ascending numbers as ranges, such as `0-3, 7`.
fn ranges(numbers: &[usize]) -> String {
    let chunks = numbers.chunk_by(|one, next| one + 1 == *next);
    let range = |chunk: &[usize]| match chunk {
        [first, .., last] => format!("{first}-{last}"),
        _ => chunk[0].to_string(),
    };
    chunks.map(range).collect::<Vec<_>>().join(", ")
}
