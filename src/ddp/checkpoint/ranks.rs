//! Saves and loads checkpoints on all ranks of a communicator.
//!
//! One rank writes or reads, and all ranks get the result. Ranks base decisions only on values that
//! all of them have exchanged, so they all make the same decisions. A rank that cannot read or
//! write sends its error to the other ranks, which would otherwise keep waiting.

use super::exchange::{Entry, Own, WRITER, empty, entry, gather_own};
use super::series::{Checkpoints, Found, no_valid_checkpoint};
use super::{Checkpoint, State};
use crate::comm::Communicator;
use crate::ddp::agree::{gather_json, gather_messages, gather_number, share};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// The newest checkpoint whose manifest a rank has found to be valid.
#[derive(Serialize, Deserialize)]
struct Offer {
    step: u64,
    run_id: String,
    /// Location of the checkpoint, for error messages.
    place: String,
}

impl Checkpoints {
    /// Saves a checkpoint that contains tensors from all ranks. Every rank must call this method.
    /// It returns on every rank once the checkpoint is complete.
    ///
    /// Rank 0 passes the state and the shared tensors, and writes the checkpoint. Each of the other
    /// ranks contributes only the tensors whose names start with its own `rank-N/`. The shared
    /// tensors and the state that these ranks pass are ignored. [`State::world_size`] is set
    /// automatically.
    ///
    /// ```
    /// use ringtree::ddp::checkpoint::{Checkpoint, Checkpoints, Directory, State};
    /// # fn main() -> ringtree::Result<()> {
    /// # let scratch = tempfile::tempdir().expect("a scratch folder");
    /// # let folder = scratch.path();
    /// let ends = ringtree::simulate(3, |comm| {
    ///     let checkpoints = Checkpoints::new(Directory::new(folder), 1);
    ///     let mut checkpoint = Checkpoint::new(State { step: 7, ..State::default() });
    ///     let own = format!("rank-{}/error", comm.rank());
    ///     checkpoint.insert(&own, &[1], &[comm.rank() as f32])?;
    ///     checkpoints.save_from(comm, &checkpoint)?;
    ///
    ///     let found = checkpoints.load_and_broadcast(comm)?.expect("what was just saved");
    ///     found.checkpoint.values::<f32>(&own)
    /// });
    /// assert_eq!(ends, [Ok(vec![0.0]), Ok(vec![1.0]), Ok(vec![2.0])]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// In addition to the [errors that all calls share](Communicator#errors), returns the following
    /// errors on every rank:
    ///
    /// - the errors that [`Checkpoints::save`] returns
    /// - an [`Error`] of kind [`ErrorKind::Usage`](crate::ErrorKind::Usage) if a rank passes
    ///   tensors that belong to another rank
    ///
    /// After any of these errors, the communicator is still usable. However, if rank 0 does not
    /// have enough memory for the tensors of the other ranks, the communicator fails.
    pub fn save_from(&self, comm: &Communicator, checkpoint: &Checkpoint) -> Result<()> {
        self.set_warnings(Vec::new());
        let gathered = gather_own(comm, own_tensors(comm, checkpoint))?;
        let outcome: Result<Vec<String>> = match gathered {
            Err(what) => Err(Error::usage(what)),
            Ok(_) if comm.rank() != WRITER => Ok(Vec::new()),
            Ok(gathered) => {
                let state = State {
                    world_size: comm.world_size(),
                    ..checkpoint.state.clone()
                };
                let tensors = checkpoint.tensors.iter().chain(&gathered);
                let tensors = tensors.map(|(name, tensor)| (&**name, tensor));
                self.write(&state, tensors).map(|()| self.warnings())
            }
        };
        self.set_warnings(share(comm, WRITER, &outcome)??);
        Ok(())
    }

    /// Loads the newest valid checkpoint that any rank finds, and distributes it to all ranks.
    /// Every rank must call this method. Each rank searches its own store, which may or may not be
    /// shared with other ranks. Every rank gets the shared tensors and the tensors whose names
    /// start with its own `rank-N/`. Returns `None` if no rank finds a checkpoint.
    ///
    /// While one rank reads the checkpoint, the other ranks wait. The communicator's timeout must
    /// therefore be longer than the time that the read takes.
    ///
    /// # Errors
    /// In addition to the [errors that all calls share](Communicator#errors), returns an [`Error`]
    /// of one of these kinds on every rank:
    ///
    /// - [`ErrorKind::Configuration`](crate::ErrorKind::Configuration) if ranks find checkpoints
    ///   from different runs, because the newest one may be left over from an older run
    /// - [`ErrorKind::System`](crate::ErrorKind::System) if no rank finds a valid checkpoint and at
    ///   least one rank finds a damaged checkpoint or cannot list its files
    ///
    /// After any of these errors, the communicator is still usable. However, if a rank does not
    /// have enough memory for the tensors that it receives, the communicator fails.
    pub fn load_and_broadcast(&self, comm: &Communicator) -> Result<Option<Found>> {
        self.search(comm, Search::new(self))
    }

