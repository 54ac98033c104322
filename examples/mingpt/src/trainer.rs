//! What a rank trains with, and one step of it.

use crate::evaluate;
use crate::failure::Failure;
use crate::model::{Gpt, Shape, initialise};
use crate::optimizer::{AdamW, learning_rate};
use crate::options::{Config, Wire};
use crate::replicas::{self, Fingerprint};
use crate::snapshot::{self, Job};
use crate::text::Text;
use candle_core::backprop::GradStore;
use candle_core::{DType, Device};
use candle_nn::VarMap;
use ringtree::ddp::checkpoint::Run;
use ringtree::ddp::{DataParallel, DistributedSampler, HalfHook, Options, Trace};
use ringtree::{Communicator, ReduceOp};
use ringtree_candle::{Replica, var_builder};
use std::time::{Duration, Instant};

/// A rank's training, between two steps.
pub(crate) struct Trainer<'a> {
    pub(crate) run: Run,
    pub(crate) config: &'a Config,
    pub(crate) text: &'a Text,
    pub(crate) model: Gpt,
    replica: Replica,
    optimizer: AdamW,
    pub(crate) sampler: DistributedSampler,
    /// Optimizer steps that were taken.
    pub(crate) step: u64,
    pub(crate) trace: Trace,
}

/// What there is to say of a step.
pub(crate) struct Taken {
    /// The mean loss of the global batch.
    pub(crate) loss: f64,
    /// The length of the averaged gradient, before clipping.
    pub(crate) gradient_norm: f64,
    pub(crate) learning_rate: f64,
}

impl<'a> Trainer<'a> {
    /// Where `run` goes on, or at the beginning; every rank calls it.
    pub(crate) fn new(run: Run, config: &'a Config, text: &'a Text) -> Result<Self, Failure> {
        let mut job = Job::new(config, text);
        if let Some(state) = run.state() {
            Job::of(state)?.check_fits(&job)?;
        }
        let comm = run.comm();
        let shape = Shape::of(config, text);
        let varmap = VarMap::new();
        let (builder, hooks) = var_builder(&varmap, DType::F32, &Device::Cpu);
        let model = Gpt::new(shape, &builder)?;
        initialise(&varmap, shape, config.seed)?;
        let parameters = hooks.variables();
        let options = match config.wire {
            Wire::F32 => Options::new(),
            Wire::Bf16 => Options::new().hook(HalfHook::bf16()),
        };
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
        let mut this = Self {
            replica: Replica::new(comm, hooks, options)?,
            run,
            config,
            text,
            model,
            optimizer: AdamW::new(parameters, config.weight_decay),
            sampler,
            step: 0,
            trace: Trace::off(),
        };
        let (parallel, parameters) = (this.replica.parallel_mut()?, &mut this.optimizer.parameters);
        this.step = this.run.resume(parallel, &mut this.sampler, |parts| {
            snapshot::name_all(parts, parameters, &mut job)
        })?;
        this.replica.refresh()?;
        Ok(this)
    }

    /// The ranks that train.
    pub(crate) fn comm(&self) -> &Communicator {
        self.run.comm()
    }

    /// One optimizer step on one global batch.
    pub(crate) fn take_step(&mut self) -> Result<Taken, Failure> {
        let beginning = self.trace.clock();
        let (loss, gradients) = self.averaged_gradients()?;
        let updating = self.trace.clock();
        let gradient_norm = self.optimizer.norm(&gradients)?;
        if !gradient_norm.is_finite() {
            return Err(Failure::work(format!(
                "the gradient of step {} is not finite: lower --learning-rate or --clip",
                self.step
            )));
        }
        let config = self.config;
        let factor = clipping(config.clip, gradient_norm);
        let highest = config.learning_rate;
        let learning_rate = learning_rate(highest, self.step, config.warmup, config.steps);
        self.optimizer
            .step(&gradients, factor, learning_rate, self.step)?;
        self.replica.refresh()?;
        self.trace
            .span("optimizer", "optimizer", updating, self.trace.clock());
        let parallel = self.replica.parallel()?;
        self.trace.buckets(parallel);
        let step = format_args!("step {}", self.step);
        self.trace.span("step", step, beginning, self.trace.clock());
        self.step += 1;
        Ok(Taken {
            loss,
            gradient_norm,
            learning_rate,
        })
    }

