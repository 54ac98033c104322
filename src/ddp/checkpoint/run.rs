//! Resumes training with a single call, and saves checkpoints in the background.

use super::exchange::{WRITER, gather_own};
use super::parts::{Contents, Parts};
use super::series::{Checkpoints, Found};
use super::tensor::Tensor;
use super::{Checkpoint, HOOK, State};
use crate::comm::Communicator;
use crate::ddp::agree::{agree, gather_messages, share};
use crate::ddp::metrics::Metrics;
use crate::ddp::parallel::DataParallel;
use crate::ddp::sampler::DistributedSampler;
use crate::ddp::state::{hook_state, order, restore};
use crate::error::{Error, Result};
use crate::event;
use crate::plan::TuningRecord;
use crate::random;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// A training run with its checkpoints. A run either starts from the beginning or resumes from the
/// newest checkpoint. A resumed run produces the same bits as if it had never been interrupted.
///
/// All ranks must call the same methods in the same order:
///
/// 1. [`Run::open`] reads the newest checkpoint. Call it before you create the [`DataParallel`].
/// 2. Create the model on [`Run::comm`], which uses the checkpoint's tuning table to choose
///    algorithms. For a different communicator, the links are measured again, so sums may differ in
///    their last bits from those of an uninterrupted run.
/// 3. [`Run::resume`] restores the weights, the optimizer, the buckets, the hook and the sampler.
///    Call it before the first step. Until you have called it, [`Run::save`] returns an error.
/// 4. [`Run::save`] saves a checkpoint. Call it every few steps, after [`DataParallel::wait`]. A
///    thread on rank 0 writes the files while training continues.
/// 5. [`Run::finish`] waits until the last save is complete. Dropping the `Run` also waits for the
///    last save, but if that save fails, rank 0 only prints the error. If the process ends in any
///    other way, the save in progress is lost, but no earlier save is affected.
///
/// ```
/// use ringtree::ddp::checkpoint::{Checkpoints, Directory, Parts, Run};
/// use ringtree::ddp::{DataParallel, DistributedSampler, Options, Parameter};
/// use ringtree::{Communicator, Dtype};
///
/// /// Trains until step `steps`. Returns the weight and the step at which training began.
/// fn train(comm: &Communicator, folder: &str, steps: u64) -> ringtree::Result<(f32, u64)> {
///     let mut run = Run::open(comm, folder)?;
///     let parameters = vec![Parameter::new("weight", &[1], Dtype::F32)];
///     let mut model = DataParallel::new(run.comm(), parameters, Options::new())?;
///     let mut sampler = DistributedSampler::new(100, 7, comm.rank(), comm.world_size())?;
///     let (mut weight, mut momentum) = ([0.0f32], [0.0f32]);
///     // The state to keep, named once for saving and loading:
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
/// ringtree::simulate(2, |comm| train(comm, other_folder, 13)); // stops early
/// let resumed = ringtree::simulate(2, |comm| train(comm, other_folder, 20));
/// assert_eq!(undisturbed[0].clone()?.1, 0);
/// assert_eq!(resumed[0].clone()?.1, 10); // the last step that was saved
/// assert_eq!(undisturbed[0].clone()?.0, resumed[0].clone()?.0);
/// # Ok::<(), ringtree::Error>(())
/// ```
#[derive(Debug)]
pub struct Run {
    /// Communicator that the program uses for training. It uses the checkpoint's tuning table if
    /// that table applies.
    comm: Communicator,
    /// Communicator for resuming and saving. It is separate from `comm`, which the program uses.
    channel: Communicator,
    /// `None` if the run has no checkpoints.
    checkpoints: Option<Arc<Checkpoints>>,
    id: String,
    /// The checkpoint from which the run resumes. Its tensors are dropped once training has
    /// resumed.
    found: Option<Checkpoint>,
    is_resumed: bool,
    /// On rank 0, the save in progress, or the error if its thread could not be started.
    saving: Option<Result<Saving>>,
}

/// Handle of the thread that saves a checkpoint. The thread returns the warnings from the save.
type Saving = JoinHandle<Result<Vec<String>>>;

