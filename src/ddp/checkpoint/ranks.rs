//! Checkpoints of all ranks of a communicator: one writes, one reads, all have it.
//!
//! Every decision is taken from what all ranks have exchanged, so all take the same one: a rank
//! that cannot read or write sends its error to the others instead of leaving them waiting.

use super::exchange::{Entry, Own, Piece, WRITER, empty, entry, gather_own, share};
use super::series::{Checkpoints, Found, none_whole};
use super::{Checkpoint, State};
use crate::comm::Communicator;
use crate::ddp::agree::{gather_json, gather_words};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// The newest checkpoint that a rank may be able to read.
#[derive(Serialize, Deserialize)]
struct Offer {
    step: u64,
    run_id: String,
    /// For messages.
    place: String,
}

impl Checkpoints {
    /// Saves a checkpoint of all ranks; every rank calls it. Rank 0 passes all there is and writes
    /// it; of what another rank passes, only the tensors under its own `rank-N/` are taken. The
    /// world size is filled in. Returns on every rank when the checkpoint is there.
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
    /// As [`Checkpoints::save`], on every rank, and the communicator can still be used;
    /// [`Error::usage`] on every rank if one passes state of another. Errors of the communicator,
    /// which ends if the writer has no memory for what the others send.
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

    /// The newest whole checkpoint that any rank finds, on every rank; every rank calls it, with
    /// its own place to look in, shared or not. A rank gets the tensors of all and its own under
    /// `rank-N/`. None if no rank finds any.
    ///
    /// The others wait while one reads, so the communicator's timeout must allow for that.
    ///
    /// # Errors
    /// On every rank, and the communicator can still be used: [`Error::configuration`] if ranks
    /// find checkpoints of different runs, because the newest may be one that an older run left
    /// behind; as [`Checkpoints::latest`] if no rank finds a whole one and some rank finds trouble.
    /// Errors of the communicator, which ends if a rank has no memory for what it is sent.
    pub fn load_and_broadcast(&self, comm: &Communicator) -> Result<Option<Found>> {
        self.search(comm, Search::new(self))
    }

    /// As [`Checkpoints::load_and_broadcast`], but the checkpoint of `step`, as rank 0 says it,
    /// though there may be later ones.
    ///
    /// # Errors
    /// As there; [`Error::system`] on every rank if no rank has a whole one of that step.
    pub(super) fn load_step(&self, comm: &Communicator, step: u64) -> Result<Found> {
        let step = share(comm, WRITER, &step)?;
        let mut search = Search::new(self);
        search.steps.retain(|one| *one == step);
        let found = self.search(comm, search)?;
        self.go_behind(step);
        found.ok_or_else(|| self.no_such_step(step))
    }

    fn search(&self, comm: &Communicator, mut search: Search<'_>) -> Result<Option<Found>> {
        let found = search.run(comm)?;
        let handed = match found {
            Some((root, loaded)) => Some(hand_out(comm, root, loaded)?),
            None => None,
        };
        let mut warnings = gather_words(comm, &search.warnings)?;
        let unseen = gather_words(comm, &search.unseen)?;
        let Some((checkpoint, word)) = handed else {
            if warnings.is_empty() && !unseen.is_empty() {
                return Err(Error::system(unseen.join("; ")));
            }
            warnings.extend(unseen);
            return none_whole(warnings);
        };
        warnings.extend(unseen);
        warnings.extend(word);
        Ok(Some(Found {
            checkpoint,
            warnings,
        }))
    }
}

/// One rank's part in looking for the newest whole checkpoint.
struct Search<'a> {
    checkpoints: &'a Checkpoints,
    /// The steps that this rank has not tried, oldest first.
    steps: Vec<u64>,
    /// The files that this rank passed over.
    warnings: Vec<String>,
    /// Why this rank could not look at all.
    unseen: Vec<String>,
}

