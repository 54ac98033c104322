//! One training and its checkpoints: resuming in one call, saving beside the training.

use super::exchange::{WRITER, gather_own, share};
use super::parts::{Contents, Parts};
use super::series::{Checkpoints, Found};
use super::tensor::Tensor;
use super::{Checkpoint, HOOK, State};
use crate::comm::Communicator;
use crate::comm::tuning::Adoption;
use crate::ddp::agree::{agree, gather_words};
use crate::ddp::metrics::Metrics;
use crate::ddp::parallel::DataParallel;
use crate::ddp::sampler::DistributedSampler;
use crate::error::{Error, Printable, Result};
use crate::plan::record::TuningRecord;
use crate::random;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// A training with its checkpoints: it starts at the beginning, or goes on from the newest
/// checkpoint, with the same bits as if it had never been interrupted.
///
/// All ranks call the same methods in the same order:
///
/// 1. [`Run::open`], before the [`DataParallel`] is made: it reads the newest checkpoint.
/// 2. The program makes its model on [`Run::comm`], which chooses algorithms by the checkpoint's
///    tuning table. On another communicator the links are measured anew, and sums may differ in
///    their last bits from those of an undisturbed run.
/// 3. [`Run::resume`], before the first step: weights, optimizer, buckets, hook and sampler go on
///    where they were. Until it is called, [`Run::save`] is refused.
/// 4. Every some steps, [`Run::save`], between [`DataParallel::wait`]s. The file is written by a
///    thread of rank 0 while the training goes on.
/// 5. [`Run::finish`] at the end waits for the last one. Dropping the value does so too, but an
///    error is then only printed, by rank 0. A process that ends in another way loses the save
///    that is under way, and no earlier one.
///
/// ```
/// use ringtree::ddp::checkpoint::{Checkpoints, Directory, Parts, Run};
/// use ringtree::ddp::{DataParallel, DistributedSampler, Options, Parameter};
/// use ringtree::{Communicator, Dtype};
///
/// /// Trains until step `steps`, and returns the weight and the step it began at.
/// fn train(comm: &Communicator, folder: &str, steps: u64) -> ringtree::Result<(f32, u64)> {
///     let mut run = Run::open(comm, Checkpoints::new(Directory::new(folder), 3))?;
///     let parameters = vec![Parameter::new("weight", &[1], Dtype::F32)];
///     let mut model = DataParallel::new(run.comm(), parameters, Options::new())?;
///     let mut sampler = DistributedSampler::new(100, 7, comm.rank(), comm.world_size())?;
///     let (mut weight, mut momentum) = ([0.0f32], [0.0f32]);
///     // What there is to keep, named once for saving and loading:
///     let parts = |parts: &mut Parts<'_>, weight: &mut [f32], momentum: &mut [f32]| {
///         parts.tensor("model/weight", &[1], weight)?;
///         parts.tensor("optimizer/momentum", &[1], momentum)
///     };
///     run.resume(&mut model, &mut sampler, |all| parts(all, &mut weight, &mut momentum))?;
///     while model.steps() < steps {
///         let sample = sampler.next().expect("there are more samples than steps");
///         model.report(0, &[sample as f32])?;
///         model.wait()?;
///         let slope = model.gradient::<f32>(0)?.expect("it was reported")[0];
///         momentum[0] = 0.9 * momentum[0] + slope;
///         weight[0] -= 0.01 * momentum[0];
///         if model.steps() % 5 == 0 {
///             run.save(&model, &sampler, None, |all| parts(all, &mut weight, &mut momentum))?;
///         }
///     }
///     run.finish()?;
///     Ok((weight[0], run.step()))
/// }
///
/// # let scratch = tempfile::tempdir().expect("a scratch folder");
/// # let path = |name: &str| scratch.path().join(name).display().to_string();
/// # let (folder, other_folder) = (&path("one"), &path("other"));
/// let undisturbed = ringtree::simulate(2, |comm| train(comm, folder, 20));
/// ringtree::simulate(2, |comm| train(comm, other_folder, 13)); // ends early
/// let resumed = ringtree::simulate(2, |comm| train(comm, other_folder, 20));
/// assert_eq!(undisturbed[0].clone()?.1, 0);
/// assert_eq!(resumed[0].clone()?.1, 10); // the last step that was saved
/// assert_eq!(undisturbed[0].clone()?.0, resumed[0].clone()?.0);
/// # Ok::<(), ringtree::Error>(())
/// ```
#[derive(Debug)]
pub struct Run {
    /// With the checkpoint's table, for the program.
    comm: Communicator,
    /// For saving, apart from what the program does on `comm`.
    channel: Communicator,
    /// None if nothing is kept.
    checkpoints: Option<Arc<Checkpoints>>,
    id: String,
    /// What was found, with its tensors until the training has resumed.
    found: Option<Checkpoint>,
    is_resumed: bool,
    /// On rank 0: the save under way, or why its thread did not start.
    saving: Option<Result<Saving>>,
}

