//! Creates groups, which are communicators for some or all of a communicator's ranks.

use super::builder::transport_name;
use super::tuning::TuningOrigin;
use super::{Communicator, Parts};
use crate::error::{Error, Result};
use crate::limits::MEMBERS_LISTED_MAX;
use crate::plan::TuningTable;

/// Number of words that each rank contributes to a split: a word that is 1 if the rank has a color
/// and 0 otherwise, the color, and the key.
const WORDS_PER_RANK: usize = 3;

/// Methods that create groups.
impl Communicator {
    /// Creates one group for each color and returns the group that this rank belongs to. The
    /// members of a group are the ranks that pass the same `color`, ordered by `key`. Ranks with
    /// equal keys keep their relative order in this communicator. All ranks must make this call in
    /// the same order relative to their other calls on this communicator. A rank that is not to
    /// join any group calls [`Communicator::split_optional`] instead.
    ///
    /// Each group has its own order of calls, so calls on a group neither wait for nor delay calls
    /// on other communicators. A rank can use several groups in any order, as long as no two ranks
    /// end up waiting for each other in different groups.
    ///
    /// A group inherits the timeout, the table of link speeds, the algorithm and the local rank. A
    /// group can itself be split, and it does not need its own thread. Its connections and its
    /// shared memory are created when a call first needs them. In a group of 8 ranks that share
    /// memory, each rank needs less than 1 MiB.
    ///
    /// This example creates a grid of data-parallel and tensor-parallel groups:
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let sums = ringtree::simulate(4, |comm| {
    ///     let (row, column) = (comm.rank() / 2, comm.rank() % 2);
    ///     let tensor = comm.split(row, 0)?;
    ///     let data = comm.split(column, 0)?;
    ///     let mut numbers = [comm.rank() as f32; 2];
    ///     tensor.all_reduce(&mut numbers[..1], ReduceOp::Sum)?;
    ///     data.all_reduce(&mut numbers[1..], ReduceOp::Sum)?;
    ///     Ok::<_, ringtree::Error>(numbers)
    /// });
    /// assert_eq!(sums, [Ok([1.0, 2.0]), Ok([1.0, 4.0]), Ok([5.0, 2.0]), Ok([5.0, 4.0])]);
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors), or one of the errors
    /// that [`Communicator::subgroup`] returns.
    #[doc(alias("MPI_Comm_split", "ncclCommSplit", "new_group"))]
    pub fn split(&self, color: usize, key: usize) -> Result<Self> {
        let group = self.split_optional(Some(color), key)?;
        Ok(group.expect("invariant: a rank with a color joins a group"))
    }

    /// Like [`Communicator::split`], but a rank that passes `None` does not join any group and gets
    /// `None`. Ranks can mix both calls.
    ///
    /// ```
    /// let sizes = ringtree::simulate(4, |comm| {
    ///     let color = (comm.rank() < 3).then_some(0);
    ///     let group = comm.split_optional(color, 0)?;
    ///     Ok::<_, ringtree::Error>(group.map(|group| group.world_size()))
    /// });
    /// assert_eq!(sizes, [Ok(Some(3)), Ok(Some(3)), Ok(Some(3)), Ok(None)]);
    /// ```
    ///
    /// # Errors
    /// Returns the same errors as [`Communicator::split`].
    #[doc(alias("MPI_UNDEFINED", "NCCL_SPLIT_NOCOLOR"))]
    pub fn split_optional(&self, color: Option<usize>, key: usize) -> Result<Option<Self>> {
        let mut told = vec![[0u64; WORDS_PER_RANK]; self.world_size()];
        let has_color = u64::from(color.is_some());
        told[self.rank()] = [has_color, color.unwrap_or(0) as u64, key as u64];
        self.all_gather(told.as_flattened_mut())?;
        let group = self.join_group(&told);
        // A rank may leave the world as soon as this call returns, but rank 0 of the world must not
        // leave before it has created the groups of all ranks. Therefore, ranks in different groups
        // wait for each other here. If the barrier fails, this communicator has failed, but the new
        // group still works.
        if told.iter().any(|one| one[..2] != told[0][..2]) {
            let _ = self.barrier();
        }
        group
    }

    /// Creates the group that this rank joins in a split, given the words that all ranks
    /// contributed.
    fn join_group(&self, told: &[[u64; WORDS_PER_RANK]]) -> Result<Option<Self>> {
        let own = told[self.rank()];
        if own[0] == 0 {
            return Ok(None);
        }
        let ranks = 0..self.world_size();
        let mut ranks: Vec<usize> = ranks.filter(|rank| told[*rank][..2] == own[..2]).collect();
        // This sort is stable, so ranks with equal keys stay in rank order.
        ranks.sort_by_key(|rank| told[*rank][2]);
        let made = self.make_group(&ranks, true);
        made.map(Some).map_err(|error| {
            let error = error.renumbered(|rank| ranks.get(rank).copied(), "");
            self.first_cause(error)
        })
    }

    /// Creates a group that consists of the ranks in `ranks`, numbered in the order of the list.
    /// Only the ranks in the list make this call, and all of them must pass the same list. A rank
    /// that makes this call twice with the same list gets two separate groups. See
    /// [`Communicator::split`] for a description of groups.
    ///
    /// This call is not part of this communicator's order of calls. The members wait only for each
    /// other, and for no longer than the timeout of the handle (see [`Communicator::with_timeout`]
    /// and [`Communicator::without_timeout`]).
    ///
    /// Rank 0 of the world assigns the group numbers, so it must not have left. Assigning a number
    /// does not interrupt the program on rank 0. The call works even if the parent communicator has
    /// failed, so the surviving ranks can create a group without the lost rank.
    ///
    /// Error messages show the rank in the group, followed by the world rank if the two differ:
    /// `rank 1 (world rank 5)`.
    ///
    /// ```
    /// let roots = ringtree::simulate(4, |comm| {
    ///     let mut root = [comm.rank() as u64];
    ///     if comm.rank() % 2 == 1 {
    ///         let group = comm.subgroup(&[3, 1])?;
    ///         group.broadcast(&mut root, 0)?; // from this communicator's rank 3
    ///     }
    ///     comm.barrier()?;
    ///     Ok::<_, ringtree::Error>(root[0])
    /// });
    /// assert_eq!(roots, [Ok(0), Ok(3), Ok(2), Ok(3)]);
    /// ```
    ///
    /// # Errors
    /// Returns an [`Error`] of one of the following kinds:
    /// - [`ErrorKind::Usage`](crate::ErrorKind::Usage) if the list is too long, repeats a rank,
    ///   contains a nonexistent rank or does not contain this rank, or if this rank is already
    ///   waiting for too many groups to be created.
    /// - [`ErrorKind::PeerLost`](crate::ErrorKind::PeerLost) if a member is lost or has left.
    /// - [`ErrorKind::Deadline`](crate::ErrorKind::Deadline) if some members did not make this call
    ///   in time. The error lists the missing members.
    /// - [`ErrorKind::System`](crate::ErrorKind::System) if rank 0 of the world is not a member and
    ///   is lost or has left.
    ///
    /// If a member is lost or missing, all members that made this call get the same error, and the
    /// parent communicator is not affected. If the user
    /// [interrupted](super::builder::Builder::interrupt) this process, the error reports the
    /// interruption.
    #[doc(alias("MPI_Comm_create_group", "ncclCommShrink"))]
    pub fn subgroup(&self, ranks: &[usize]) -> Result<Self> {
        self.make_group(ranks, false)
    }

    /// Creates a group of `ranks`. If `ends_with` is `true` and this communicator fails in the
    /// meantime, returns an error.
    fn make_group(&self, ranks: &[usize], ends_with: bool) -> Result<Self> {
        let parts = self.parts_of_group(ranks, ends_with)?;
        Ok(self.with_parts(parts))
    }

    /// Creates a communicator from `parts`, with the same timeout as this handle.
    fn with_parts(&self, parts: Parts) -> Self {
        Self {
            timeout: self.timeout,
            ..Self::assemble(parts)
        }
    }

    /// Like [`Communicator::make_group`], but returns the parts from which to assemble the group's
    /// communicator.
    fn parts_of_group(&self, ranks: &[usize], ends_with: bool) -> Result<Parts> {
        let rank = self.place_in(ranks)?;
        let algorithm = self.enter()?.algorithm;
        let Parts {
            runtime,
            members,
            hosts,
            sites,
            group,
            checks_calls,
            transport_name: parents_transport,
            ..
        } = &self.core.parts;
        let runtime = runtime.get()?;
        let of_members = |all: &[usize]| ranks.iter().map(|one| all[*one]).collect();
        let (hosts, sites) = (of_members(hosts), of_members(sites));
        let members = members.part(ranks);
        let from = (*group, ends_with);
        let group = runtime.make_group(from, rank, &members, *checks_calls, self.timeout)?;
        let transport = match *parents_transport {
            "sim" => "sim",
            _ => transport_name(runtime.local_ranks(&members).len(), ranks.len()),
        };
        Ok(Parts {
            rank,
            members,
            hosts,
            sites,
            group,
            algorithm,
            transport_name: transport,
            ..self.core.parts.clone()
        })
    }

    /// Creates another communicator for the same ranks. The new communicator has its own order of
    /// calls and its own links, so calls on one communicator do not wait for calls on the other. It
    /// inherits the settings of this communicator. All ranks must make this call in the same order
    /// relative to their other calls on this communicator.
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let ends = ringtree::simulate(3, |comm| {
    ///     let other = comm.duplicate()?;
    ///     let work = comm.start_all_reduce(vec![1.0f32; 4], ReduceOp::Sum)?;
    ///     other.barrier()?; // does not wait for the work
    ///     Ok::<_, ringtree::Error>(work.wait()?)
    /// });
    /// assert_eq!(ends[0], Ok(vec![3.0; 4]));
    /// ```
    ///
    /// # Errors
    /// Returns the same errors as [`Communicator::split`].
    #[doc(alias("MPI_Comm_dup"))]
    pub fn duplicate(&self) -> Result<Self> {
        self.split(0, 0)
    }

    /// Creates a duplicate that uses `table` to choose algorithms.
    pub(super) fn duplicate_by(&self, table: TuningTable, origin: TuningOrigin) -> Result<Self> {
        let all: Vec<usize> = (0..self.world_size()).collect();
        let parts = self.parts_of_group(&all, true);
        let parts = parts.map_err(|error| self.first_cause(error))?;
        Ok(self.with_parts(Parts {
            tuning: table,
            tuning_origin: origin,
            ..parts
        }))
    }

    /// Checks the list of a new group's members and returns this rank's index in it.
    fn place_in(&self, ranks: &[usize]) -> Result<usize> {
        let refused = |why: String| Error::usage(format!("cannot create a group: {why}"));
        let mut seen = vec![false; self.world_size()];
        for rank in ranks {
            self.check_peer("member", *rank)?;
            if std::mem::replace(&mut seen[*rank], true) {
                return Err(refused(format!("rank {rank} is listed twice")));
            }
        }
        if ranks.len() > MEMBERS_LISTED_MAX {
            let count = ranks.len();
            let why = format!("{count} ranks exceed the limit of {MEMBERS_LISTED_MAX}");
            return Err(refused(why));
        }
        let rank = self.rank();
        let own = ranks.iter().position(|one| *one == rank);
        own.ok_or_else(|| {
            refused(format!(
                "rank {rank} is not in the list; call subgroup only on members"
            ))
        })
    }
}