impl<'a> Search<'a> {
    fn new(checkpoints: &'a Checkpoints) -> Self {
        let (steps, unseen) = match checkpoints.steps() {
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

    /// The rank that has the newest whole checkpoint, and there the checkpoint.
    fn run(&mut self, comm: &Communicator) -> Result<Option<(usize, Option<Checkpoint>)>> {
        loop {
            let offers = gather_json(comm, &self.offer())?;
            let Some(step) = offers.iter().flatten().map(|offer| offer.step).max() else {
                return Ok(None);
            };
            check_runs(&offers)?;
            let has_newest = |offer: &Offer| offer.step == step;
            let ranks =
                (0..offers.len()).filter(|rank| offers[*rank].as_ref().is_some_and(has_newest));
            let holders: Vec<_> = ranks.collect();
            // If one reads it that is enough; if it cannot, the others' copies may be better.
            let (first, others) = holders.split_at(1);
            for readers in [first, others] {
                let reads = readers.contains(&comm.rank());
                let loaded = reads.then(|| self.load(step)).flatten();
                let mut whole = vec![0u8; comm.world_size()];
                whole[comm.rank()] = u8::from(loaded.is_some());
                comm.all_gather(&mut whole)?;
                if let Some(root) = whole.iter().position(|is_whole| *is_whole == 1) {
                    return Ok(Some((root, loaded)));
                }
            }
            self.steps.retain(|untried| *untried < step);
        }
    }

    /// The newest step that this rank has a whole manifest of.
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

    fn load(&mut self, step: u64) -> Option<Checkpoint> {
        match self.checkpoints.read(step) {
            Ok(checkpoint) => Some(checkpoint),
            Err(warning) => {
                self.warnings.push(warning);
                None
            }
        }
    }
}

/// Steps of different runs cannot be compared: what an old run left in one rank's place may be
/// later than this run's newest in another's, and to take it would end in this run's removal.
fn check_runs(offers: &[Option<Offer>]) -> Result<()> {
    let made = offers.iter().enumerate();
    let mut made = made.filter_map(|(rank, offer)| Some((rank, offer.as_ref()?)));
    let Some((first_rank, first)) = made.next() else {
        return Ok(());
    };
    match made.find(|(_, offer)| offer.run_id != first.run_id) {
        None => Ok(()),
        Some((rank, other)) => Err(Error::configuration(format!(
            "rank {first_rank} finds step {} of run '{}' in {}, but rank {rank} finds step {} of \
             run '{}' in {}; nothing was loaded: remove the checkpoints of the run that is not to \
             go on, or name another place",
            first.step, first.run_id, first.place, other.step, other.run_id, other.place
        ))),
    }
}

/// The rank that alone has the tensor `name`, unless all ranks have it.
fn owner(name: &str) -> Option<usize> {
    let (rank, _) = name.strip_prefix("rank-")?.split_once('/')?;
    rank.parse().ok()
}

/// The tensors that only this rank has, or what is wrong with them.
fn own_tensors<'a>(comm: &Communicator, checkpoint: &'a Checkpoint) -> Own<'a> {
    let mut own = Vec::new();
    for (name, tensor) in &checkpoint.tensors {
        match owner(name) {
            Some(rank) if rank == comm.rank() => own.push(Piece {
                name,
                tensor,
                part_of: None,
            }),
            Some(_) => {
                let rank = comm.rank();
                return Err(format!(
                    "rank {rank} passed the tensor '{name}' to be saved; its own start with \
                     'rank-{rank}/'"
                ));
            }
            None => {}
        }
    }
    Ok(own)
}

/// Gives every rank its part of the checkpoint that `root` has loaded, and a word if the number of
/// ranks is not what it was.
fn hand_out(
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
        format!("what ranks {now} and above had for themselves is dropped")
    } else if let Some(Entry { name, .. }) = example.filter(|_| now > before) {
        format!(
            "ranks {before} and above start without state of their own, such as '{name}'; where a \
             hook needs it to be the same on all ranks, start it anew on all"
        )
    } else {
        return None;
    };
    Some(format!(
        "the checkpoint of step {} was written by {before} ranks and is read by {now}: {what}",
        state.step
    ))
}
