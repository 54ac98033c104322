//! Creates groups, and the memory that a group's ranks share.
//!
//! *May import* the same modules as its parent.

use super::Runtime;
use super::operations::closed;
use crate::engine::group::Group;
use crate::error::{Error, Result};
use crate::limits::FIRST_ERROR_GRACE;
use crate::link::shm::exposed::{Allocation, Own, memory, memory_bytes, peer_memory};
use crate::protocol::members::Members;
use crate::sys::shared::OwnRegion;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// The exchange number for sharing allocations. See
/// [`Host::exchange`](super::host::Host::exchange).
const ALLOCATION: u32 = 0;

impl Runtime {
    /// Adds a group under the ID that all its members use for it. If `checks_calls` is `true`, all
    /// members agree on each call before it begins, starting with the first call.
    ///
    /// # Errors
    /// Returns an error if the links cannot be created within `at_most`.
    pub(crate) fn add_group(
        &self,
        number: u32,
        rank: usize,
        members: &Members,
        checks_calls: bool,
        at_most: Duration,
    ) -> Result<()> {
        let links = self.host.links(number, rank, members, at_most);
        let links = links.inspect_err(|error| self.host.report(error, members))?;
        let mut group = Group::among(rank, members.clone(), links);
        if checks_calls {
            group.check_calls();
        }
        let mut engine = self.lock_while_polled();
        engine.add_group(number, group);
        self.send_controls(&mut engine);
        Ok(())
    }

    /// Creates a group of `members` from group `parent` and returns the new group's ID. This rank
    /// becomes rank `rank` of the new group. All members make the same call, and other groups do
    /// not wait for it. The request is aborted if this process cannot continue, and, if
    /// `fails_with_parent` is `true`, also if the parent group fails.
    ///
    /// # Errors
    /// Returns an error if a member is lost or does not make the call within `at_most`. If this
    /// process cannot continue, returns the cause.
    pub(crate) fn make_group(
        &self,
        (parent, fails_with_parent): (u32, bool),
        rank: usize,
        members: &Members,
        checks_calls: bool,
        at_most: Duration,
    ) -> Result<u32> {
        self.host.awaits_group(true);
        let mut engine = self.lock_while_polled();
        let request = engine.request_group(parent, members);
        self.send_controls(&mut engine);
        drop(engine);
        let answer = self.await_group(request, fails_with_parent.then_some(parent), at_most);
        let answer = answer.inspect_err(|error| self.host.report(error, members));
        let made = answer.and_then(|number| {
            self.add_group(number, rank, members, checks_calls, at_most)?;
            Ok(number)
        });
        self.lock_while_polled().close_request(request);
        self.host.awaits_group(false);
        made
    }

    fn await_group(&self, request: u32, ends_with: Option<u32>, at_most: Duration) -> Result<u32> {
        let start = self.host.now();
        let mut end = start.saturating_add(at_most);
        self.wait_for(|engine| {
            let now = self.host.now();
            let answer = engine.group_result(request);
            let cause = engine.request_cause(request);
            let parent = ends_with.and_then(|parent| engine.group(parent));
            if cause.is_some() || parent.is_some_and(|group| group.has_failed()) {
                end = end.min(now);
            }
            if answer.is_none() && now >= end {
                // In response, rank 0 sends the same error to all ranks that are waiting.
                engine.withdraw_request(request, now - start);
                if now >= end.saturating_add(FIRST_ERROR_GRACE) {
                    let late = Error::deadline(format!(
                        "cannot create the group: rank 0 of the world, which numbers groups, has \
                         not answered within {:.1} s; check that rank",
                        (now - start).as_secs_f64()
                    ));
                    return Some(Err(cause.unwrap_or(late)));
                }
            }
            answer
        })
    }

    /// Returns the ranks of a group that share memory with this rank, including itself, in
    /// ascending order. Returns an empty list if no other rank shares memory with this rank.
    pub(crate) fn local_ranks(&self, members: &Members) -> Vec<usize> {
        let local = self.host.local_ranks();
        let ranks = local.iter().filter_map(|rank| members.rank_of(*rank));
        let mut ranks: Vec<usize> = ranks.collect();
        ranks.sort_unstable();
        if ranks.len() < 2 {
            ranks.clear();
        }
        ranks
    }

    /// Allocates memory for allocation `number` of a group. The group's peers on this host can read
    /// this memory. Returns `None` if there are no such peers.
    ///
    /// # Errors
    /// Returns an error if not all of these peers take part within `at_most`, or if the system does
    /// not provide the memory.
    pub(crate) fn allocate(
        &self,
        group: u32,
        number: u64,
        bytes: usize,
        at_most: Duration,
    ) -> Result<Option<OwnRegion>> {
        let members = self.members(group)?;
        if self.local_ranks(&members).is_empty() {
            return Ok(None);
        }
        let (own, file) =
            memory(bytes).map_err(|error| Error::io("cannot create shared memory", &error))?;
        let length = Some(memory_bytes(bytes));
        let files = self.exchange((group, ALLOCATION), &file, length, at_most)?;
        let map = |(rank, file)| {
            let mapping = |error| {
                let peer = members.name(rank);
                Error::io(format!("cannot map memory of {peer}"), &error)
            };
            Ok((rank, peer_memory(bytes, &file).map_err(mapping)?))
        };
        let theirs = files.into_iter().map(map).collect::<Result<_>>()?;
        let allocation = Allocation {
            number,
            own: Own::new(&own),
            theirs,
        };
        if let Some(group) = self.lock_while_polled().group(group) {
            group.admit(allocation);
        }
        Ok(Some(own))
    }

    fn members(&self, group: u32) -> Result<Members> {
        let members = self.with_group(group, |group| group.members().clone());
        members.ok_or_else(closed)
    }

    /// Passes a file to the group's ranks on this host. Returns the files that these ranks pass, in
    /// ascending order of their group ranks. See [`Host::exchange`](super::host::Host::exchange).
    ///
    /// # Errors
    /// Returns the group's error if the group fails in the meantime, or the same errors as
    /// [`Host::exchange`](super::host::Host::exchange).
    pub(crate) fn exchange(
        &self,
        (group, number): (u32, u32),
        file: &OwnedFd,
        bytes: Option<usize>,
        at_most: Duration,
    ) -> Result<Vec<(usize, OwnedFd)>> {
        let members = self.members(group)?;
        let own = self.with_group(group, |group| group.rank());
        let others = self.local_ranks(&members).into_iter();
        let others = others.filter(|rank| Some(*rank) != own);
        let others: Vec<usize> = others.map(|rank| members.world_rank(rank)).collect();
        let failure = || self.with_group(group, |group| group.error().cloned());
        // A rank that cannot take part fails the group and does not report an error in the
        // exchange.
        let goes_on = || {
            self.handle_interrupt();
            failure().flatten().is_none()
        };
        let file = (file, bytes);
        let handed = self
            .host
            .exchange((group, number), &others, file, at_most, &goes_on);
        let first = |error| failure().flatten().unwrap_or(members.of_the_world(error));
        let handed = handed.map_err(first);
        let handed = handed.inspect_err(|error| self.host.report(error, &members))?;
        let in_group = |(rank, file)| Some((members.rank_of(rank)?, file));
        let mut handed: Vec<_> = handed.into_iter().filter_map(in_group).collect();
        handed.sort_by_key(|(rank, _)| *rank);
        Ok(handed)
    }
}