/// The thread that saves, and what it warns of.
type Saving = JoinHandle<Result<Vec<String>>>;

/// Opening.
impl Run {
    /// Looks for the newest whole checkpoint, on every rank in its own place, shared or not, and
    /// brings it to all. The process of rank 0 keeps others from saving in its place from now on.
    /// Files that are damaged are passed over; rank 0 names them on standard error. With `None`
    /// nothing is looked for and nothing is kept, and all methods do what is left.
    ///
    /// # Errors
    /// On every rank: [`Error::configuration`] if another training saves there, or ranks find
    /// checkpoints of different runs; [`Error::system`] if there are checkpoints and none is whole,
    /// or the place is no folder. Errors of the communicator.
    pub fn open(comm: &Communicator, checkpoints: impl Into<Option<Checkpoints>>) -> Result<Self> {
        let checkpoints = checkpoints.into();
        let found = match &checkpoints {
            Some(checkpoints) => {
                claim(comm, checkpoints)?;
                checkpoints.load_and_broadcast(comm)?
            }
            None => None,
        };
        Self::new(comm, checkpoints, found)
    }

    /// As [`Run::open`], but goes back to the checkpoint of `step`, such as
    /// [`Checkpoints::best`] finds it. The first [`Run::save`] removes the later ones: a restart
    /// would take them for the newest.
    ///
    /// # Errors
    /// As [`Run::open`]; [`Error::system`] on every rank if there is no whole one of that step.
    pub fn open_at(comm: &Communicator, checkpoints: Checkpoints, step: u64) -> Result<Self> {
        claim(comm, &checkpoints)?;
        let found = checkpoints.load_step(comm, step)?;
        Self::new(comm, Some(checkpoints), Some(found))
    }

    fn new(
        comm: &Communicator,
        checkpoints: Option<Checkpoints>,
        found: Option<Found>,
    ) -> Result<Self> {
        let (found, warnings) = match found {
            Some(found) => (Some(found.checkpoint), found.warnings),
            None => (None, Vec::new()),
        };
        warn(comm, &warnings);
        let state = found.as_ref().map(|checkpoint| &checkpoint.state);
        let id = match state {
            Some(state) => state.run_id.clone(),
            None => share(comm, WRITER, &new_id())??,
        };
        let comm = with_table_of(comm, state)?;
        let channel = comm.duplicate()?.named("checkpoint");
        Ok(Self {
            channel,
            comm,
            checkpoints: checkpoints.map(Arc::new),
            id,
            found,
            is_resumed: false,
            saving: None,
        })
    }

    /// The communicator to train on: of the same ranks as the one that was passed, with the
    /// checkpoint's tuning table.
    #[must_use]
    pub fn comm(&self) -> &Communicator {
        &self.comm
    }

    /// The state of the checkpoint that was found, for instance to compare settings in it
    /// ([`State::value`]) before the model is made.
    #[must_use]
    pub fn state(&self) -> Option<&State> {
        self.found.as_ref().map(|checkpoint| &checkpoint.state)
    }

    /// The step that the training goes on from; 0 at the beginning.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.state().map_or(0, |state| state.step)
    }

    /// What the run is called, which it keeps when it resumes.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The file of the run's metrics, cut back to [`Run::step`]; `None` for a run that writes none.
    ///
    /// # Errors
    /// As [`Metrics::open`].
    pub fn metrics(&self, path: impl Into<Option<PathBuf>>) -> Result<Metrics> {
        Metrics::open(&self.comm, path, &self.id, self.step())
    }
}