/// Methods for opening a run and getting its properties.
impl Run {
    /// Opens a run and loads its newest valid checkpoint on all ranks. Each rank searches its own
    /// store, which may or may not be shared with other ranks.
    ///
    /// Until the run is dropped, rank 0's process prevents other training runs from saving to its
    /// store. Damaged files are skipped, and rank 0 lists them on standard error. `checkpoints` can
    /// be the path of a directory, which then keeps the newest two checkpoints and the best one.
    ///
    /// # Errors
    /// In addition to the [errors that all calls share](Communicator#errors), returns an [`Error`]
    /// of one of these kinds on every rank:
    ///
    /// - [`ErrorKind::Configuration`](crate::ErrorKind::Configuration) if another training run is
    ///   saving to rank 0's store, if the path of that store is not a directory, or if ranks find
    ///   checkpoints from different runs
    /// - [`ErrorKind::System`](crate::ErrorKind::System) if checkpoints exist but none of them is
    ///   valid, or if a store cannot be accessed
    pub fn open(comm: &Communicator, checkpoints: impl Into<Checkpoints>) -> Result<Self> {
        let checkpoints = checkpoints.into();
        claim(comm, &checkpoints)?;
        let found = checkpoints.load_and_broadcast(comm)?;
        Self::new(comm, Some(checkpoints), found)
    }

    /// Opens a run that has no checkpoints: it starts from the beginning, and [`Run::save`] does
    /// nothing.
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors).
    pub fn without_checkpoints(comm: &Communicator) -> Result<Self> {
        Self::new(comm, None, None)
    }

    /// Like [`Run::open`], but resumes from the checkpoint for `step`. This can be, for example,
    /// the step of the state that [`Checkpoints::best`] returns. The first [`Run::save`] removes
    /// the later checkpoints because a restart would otherwise load the newest of them.
    ///
    /// # Errors
    /// Returns the same errors as [`Run::open`], and an [`Error`] of kind
    /// [`ErrorKind::System`](crate::ErrorKind::System) on every rank if there is no valid
    /// checkpoint for `step`.
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
        let (found, warnings) = found.map(|one| (one.checkpoint, one.warnings)).unzip();
        warn(comm, &warnings.unwrap_or_default());
        let state = found
            .as_ref()
            .map(|checkpoint: &Checkpoint| &checkpoint.state);
        let id = match state {
            Some(state) => state.run_id.clone(),
            None => share(comm, WRITER, &new_id())??,
        };
        let comm = with_table_of(comm, state)?;
        let channel = comm.duplicate()?.with_name("checkpoint");
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

    /// Returns the communicator to use for training. It has the same ranks as the communicator that
    /// was passed to [`Run::open`], and it uses the checkpoint's tuning table if that table
    /// applies.
    #[must_use]
    pub fn comm(&self) -> &Communicator {
        &self.comm
    }

    /// Returns the state of the checkpoint that was found, or `None` if the run starts from the
    /// beginning. You can use the state to compare settings ([`State::value`]) before you create
    /// the model, for example.
    #[must_use]
    pub fn state(&self) -> Option<&State> {
        self.found.as_ref().map(|checkpoint| &checkpoint.state)
    }

    /// Returns the step from which the run resumes, or 0 if it starts from the beginning.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.state().map_or(0, |state| state.step)
    }

    /// Returns the ID of the run. A run keeps its ID when it is resumed.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Creates a sampler for a data set of `samples` samples, divided among the ranks of the run.
    ///
    /// # Errors
    /// Returns the same errors as [`DistributedSampler::new`].
    pub fn sampler(&self, samples: usize, seed: u64) -> Result<DistributedSampler> {
        DistributedSampler::new(samples, seed, self.comm.rank(), self.comm.world_size())
    }

    /// Opens the run's metrics file and removes the lines for steps after [`Run::step`].
    ///
    /// # Errors
    /// Returns the same errors as [`Metrics::open`].
    pub fn metrics(&self, path: impl Into<PathBuf>) -> Result<Metrics> {
        Metrics::open(&self.comm, path.into(), &self.id, self.step())
    }
}

