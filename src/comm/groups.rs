//! Communicators of some of a communicator's ranks.

use super::builder::transport_name;
use super::tuning::TuningOrigin;
use super::{Communicator, Parts};
use crate::error::{Error, Result};
use crate::limits::MEMBERS_LISTED_MAX;
use crate::plan::select::TuningTable;

/// What a rank tells the others of a split: whether it has a colour, the colour, the key.
const WORDS_OF_A_RANK: usize = 3;

/// Groups.
impl Communicator {
    /// A communicator of the ranks that give the same `color`, numbered by `key`, and where keys
    /// are equal by their ranks here. A rank without a colour (`None`) is in no group. All ranks
    /// call it, in the order of their calls on this communicator.
    ///
    /// A group has an order of calls of its own: what is issued on it neither waits for other
    /// communicators nor holds them up. It starts with this one's timeout, table of speeds and
    /// algorithm, and has the same local rank. It takes no thread; its connections and its shared
    /// memory are made where a call first needs them, less than 1 MiB a rank for 8 ranks that
    /// share memory. It can be split again. Each rank makes its calls on several groups in
    /// whatever order it likes, if no two ranks wait for each other in different ones.
    ///
    /// A grid of data-parallel and tensor-parallel groups:
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let sums = ringtree::simulate(4, |comm| {
    ///     let (row, column) = (comm.rank() / 2, comm.rank() % 2);
    ///     let tensor = comm.split(row, 0)?.expect("it has a colour");
    ///     let data = comm.split(column, 0)?.expect("it has a colour");
    ///     let mut numbers = [comm.rank() as f32; 2];
    ///     tensor.all_reduce(&mut numbers[..1], ReduceOp::Sum)?;
    ///     data.all_reduce(&mut numbers[1..], ReduceOp::Sum)?;
    ///     Ok::<_, ringtree::Error>(numbers)
    /// });
    /// assert_eq!(sums, [Ok([1.0, 2.0]), Ok([1.0, 4.0]), Ok([5.0, 2.0]), Ok([5.0, 4.0])]);
    /// ```
    ///
    /// # Errors
    /// Any of [`Error`]: those of a collective on this communicator, then those of
    /// [`Communicator::subgroup`].
    pub fn split(&self, color: impl Into<Option<usize>>, key: usize) -> Result<Option<Self>> {
        let color = color.into();
        let mut told = vec![[0u64; WORDS_OF_A_RANK]; self.world_size()];
        let has_color = u64::from(color.is_some());
        told[self.rank()] = [has_color, color.unwrap_or(0) as u64, key as u64];
        self.all_gather(told.as_flattened_mut())?;
        let own = told[self.rank()];
        if own[0] == 0 {
            return Ok(None);
        }
        let ranks = 0..self.world_size();
        let mut ranks: Vec<usize> = ranks.filter(|rank| told[*rank][..2] == own[..2]).collect();
        // A stable sort: ranks with equal keys stay in order.
        ranks.sort_by_key(|rank| told[*rank][2]);
        let made = self.make_group(&ranks, true);
        made.map(Some).map_err(|error| {
            let error = error.renumbered(|rank| ranks.get(rank).copied(), "");
            self.first_cause(error)
        })
    }

    /// A communicator of the ranks `ranks` of this one, numbered in the order of the list. Only its
    /// members call it, all with the same list; the others need not know. It is no call in this
    /// communicator's order: nothing waits for it but its members, for each other. A rank that
    /// calls it twice with the same list gets two groups. The members have the timeout of the
    /// handle to come, see [`Communicator::with_timeout`] and [`Communicator::patient`].
    ///
    /// [`Communicator::split`] says what a group is. Rank 0 of the world gives groups their
    /// numbers, so it must not have left; its program is not disturbed. A communicator that has
    /// failed can still be the parent: the ranks that are left can make a group without the one
    /// that is gone.
    ///
    /// Messages name a rank by its number in the group and, where it differs, in the world:
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
    /// [`Error::usage`] if the list has a rank twice, one that there is not, or not the caller's;
    /// [`Error::peer_lost`] if a member is gone, [`Error::deadline`] with the members that did not
    /// come in time: then all members that came get the same error, and this communicator is as it
    /// was. Where the user [interrupted](super::builder::Builder::interrupt) this process, its
    /// error says so.
    pub fn subgroup(&self, ranks: &[usize]) -> Result<Self> {
        self.make_group(ranks, false)
    }

    /// Makes a group of `ranks`; if it `ends_with` this communicator, which fails meanwhile, none.
    fn make_group(&self, ranks: &[usize], ends_with: bool) -> Result<Self> {
        let made = Self::assemble(self.parts_of_group(ranks, ends_with)?);
        Ok(Self(made.0, self.1, 0))
    }

    /// What a group of `ranks` is made of; see [`Communicator::make_group`].
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
        } = &self.0.parts;
        let runtime = runtime.get()?;
        let of_members = |all: &[usize]| ranks.iter().map(|one| all[*one]).collect();
        let (hosts, sites) = (of_members(hosts), of_members(sites));
        let members = members.part(ranks);
        let from = (*group, ends_with);
        let group = runtime.make_group(from, rank, &members, *checks_calls, self.1)?;
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
            ..self.0.parts.clone()
        })
    }

    /// Another communicator of the same ranks, with an order and links of its own: what is issued
    /// on one does not wait for what is issued on the other. It starts with this one's settings.
    /// All ranks call it, in the order of their calls on this communicator.
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let ends = ringtree::simulate(3, |comm| {
    ///     let other = comm.duplicate()?;
    ///     let work = comm.all_reduce_async(vec![1.0f32; 4], ReduceOp::Sum)?;
    ///     other.barrier()?; // does not wait for the work
    ///     Ok::<_, ringtree::Error>(work.wait()?)
    /// });
    /// assert_eq!(ends[0], Ok(vec![3.0; 4]));
    /// ```
    ///
    /// # Errors
    /// Those of [`Communicator::split`].
    pub fn duplicate(&self) -> Result<Self> {
        let all = self.split(0, 0)?;
        Ok(all.expect("invariant: it has a colour"))
    }

    /// A duplicate that chooses its algorithms by `table`.
    pub(super) fn duplicate_by(&self, table: TuningTable, origin: TuningOrigin) -> Result<Self> {
        let all: Vec<usize> = (0..self.world_size()).collect();
        let parts = self.parts_of_group(&all, true);
        let parts = parts.map_err(|error| self.first_cause(error))?;
        let made = Self::assemble(Parts {
            tuning: table,
            tuning_origin: origin,
            ..parts
        });
        Ok(Self(made.0, self.1, 0))
    }

    /// This rank's place in a list of ranks, of which a group is to be made.
    fn place_in(&self, ranks: &[usize]) -> Result<usize> {
        let mut seen = vec![false; self.world_size()];
        for rank in ranks {
            self.check_peer("member", *rank)?;
            if std::mem::replace(&mut seen[*rank], true) {
                return Err(Error::usage(format!(
                    "rank {rank} is twice in the list of a group's members"
                )));
            }
        }
        if ranks.len() > MEMBERS_LISTED_MAX {
            return Err(Error::usage(format!(
                "a group of {} ranks is too large: at most {MEMBERS_LISTED_MAX} can be listed",
                ranks.len()
            )));
        }
        let own = ranks.iter().position(|rank| *rank == self.rank());
        own.ok_or_else(|| {
            Error::usage(format!(
                "rank {} is not in the list of the group's members; only members make a group",
                self.rank()
            ))
        })
    }
}