    /// The loss and the gradients of the next global batch, which this rank goes through in one or
    /// several parts.
    fn averaged_gradients(&mut self) -> Result<(f64, GradStore), Failure> {
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
        let mut loss_sum = [own_loss + f64::from(loss.to_scalar::<f32>()?)];
        let beginning = (self.trace.clock(), Instant::now());
        let gradients = self.replica.backward(&loss)?;
        self.trace_backward(beginning);
        self.comm().all_reduce(&mut loss_sum, ReduceOp::Avg)?;
        Ok((loss_sum[0], gradients))
    }

    /// The part of the loss that the next `share` sequences contribute.
    fn forward(&mut self, share: usize) -> Result<candle_core::Tensor, Failure> {
        let beginning = self.trace.clock();
        if self.sampler.len() == 0 {
            self.sampler.set_epoch(self.sampler.epoch() + 1);
        }
        let numbers: Vec<_> = self.sampler.by_ref().take(share).collect();
        let (sequences, targets) = self.text.batch(&numbers)?;
        let loss = (self.model.loss(&sequences, &targets)? / self.config.accumulate as f64)?;
        self.trace
            .span("forward", "forward", beginning, self.trace.clock());
        Ok(loss)
    }

    /// Records the last backward pass, which began at the same moment of both clocks, layer by
    /// layer. A layer ends with the last of its reports.
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

    /// The mean loss of the validation sequences.
    pub(crate) fn validate(&self) -> Result<f64, Failure> {
        let count = self.config.validation_sequences;
        evaluate::loss(self.comm(), &self.model, self.text, count)
    }

    /// Compares the replicas, every rank calling it, and returns the weights' fingerprint.
    pub(crate) fn compare_replicas(&self) -> Result<Fingerprint, Failure> {
        let weights = self.optimizer.parameters.iter();
        let own = replicas::fingerprint(weights.map(|each| &each.var))?;
        let fingerprints = replicas::gather(self.comm(), &own)?;
        match replicas::differing(&fingerprints) {
            None => Ok(own),
            Some(ranks) => Err(Failure::work(format!(
                "after step {} the weights of {ranks} are not those of rank 0: the replicas have \
                 drifted apart",
                self.step
            ))),
        }
    }

    /// Saves a checkpoint of replicas that are equal; every rank calls it.
    pub(crate) fn save(&mut self, validation_loss: Option<f64>) -> Result<(), Failure> {
        self.compare_replicas()?;
        let mut job = Job::new(self.config, self.text);
        let (parallel, parameters) = (self.replica.parallel()?, &mut self.optimizer.parameters);
        self.run
            .save(parallel, &self.sampler, validation_loss, |parts| {
                snapshot::name_all(parts, parameters, &mut job)
            })?;
        Ok(())
    }

    /// What the reducer knows of the last step.
    pub(crate) fn parallel(&self) -> Result<&DataParallel, Failure> {
        Ok(self.replica.parallel()?)
    }

    /// The model's weights.
    pub(crate) fn weight_count(&self) -> usize {
        let parameters = self.optimizer.parameters.iter();
        parameters.map(|each| each.var.elem_count()).sum()
    }
}

/// What shortens a gradient of length `norm` to `longest`, where 0 stands for any length.
fn clipping(longest: f64, norm: f64) -> f64 {
    match longest > 0.0 {
        true => (longest / norm).min(1.0),
        false => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_longer_gradients_are_shortened_and_none_without_a_limit() {
        assert_eq!(clipping(1.0, 4.0), 0.25);
        assert_eq!(clipping(1.0, 0.5), 1.0);
        assert_eq!(clipping(1.0, 0.0), 1.0);
        assert_eq!(clipping(0.0, 4.0), 1.0);
    }
}
