//! Holds the state of a rank's training and runs its steps.

use crate::evaluate;
use crate::failure::Failure;
use crate::model::{Dropout, Gpt, Shape, initialize};
use crate::optimizer::{learning_rate, rule};
use crate::options::{Config, Wire};
use crate::replicas::{self, Fingerprint};
use crate::snapshot::{self, Job};
use crate::text::Text;
use crate::watch::Watch;
use candle_core::{DType, Device, Var};
use candle_nn::VarMap;
use ringtree::ddp::checkpoint::Run;
use ringtree::ddp::{
    AdamW, DataParallel, DistributedSampler, HalfHook, LocalSteps, NonFinite, Optimizer, Options,
    Outer, Trace,
};
use ringtree::{Communicator, ReduceOp};
use ringtree_candle::{Replica, var_builder};
use std::time::{Duration, Instant};

/// The state of a rank's training between two steps.
pub(crate) struct Trainer<'a> {
    pub(crate) run: Run,
    pub(crate) config: &'a Config,
    pub(crate) text: &'a Text,
    pub(crate) model: Gpt,
    replica: Replica,
    variables: Vec<(String, Var)>,
    optimizer: Optimizer<AdamW>,
    /// The local steps, if the weights are averaged only after several steps.
    local: Option<LocalSteps>,
    pub(crate) sampler: DistributedSampler,
    /// Number of completed optimizer steps.
    pub(crate) step: u64,
    /// The results of the validations so far.
    pub(crate) watch: Watch,
    pub(crate) trace: Trace,
}

/// The results of a step.
pub(crate) struct Taken {
    /// Mean loss of the global batch or, with local steps, of this rank's share of the batch.
    pub(crate) loss: f64,
    /// Norm of the averaged gradient before clipping.
    pub(crate) gradient_norm: f64,
    pub(crate) learning_rate: f64,
}

impl<'a> Trainer<'a> {
    /// Resumes `run`, or begins a new training. Every rank must call this.
    pub(crate) fn new(run: Run, config: &'a Config, text: &'a Text) -> Result<Self, Failure> {
        let mut job = Job::new(config, text);
        if let Some(state) = run.state() {
            Job::of(state)?.check_fits(&job)?;
        }
        let comm = run.comm();
        let shape = Shape::of(config, text.vocabulary());
        let varmap = VarMap::new();
        let (builder, hooks) = var_builder(&varmap, DType::F32, &Device::Cpu);
        let model = Gpt::new(shape, &builder)?;
        initialize(&varmap, shape, config.seed)?;
        let variables = hooks.variables();
        let (sequences, batch) = (text.sequences(), config.batch);
        if sequences < batch {
            return Err(Failure::usage(format!(
                "the text has {sequences} sequences of --block {}, fewer than --batch {batch}",
                config.block
            )));
        }
        let sampler =
            DistributedSampler::new(sequences, config.seed, comm.rank(), comm.world_size())?
                .drop_last()
                .global_batch(batch)?;
        let alone = match config.local_steps {
            0 => None,
            _ => Some(comm.subgroup(&[comm.rank()])?),
        };
        let replica = Replica::new(alone.as_ref().unwrap_or(comm), hooks, options(config))?;
        let local = local_steps(comm, &replica, config.local_steps)?;
        replica.refresh()?;
        let mut this = Self {
            optimizer: Optimizer::new(replica.parallel()?, rule(config.weight_decay))?,
            replica,
            local,
            run,
            config,
            text,
            model,
            variables,
            sampler,
            step: 0,
            watch: Watch::default(),
            trace: Trace::off(),
        };
        let (variables, optimizer) = (&this.variables, &mut this.optimizer);
        let (parallel, local) = (this.replica.parallel_mut()?, &mut this.local);
        this.step = this.run.resume(parallel, &mut this.sampler, |parts| {
            snapshot::name_all(parts, variables, (optimizer, local.as_mut()), &mut job)
        })?;
        this.watch = job.watch;
        this.replica.refresh()?;
        Ok(this)
    }

    /// Returns the communicator of the ranks that train.
    pub(crate) fn comm(&self) -> &Communicator {
        self.run.comm()
    }

    /// Performs one optimizer step on one global batch.
    pub(crate) fn take_step(&mut self) -> Result<Taken, Failure> {
        let beginning = self.trace.clock();
        let mut loss = [self.average_gradients()?];
        let updating = self.trace.clock();
        let config = self.config;
        let highest = config.learning_rate;
        let learning_rate = learning_rate(highest, self.step, config.warmup, config.steps);
        self.replica.step(&mut self.optimizer, learning_rate)?;
        if self.meet()? {
            self.comm().all_reduce(&mut loss, ReduceOp::Avg)?;
        }
        self.trace
            .span("optimizer", "optimizer", updating, self.trace.clock());
        let parallel = self.replica.parallel()?;
        self.trace.buckets(parallel);
        let step = format_args!("step {}", self.step);
        self.trace.span("step", step, beginning, self.trace.clock());
        self.step += 1;
        Ok(Taken {
            loss: loss[0],
            gradient_norm: parallel.gradient_norm().unwrap_or(f64::NAN),
            learning_rate,
        })
    }

    /// Runs forward and backward on this rank's share of the next global batch, in one or several
    /// parts, and averages the gradients for the optimizer. Returns this rank's loss.
    fn average_gradients(&mut self) -> Result<f64, Failure> {
        let parts = self.config.accumulate;
        let share = self.config.batch / self.comm().world_size() / parts;
        let mut own_loss = 0.0;
        for _ in 1..parts {
            let loss = self.forward(share)?;
            own_loss += f64::from(loss.to_scalar::<f32>()?);
            let beginning = (self.trace.clock(), Instant::now());
            self.replica.backward_no_sync(&loss)?;
            self.trace_backward(beginning);
        }
        let loss = self.forward(share)?;
        own_loss += f64::from(loss.to_scalar::<f32>()?);
        let beginning = (self.trace.clock(), Instant::now());
        self.replica.backward_in_place(&loss)?;
        self.trace_backward(beginning);
        Ok(own_loss)
    }