    /// Like [`Checkpoints::load_and_broadcast`], but loads the checkpoint for the `step` that rank
    /// 0 passes, even if there are later ones.
    ///
    /// # Errors
    /// Returns the same errors as [`Checkpoints::load_and_broadcast`], and an [`Error`] of kind
    /// [`ErrorKind::System`](crate::ErrorKind::System) on every rank if no rank has a valid
    /// checkpoint for that step.
    pub(super) fn load_step(&self, comm: &Communicator, step: u64) -> Result<Found> {
        let step = share(comm, WRITER, &step)?;
        let mut search = Search::new(self);
        search.steps.retain(|one| *one == step);
        let found = self.search(comm, search)?;
        self.rewind_to(step);
        found.ok_or_else(|| self.no_such_step(step))
    }

    fn search(&self, comm: &Communicator, mut search: Search<'_>) -> Result<Option<Found>> {
        let found = search.run(comm)?;
        let handed = found.map(|(root, loaded)| distribute(comm, root, loaded));
        let handed = handed.transpose()?;
        let mut warnings = gather_messages(comm, &search.warnings)?;
        let unseen = gather_messages(comm, &search.unseen)?;
        let Some((checkpoint, word)) = handed else {
            if warnings.is_empty() && !unseen.is_empty() {
                return Err(Error::system(unseen.join("; ")));
            }
            warnings.extend(unseen);
            return no_valid_checkpoint(warnings);
        };
        warnings.extend(unseen);
        warnings.extend(word);
        Ok(Some(Found {
            checkpoint,
            warnings,
        }))
    }
}

/// This rank's progress in the search for the newest valid checkpoint.
struct Search<'a> {
    checkpoints: &'a Checkpoints,
    /// The steps that this rank has not tried yet, oldest first.
    steps: Vec<u64>,
    /// Messages about the files that this rank has skipped.
    warnings: Vec<String>,
    /// The error message, if this rank could not list its files.
    unseen: Vec<String>,
}

impl<'a> Search<'a> {
    fn new(checkpoints: &'a Checkpoints) -> Self {
        let (steps, unseen) = match checkpoints.noted_steps() {
            Ok(steps) => (steps.into_iter().collect(), Vec::new()),
            Err(error) => (Vec::new(), vec![error.to_string()]),
        };
        Self {
            checkpoints,
            steps,
            warnings: Vec::new(),
            unseen,
        }
    }

    /// Returns a rank that has loaded the newest valid checkpoint and, if this rank has loaded it,
    /// the checkpoint itself.
    fn run(&mut self, comm: &Communicator) -> Result<Option<(usize, Option<Checkpoint>)>> {
        loop {
            let offers = gather_json(comm, &self.offer())?;
            let Some(step) = offers.iter().flatten().map(|offer| offer.step).max() else {
                return Ok(None);
            };
            check_runs(&offers)?;
            let offered = |rank: usize| offers[rank].as_ref().map(|offer| offer.step);
            let ranks = 0..offers.len();
            let holders: Vec<_> = ranks.filter(|rank| offered(*rank) == Some(step)).collect();
            // Let one rank read first, because one reader is enough. If its copy is damaged, the
            // other holders read their copies.
            let (first, others) = holders.split_at(1);
            for readers in [first, others] {
                let reads = readers.contains(&comm.rank());
                let read = reads.then(|| self.checkpoints.read(step)).transpose();
                let read = read.map_err(|warning| self.warnings.push(warning));
                let loaded = read.unwrap_or_default();
                let whole = gather_number(comm, u8::from(loaded.is_some()))?;
                if let Some(root) = whole.iter().position(|is_whole| *is_whole == 1) {
                    return Ok(Some((root, loaded)));
                }
            }
            self.steps.retain(|untried| *untried < step);
        }
    }

    /// Returns this rank's newest untried step whose manifest is valid. Skips newer steps, and
    /// records a warning for each of them.
    fn offer(&mut self) -> Option<Offer> {
        while let Some(step) = self.steps.last().copied() {
            match self.checkpoints.manifest(step) {
                Ok(manifest) => {
                    return Some(Offer {
                        step,
                        run_id: manifest.state.run_id,
                        place: self.checkpoints.location(),
                    });
                }
                Err(warning) => self.warnings.push(warning),
            }
            self.steps.pop();
        }
        None
    }
}