/// Resuming and saving.
impl Run {
    /// Goes on from what [`Run::open`] found: overwrites the parts that `parts` names, and sets
    /// the steps, the order of the buckets and the hook's state of `model`, and where `sampler`
    /// stands (`None` if the program deals out samples itself). If nothing was found, all stays as
    /// it is, and a checkpoint of step 0 is saved, which shows whether checkpoints can be saved
    /// at all. Returns the step.
    ///
    /// A model in candle copies its weights: call its `refresh` afterwards.
    ///
    /// # Errors
    /// [`Error::usage`] on every rank, with nothing overwritten, if the checkpoint does not fit: it
    /// lists what it lacks, has otherwise and has beyond ([`Parts`]), and says if the data set has
    /// another number of samples. The same, with some of it overwritten, if `parts` fails on a rank
    /// when it is called again, or the hook of a rank does not take up its state. Those of
    /// [`Run::save`].
    pub fn resume<'s>(
        &mut self,
        model: &mut DataParallel,
        sampler: impl Into<Option<&'s mut DistributedSampler>>,
        mut parts: impl FnMut(&mut Parts<'_>) -> Result<()>,
    ) -> Result<u64> {
        let mut sampler = sampler.into();
        let Some(found) = &mut self.found else {
            self.is_resumed = true;
            self.save(model, sampler.as_deref(), None, parts)?;
            self.settle()?;
            return Ok(0);
        };
        let rank = self.comm.rank();
        let mut complaints = Vec::new();
        match found.compare_parts(rank, "", &mut parts) {
            Ok(line) => complaints.extend(line),
            Err(error) => complaints.push(error.to_string()),
        }
        complaints.extend(other_data(&found.state, sampler.as_deref()));
        let complaints = gather_words(&self.channel, &complaints)?;
        if !complaints.is_empty() {
            return Err(Error::usage(complaints.join("; ")));
        }
        // The program's code and its hook may fail on one rank only; the others must not go on.
        let state = &found.state;
        let own = found
            .overwrite_parts(rank, &mut parts)
            .and_then(|()| model.restore(state.step, state.order.clone()))
            .and_then(|()| found.hook_state(rank));
        let own = agree(&self.channel, own)?;
        // The model may be on a group of these ranks, so all of them hear how its hook fared.
        agree(&self.channel, model.take_hook_state(own))?;
        if let Some(sampler) = &mut sampler {
            sampler.resume(state.epoch, state.sampler_position);
        }
        found.tensors.clear();
        self.is_resumed = true;
        Ok(self.step())
    }

    /// Saves a checkpoint of the step that `model` has ended: what `parts` names, copied now, and
    /// what `model` and `sampler` know of themselves. Rank 0 writes it while the training goes on;
    /// the other ranks do not wait for that. If the save before is still being written, all ranks
    /// wait for it, and are told here if it failed: then this one is not begun.
    ///
    /// `loss` is the loss on validation data, if it was looked at, by which
    /// [`Checkpoints::keep_best`] and [`Checkpoints::best`] go. Rank 0's counts; one that is not
    /// finite counts as none.
    ///
    /// # Errors
    /// On every rank, and the training can go on: what ended the save before, or
    /// [`Error::usage`] if [`Run::resume`] was not called, a step is under way, or a rank names
    /// parts wrongly. Errors of the communicator.
    pub fn save<'s>(
        &mut self,
        model: &DataParallel,
        sampler: impl Into<Option<&'s DistributedSampler>>,
        loss: impl Into<Option<f64>>,
        parts: impl FnOnce(&mut Parts<'_>) -> Result<()>,
    ) -> Result<()> {
        if !self.is_resumed {
            return Err(Error::usage(
                "`Run::save` before `Run::resume` would leave an earlier part of the training out; \
                 call `resume` first, also if there is no checkpoint",
            ));
        }
        let Some(checkpoints) = self.checkpoints.clone() else {
            return Ok(());
        };
        self.settle()?;
        let (rank, sampler) = (self.comm.rank(), sampler.into());
        let contents = match model.is_between_steps() {
            true => Contents::of(rank, parts).map_err(|error| error.to_string()),
            false => Err("`Run::save` in the middle of a step; `wait` ends one".to_owned()),
        };
        let mut contents = contents.map(|mut contents| {
            for (name, values) in model.hook_state() {
                let tensor = Tensor::new(&[values.len()], &values)
                    .expect("invariant: one dimension holds as many elements as it says");
                contents.insert_own(rank, format!("rank-{rank}/{HOOK}/{name}"), tensor);
            }
            contents
        });
        let own = contents.as_ref().map_err(Clone::clone);
        let gathered = gather_own(&self.channel, own.and_then(Contents::own))?;
        let wrong: Option<String> =
            share(&self.channel, WRITER, &gathered.as_ref().err().cloned())?;
        if let Some(what) = wrong {
            return Err(Error::usage(what));
        }
        if let (WRITER, Ok(contents), Ok(gathered)) = (rank, &mut contents, gathered) {
            let mut tensors = std::mem::take(&mut contents.tensors);
            tensors.extend(gathered);
            let values = std::mem::take(&mut contents.values);
            let loss = loss.into().filter(|loss| loss.is_finite());
            let state = State {
                loss,
                user: serde_json::Value::Object(values),
                ..self.state_of(model, sampler)
            };
            self.start_saving(checkpoints, Checkpoint { state, tensors });
        }
        Ok(())
    }

    /// Waits until the last checkpoint is written.
    ///
    /// # Errors
    /// On every rank: what ended the last save. Errors of the communicator.
    pub fn finish(&mut self) -> Result<()> {
        self.settle()
    }