    /// Averages the weights if `--local-steps` requires it after this step. Returns `true` if all
    /// ranks have the same weights afterwards.
    fn meet(&mut self) -> Result<bool, Failure> {
        let Some(local) = &mut self.local else {
            return Ok(true);
        };
        let have_met = local.step(&mut self.replica.weights())?;
        if have_met {
            self.replica.refresh()?;
        }
        Ok(have_met)
    }

    /// Returns the contribution to the loss from the next `share` sequences.
    fn forward(&mut self, share: usize) -> Result<candle_core::Tensor, Failure> {
        let beginning = self.trace.clock();
        if self.sampler.len() == 0 {
            self.sampler.set_epoch(self.sampler.epoch() + 1);
        }
        let numbers: Vec<_> = self.sampler.by_ref().take(share).collect();
        let (sequences, targets) = self.text.batch(&numbers)?;
        let Config { dropout, seed, .. } = *self.config;
        let dropout = Dropout::new(dropout, seed, self.step, &numbers);
        let loss = self.model.loss(&sequences, &targets, dropout.as_ref())?;
        let loss = (loss / self.config.accumulate as f64)?;
        self.trace
            .span("forward", "forward", beginning, self.trace.clock());
        Ok(loss)
    }

    /// Records the last backward pass layer by layer. A layer ends when its last gradient is
    /// reported. `beginning` and `started` are the same moment on two different clocks.
    fn trace_backward(&self, (beginning, started): (Duration, Instant)) {
        let mut layers: Vec<(&str, Duration)> = Vec::new();
        for (name, at) in self.replica.reports() {
            let layer = name.split('.').next().unwrap_or(name);
            let at = beginning + at.saturating_duration_since(started);
            match layers.last_mut() {
                Some((last, until)) if *last == layer => *until = at,
                _ => layers.push((layer, at)),
            }
        }
        let mut start = beginning;
        for (layer, end) in layers {
            self.trace.span("backward", layer, start, end);
            start = end;
        }
    }

    /// Returns the mean loss of the validation sequences. All ranks return the same value.
    pub(crate) fn validate(&self) -> Result<f64, Failure> {
        let count = self.config.validation_sequences;
        let loss = evaluate::loss(self.comm(), &self.model, self.text, count)?;
        if loss.is_finite() {
            return Ok(loss);
        }
        // All ranks compute the same loss, so all of them return this error.
        Err(Failure::usage(format!(
            "after step {} the validation loss is {loss}: the training diverges; try a smaller \
             --learning-rate",
            self.step
        )))
    }

    /// Compares the replicas and returns the fingerprint of the weights. Every rank must call this.
    pub(crate) fn compare_replicas(&self) -> Result<Fingerprint, Failure> {
        let own = replicas::fingerprint(self.variables.iter().map(|(_, var)| var))?;
        let fingerprints = replicas::gather(self.comm(), &own)?;
        match replicas::differing(&fingerprints) {
            None => Ok(own),
            Some(ranks) => Err(Failure::work(format!(
                "after step {} the weights of {ranks} differ from those of rank 0",
                self.step
            ))),
        }
    }

    /// Saves a checkpoint if the replicas are equal. Every rank must call this.
    pub(crate) fn save(&mut self, validation_loss: Option<f64>) -> Result<(), Failure> {
        self.compare_replicas()?;
        let mut job = Job::new(self.config, self.text);
        job.watch.clone_from(&self.watch);
        let (variables, optimizer) = (&self.variables, &mut self.optimizer);
        let (parallel, local) = (self.replica.parallel()?, &mut self.local);
        self.run
            .save(parallel, &self.sampler, validation_loss, |parts| {
                snapshot::name_all(parts, variables, (optimizer, local.as_mut()), &mut job)
            })?;
        Ok(())
    }

    /// Returns the data-parallel layer.
    pub(crate) fn parallel(&self) -> Result<&DataParallel, Failure> {
        Ok(self.replica.parallel()?)
    }

    /// Returns the number of weights in the model.
    pub(crate) fn weight_count(&self) -> usize {
        let variables = self.variables.iter();
        variables.map(|(_, var)| var.elem_count()).sum()
    }

    /// Returns the size of the optimizer's state on this rank in bytes.
    pub(crate) fn optimizer_bytes(&self) -> usize {
        self.optimizer.state_bytes()
    }
}

/// Creates the local steps, which average the weights every `every` steps.
fn local_steps(
    comm: &Communicator,
    replica: &Replica,
    every: u64,
) -> Result<Option<LocalSteps>, Failure> {
    if every == 0 {
        return Ok(None);
    }
    let outer = Outer {
        every,
        ..Outer::default()
    };
    let parameters = replica.parallel()?.parameters();
    let local = LocalSteps::new(comm, parameters, &mut replica.weights(), outer)?;
    Ok(Some(local))
}

/// Returns the options for averaging gradients. The norm is computed even without clipping.
fn options(config: &Config) -> Options {
    let options = match config.wire {
        Wire::F32 => Options::new(),
        Wire::Bf16 => Options::new().hook(HalfHook::bf16()),
    };
    let options = match config.shard_optimizer {
        true => options.sharded(),
        false => options,
    };
    let longest = if config.clip > 0.0 {
        config.clip
    } else {
        f64::MAX
    };
    options.clip_norm(longest).non_finite(NonFinite::Fail)
}