/// Returns an error if ranks offer checkpoints from different runs, because their steps cannot be
/// compared. A checkpoint left over from an old run may be later than the newest one from this run.
/// Loading it would lead to the removal of this run's checkpoints.
fn check_runs(offers: &[Option<Offer>]) -> Result<()> {
    let made = offers.iter().enumerate();
    let mut made = made.filter_map(|(rank, offer)| Some((rank, offer.as_ref()?)));
    let Some((first_rank, first)) = made.next() else {
        return Ok(());
    };
    match made.find(|(_, offer)| offer.run_id != first.run_id) {
        None => Ok(()),
        Some((rank, other)) => Err(Error::configuration(format!(
            "cannot load a checkpoint: rank {first_rank} finds step {} of run '{}' in {}, but rank \
             {rank} finds step {} of run '{}' in {}; remove the checkpoints of the run that you do \
             not want to resume, or pass a different location",
            first.step, first.run_id, first.place, other.step, other.run_id, other.place
        ))),
    }
}

/// Returns the rank that the tensor `name` belongs to, or `None` if all ranks share it.
fn owner(name: &str) -> Option<usize> {
    let (rank, _) = name.strip_prefix("rank-")?.split_once('/')?;
    rank.parse().ok()
}

/// Returns the tensors that belong to this rank, or a message if `checkpoint` contains tensors that
/// belong to other ranks.
fn own_tensors<'a>(comm: &Communicator, checkpoint: &'a Checkpoint) -> Own<'a> {
    let mut own = Vec::new();
    for (name, tensor) in &checkpoint.tensors {
        match owner(name) {
            Some(rank) if rank == comm.rank() => own.push((entry(name, tensor), tensor)),
            Some(_) => {
                let rank = comm.rank();
                return Err(format!(
                    "rank {rank} cannot save tensor '{name}' of another rank; use names that start \
                     with 'rank-{rank}/'"
                ));
            }
            None => {}
        }
    }
    Ok(own)
}

/// Distributes the checkpoint that `root` has loaded. Returns this rank's part, together with a
/// warning if per-rank state is missing or dropped because the number of ranks has changed.
fn distribute(
    comm: &Communicator,
    root: usize,
    loaded: Option<Checkpoint>,
) -> Result<(Checkpoint, Option<String>)> {
    let mut checkpoint = loaded.filter(|_| comm.rank() == root).unwrap_or_default();
    let tensors = checkpoint.tensors.iter();
    let entries: Vec<_> = tensors.map(|(name, tensor)| entry(name, tensor)).collect();
    let (state, entries): (State, Vec<Entry>) =
        share(comm, root, &(checkpoint.state.clone(), entries))?;
    checkpoint.state = state;
    for entry in &entries {
        let owner = owner(&entry.name);
        let takes = owner.is_none_or(|owner| owner == comm.rank());
        if takes && comm.rank() != root {
            checkpoint
                .tensors
                .insert(entry.name.clone(), empty(comm, entry)?);
        }
        let Some(tensor) = checkpoint.tensors.get_mut(&entry.name) else {
            continue;
        };
        match owner {
            _ if tensor.bytes().is_empty() => {}
            None => comm.broadcast(tensor.bytes_mut(), root)?,
            Some(owner) if owner == root || owner >= comm.world_size() => {}
            Some(owner) if comm.rank() == root => comm.send(tensor.bytes(), owner)?,
            Some(_) => comm.recv(tensor.bytes_mut(), root)?,
        }
        if !takes {
            checkpoint.tensors.remove(&entry.name);
        }
    }
    let word = change_of_ranks(comm, &checkpoint.state, &entries);
    Ok((checkpoint, word))
}

fn change_of_ranks(comm: &Communicator, state: &State, entries: &[Entry]) -> Option<String> {
    let (before, now) = (state.world_size, comm.world_size());
    let owners = || entries.iter().filter_map(|entry| owner(&entry.name));
    let example = entries.iter().find(|entry| owner(&entry.name).is_some());
    let what = if owners().any(|owner| owner >= now) {
        format!("the per-rank state of ranks {now} and above is dropped")
    } else if let Some(Entry { name, .. }) = example.filter(|_| now > before) {
        format!(
            "ranks {before} and above start without per-rank state, such as '{name}'; if a hook \
             needs the same state on all ranks, reset it on all ranks"
        )
    } else {
        return None;
    };
    Some(format!(
        "the checkpoint of step {} was written by {before} ranks and is being read by {now} ranks: \
         {what}",
        state.step
    ))
}