    fn state_of(&self, model: &DataParallel, sampler: Option<&DistributedSampler>) -> State {
        State {
            run_id: self.id.clone(),
            world_size: self.comm.world_size(),
            step: model.steps(),
            epoch: sampler.map_or(0, DistributedSampler::epoch),
            samples: sampler.map(|sampler| sampler.samples() as u64),
            sampler_position: sampler.map_or(0, DistributedSampler::position),
            seed: sampler.map_or(0, DistributedSampler::seed),
            order: model.order().map(|(order, since)| (order.to_vec(), since)),
            tuning: Some(self.comm.tuning_record().to_string()),
            ..State::default()
        }
    }

    fn start_saving(&mut self, checkpoints: Arc<Checkpoints>, checkpoint: Checkpoint) {
        let save = move || {
            checkpoints.save(&checkpoint)?;
            Ok(checkpoints.warnings())
        };
        let thread = thread::Builder::new().name("ringtree-checkpoint".to_owned());
        let started = thread.spawn(save);
        let cannot = |error| Error::io("cannot start a thread that saves", &error);
        self.saving = Some(started.map_err(cannot));
    }

    /// Waits for the save under way, and tells every rank how it went.
    fn settle(&mut self) -> Result<()> {
        let outcome = share(
            &self.channel,
            WRITER,
            &joined(&self.comm, self.saving.take()),
        )?;
        warn(&self.comm, &outcome?);
        Ok(())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let is_forked = self.comm.is_forked();
        match joined(&self.comm, self.saving.take()) {
            Ok(warnings) => warn(&self.comm, &warnings),
            // It is the parent's.
            Err(_) if is_forked => {}
            Err(error) => eprintln!("ringtree: the last checkpoint is not saved: {error}"),
        }
    }
}

/// How a save ended; well, if there was none.
fn joined(comm: &Communicator, saving: Option<Result<Saving>>) -> Result<Vec<String>> {
    let Some(saving) = saving else {
        return Ok(Vec::new());
    };
    if comm.is_forked() {
        // The thread is the parent's.
        std::mem::forget(saving);
        return comm.failure().map_or_else(|| Ok(Vec::new()), Err);
    }
    let panicked = |_| Err(Error::system("the thread that saves checkpoints panicked"));
    saving?.join().unwrap_or_else(panicked)
}

/// Keeps other trainings from saving where rank 0 saves.
fn claim(comm: &Communicator, checkpoints: &Checkpoints) -> Result<()> {
    let claimed = match comm.rank() {
        WRITER => checkpoints.claim(),
        _ => Ok(()),
    };
    share(comm, WRITER, &claimed)?
}

/// A communicator of the same ranks that chooses as the one of the checkpoint did.
fn with_table_of(comm: &Communicator, state: Option<&State>) -> Result<Communicator> {
    let same = || comm.with_timeout(comm.timeout());
    let Some(text) = state.and_then(|state| state.tuning.as_ref()) else {
        return Ok(same());
    };
    let word = match text.parse::<TuningRecord>() {
        Ok(record) => match comm.with_tuning(&record)? {
            Adoption::Adopted(comm) => return Ok(comm),
            Adoption::Refused(why) => why.to_string(),
        },
        Err(what) => format!(
            "the checkpoint's table of link speeds is not used, so that sums may differ in their \
             last bits: {what}"
        ),
    };
    warn(comm, &[word]);
    Ok(same())
}

/// What is wrong with the data, if it is not that of the checkpoint.
fn other_data(state: &State, sampler: Option<&DistributedSampler>) -> Option<String> {
    let (had, sampler) = (state.samples?, sampler?);
    let (has, seed) = (sampler.samples() as u64, sampler.seed());
    if had != has {
        return Some(format!(
            "the data set has {has} samples, and that of the checkpoint of step {} had {had}: \
             where its sampler stood means nothing here; train on the same data, or pass no \
             sampler",
            state.step
        ));
    }
    (state.seed != seed).then(|| {
        format!(
            "the sampler has the seed {seed}, and that of the checkpoint of step {} had {}; use \
             the same, or pass no sampler",
            state.step, state.seed
        )
    })
}

/// Says on standard error, on rank 0, what went on without an error.
fn warn(comm: &Communicator, words: &[String]) {
    if comm.rank() == WRITER {
        let show = |word: &String| eprintln!("ringtree: {}", Printable(word));
        words.iter().for_each(show);
    }
}

fn new_id() -> Result<String> {
    let bits = random::number().map_err(|error| Error::io("no random number", &error))?;
    Ok(format!("{:012x}", bits >> 16))
}