/// Methods for resuming and saving.
impl Run {
    /// Resumes from the checkpoint that [`Run::open`] found, and returns the checkpoint's step.
    ///
    /// Overwrites the parts that `parts` names. Restores the step count, the bucket order and the
    /// hook state of `model`, and the position of `sampler`. Pass `None` for `sampler` if the
    /// program distributes samples itself. If there is no checkpoint, the state remains unchanged
    /// and a checkpoint for step 0 is saved. Therefore, if the store cannot be written to, this
    /// method returns an error right away.
    ///
    /// A candle model keeps a copy of its weights, so call its `refresh` method after this method.
    ///
    /// # Errors
    /// Returns an [`Error`] of kind [`ErrorKind::Usage`](crate::ErrorKind::Usage) on every rank if:
    ///
    /// - the checkpoint does not match, or the sampler has a different number of samples or a
    ///   different seed. The message lists the differences (see [`Parts`]), and nothing is
    ///   overwritten.
    /// - `parts` fails on a rank while the state is being overwritten, or a rank's hook rejects its
    ///   state. In this case, some of the state has already been overwritten.
    ///
    /// Also returns the same errors as [`Run::save`].
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
        let compared = found.compare_parts(rank, "", &mut parts);
        let complaint = compared.unwrap_or_else(|error| Some(error.to_string()));
        let other_data = other_data(&found.state, sampler.as_deref());
        let complaints: Vec<_> = complaint.into_iter().chain(other_data).collect();
        let complaints = gather_messages(&self.channel, &complaints)?;
        if !complaints.is_empty() {
            return Err(Error::usage(complaints.join("; ")));
        }
        // The program's code or its hook may fail on only one rank. In that case, all ranks must
        // stop.
        let state = &found.state;
        let own = found
            .overwrite_parts(rank, &mut parts)
            .and_then(|()| restore(model, state.step, state.order.clone()))
            .and_then(|()| found.hook_state(rank));
        let own = agree(&self.channel, own)?;
        // The model's communicator may contain only some of the run's ranks, so share the hook's
        // result on `channel`.
        agree(&self.channel, model.take_hook_state(own))?;
        if let Some(sampler) = &mut sampler {
            sampler.resume(state.epoch, state.sampler_position);
        }
        found.tensors.clear();
        self.is_resumed = true;
        Ok(self.step())
    }

    /// Saves a checkpoint for the last completed step of `model`.
    ///
    /// Copies the parts that `parts` names and the state of `model` and `sampler`. Rank 0 then
    /// writes the copy while training continues, and the other ranks do not wait for rank 0. If the
    /// previous save is still in progress, all ranks wait for it to complete. If the previous save
    /// failed, all ranks get its error, and this save is not started.
    ///
    /// `loss` is the loss on validation data, if it has been computed. [`Checkpoints::keep_best`]
    /// and [`Checkpoints::best`] compare these losses. The value that rank 0 passes is used. A
    /// value that is not finite is ignored.
    ///
    /// # Errors
    /// In addition to the [errors that all calls share](Communicator#errors), returns the following
    /// errors on every rank:
    ///
    /// - the error of the previous save
    /// - an [`Error`] of kind [`ErrorKind::Usage`](crate::ErrorKind::Usage) if [`Run::resume`] has
    ///   not been called, if a step is in progress, or if a rank names its parts incorrectly
    ///
    /// After any of these errors, training can continue.
    pub fn save<'s>(
        &mut self,
        model: &DataParallel,
        sampler: impl Into<Option<&'s DistributedSampler>>,
        loss: impl Into<Option<f64>>,
        parts: impl FnOnce(&mut Parts<'_>) -> Result<()>,
    ) -> Result<()> {
        if !self.is_resumed {
            return Err(Error::usage(
                "cannot save before `Run::resume`: the checkpoint would not continue the run; call \
                 `resume` first, even if there is no checkpoint",
            ));
        }
        let Some(checkpoints) = self.checkpoints.clone() else {
            return Ok(());
        };
        self.settle()?;
        let (rank, sampler) = (self.comm.rank(), sampler.into());
        let contents = match model.is_between_steps() {
            true => Contents::of(rank, parts).map_err(|error| error.to_string()),
            false => Err("cannot save in the middle of a step; call `wait` first".to_owned()),
        };
        let mut contents = contents.map(|mut contents| {
            for (name, values) in hook_state(model) {
                let tensor = Tensor::new(&[values.len()], &values)
                    .expect("invariant: one dimension holds as many elements as it says");
                contents.insert_own(rank, format!("rank-{rank}/{HOOK}/{name}"), tensor);
            }
            contents
        });
        let own = contents.as_ref().map_err(Clone::clone);
        let gathered = gather_own(&self.channel, own.and_then(Contents::own))?;
        let wrong = gathered.as_ref().err().cloned();
        if let Some(what) = share(&self.channel, WRITER, &wrong)? {
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

    /// Waits until the last checkpoint has been written.
    ///
    /// # Errors
    /// In addition to the [errors that all calls share](Communicator#errors), returns the error of
    /// the last save on every rank.
    pub fn finish(&mut self) -> Result<()> {
        self.settle()
    }

    fn state_of(&self, model: &DataParallel, sampler: Option<&DistributedSampler>) -> State {
        State {
            run_id: self.id.clone(),
            world_size: self.comm.world_size(),
            step: model.steps(),
            epoch: sampler.map_or(0, DistributedSampler::epoch),
            samples: sampler.map(|sampler| sampler.length as u64),
            sampler_position: sampler.map_or(0, DistributedSampler::position),
            seed: sampler.map_or(0, |sampler| sampler.seed),
            order: order(model).map(|(order, since)| (order.to_vec(), since)),
            tuning: Some(self.comm.tuning().to_string()),
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
        let cannot = |error| Error::io("cannot start the checkpoint thread", &error);
        self.saving = Some(started.map_err(cannot));
    }

    /// Waits for the save in progress, if any, and shares its outcome with all ranks.
    fn settle(&mut self) -> Result<()> {
        let outcome = joined(&self.comm, self.saving.take());
        warn(&self.comm, &share(&self.channel, WRITER, &outcome)??);
        Ok(())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let is_forked = self.comm.is_forked();
        match joined(&self.comm, self.saving.take()) {
            Ok(warnings) => warn(&self.comm, &warnings),
            // The save belongs to the parent process.
            Err(_) if is_forked => {}
            Err(error) => {
                let text = format!("the last checkpoint was not saved: {error}");
                event::warn(self.comm.rank(), text);
            }
        }
    }
}

/// Waits for the save in progress and returns its outcome. If no save is in progress, returns an
/// empty list of warnings.
fn joined(comm: &Communicator, saving: Option<Result<Saving>>) -> Result<Vec<String>> {
    let Some(saving) = saving else {
        return Ok(Vec::new());
    };
    if comm.is_forked() {
        // The thread exists only in the parent process.
        std::mem::forget(saving);
        return comm.error().map_or_else(|| Ok(Vec::new()), Err);
    }
    let panicked = |_| Err(Error::system("the checkpoint thread panicked"));
    saving?.join().unwrap_or_else(panicked)
}

/// Prevents other training runs from saving to rank 0's store.
fn claim(comm: &Communicator, checkpoints: &Checkpoints) -> Result<()> {
    let claimed = match comm.rank() {
        WRITER => checkpoints.claim(),
        _ => Ok(()),
    };
    share(comm, WRITER, &claimed)?
}

/// Returns a communicator that has the same ranks and uses the checkpoint's tuning table if that
/// table applies.
fn with_table_of(comm: &Communicator, state: Option<&State>) -> Result<Communicator> {
    let Some(text) = state.and_then(|state| state.tuning.as_ref()) else {
        return Ok(comm.clone());
    };
    let word = match text.parse::<TuningRecord>() {
        Ok(record) => match comm.duplicate_with(&record)? {
            Ok(comm) => return Ok(comm),
            Err(why) => why.to_string(),
        },
        Err(what) => format!(
            "the checkpoint's tuning table is not used, so sums may differ in their last bits: \
             {what}"
        ),
    };
    warn(comm, &[word]);
    Ok(comm.clone())
}

/// Returns a message if the data set or the seed differs from the checkpoint's.
fn other_data(state: &State, sampler: Option<&DistributedSampler>) -> Option<String> {
    let (had, sampler) = (state.samples?, sampler?);
    let (has, seed) = (sampler.length as u64, sampler.seed);
    if had != has {
        return Some(format!(
            "the data set has {has} samples, but the checkpoint of step {} was saved with a data \
             set of {had}, so the saved sampler position does not apply; use the same data set or \
             pass no sampler",
            state.step
        ));
    }
    (state.seed != seed).then(|| {
        format!(
            "the sampler has seed {seed}, but the checkpoint of step {} was saved with seed {}; \
             use the same seed or pass no sampler",
            state.step, state.seed
        )
    })
}

/// Emits warnings on rank 0.
fn warn(comm: &Communicator, words: &[String]) {
    if comm.rank() == WRITER {
        words
            .iter()
            .for_each(|word| event::warn(WRITER, word.clone()));
    }
}

fn new_id() -> Result<String> {
    let bits = random::number().map_err(|error| Error::io("cannot create a run ID", &error))?;
    Ok(format!("{:012x}", bits >> 16))
}
