//! What a rank trains with, and one step of it.

use crate::evaluate;
use crate::failure::Failure;
use crate::metrics;
use crate::model::{Gpt, Shape, initialise};
use crate::optimizer::{AdamW, learning_rate};
use crate::options::{Config, Wire};
use crate::replicas::{self, Fingerprint};
use crate::snapshot::{self, Job};
use crate::text::Text;
use candle_core::backprop::GradStore;
use candle_core::{DType, Device};
use candle_nn::VarMap;
use ringtree::ddp::checkpoint::{Checkpoint, Checkpoints, State};
use ringtree::ddp::{DistributedSampler, HalfHook, Options, Trace};
use ringtree::{Communicator, ReduceOp};
use ringtree_candle::{Replica, var_builder};
use std::time::{Duration, Instant};

/// A rank's training, between two steps.
pub(crate) struct Trainer<'a> {
    pub(crate) comm: &'a Communicator,
    pub(crate) config: &'a Config,
    pub(crate) text: &'a Text,
    pub(crate) model: Gpt,
    replica: Replica,
    optimizer: AdamW,
    pub(crate) sampler: DistributedSampler,
    /// Optimizer steps that were taken.
    pub(crate) step: u64,
    /// The run's id, as rank 0 knows it.
    pub(crate) run: String,
    pub(crate) trace: Trace,
}

/// What there is to say of a step.
pub(crate) struct Taken {
    /// The mean loss of the global batch.
    pub(crate) loss: f64,
    /// The length of the averaged gradient, before clipping.
    pub(crate) gradient_norm: f64,
    pub(crate) learning_rate: f64,
    pub(crate) step_ms: f64,
    /// Communication that backward did not hide.
    pub(crate) exposed_ms: f64,
}

impl<'a> Trainer<'a> {
    /// At the beginning; every rank calls it.
    pub(crate) fn new(
        comm: &'a Communicator,
        config: &'a Config,
        text: &'a Text,
    ) -> Result<Self, Failure> {
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
        Ok(Self {
            comm,
            config,
            text,
            model,
            replica: Replica::new(comm, hooks, options)?,
            optimizer: AdamW::new(parameters, config.weight_decay),
            sampler,
            step: 0,
            run: metrics::new_run(),
            trace: Trace::off(),
        })
    }

    /// One optimizer step on one global batch.
    pub(crate) fn take_step(&mut self) -> Result<Taken, Failure> {
        let (started, beginning) = (Instant::now(), self.trace.clock());
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
            exposed_ms: parallel.exposed().as_secs_f64() * 1e3,
            step_ms: started.elapsed().as_secs_f64() * 1e3,
        })
    }

    /// The loss and the gradients of the next global batch, which this rank goes through in one or
    /// several parts.
    fn averaged_gradients(&mut self) -> Result<(f64, GradStore), Failure> {
        let parts = self.config.accumulate;
        let share = self.config.batch / self.comm.world_size() / parts;
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
        self.comm.all_reduce(&mut loss_sum, ReduceOp::Avg)?;
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
        evaluate::loss(self.comm, &self.model, self.text, count)
    }

    /// Compares the replicas, every rank calling it, and returns the weights' fingerprint.
    pub(crate) fn compare_replicas(&self) -> Result<Fingerprint, Failure> {
        let weights = self.optimizer.parameters.iter();
        let own = replicas::fingerprint(weights.map(|each| &each.var))?;
        let fingerprints = replicas::gather(self.comm, &own)?;
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
    pub(crate) fn save(&self, checkpoints: &Checkpoints) -> Result<(), Failure> {
        self.compare_replicas()?;
        let job = serde_json::to_value(self.job()).expect("invariant: a job is plain data");
        let state = State {
            run_id: self.run.clone(),
            step: self.step,
            epoch: self.sampler.epoch(),
            sampler_position: self.sampler.position(),
            seed: self.config.seed,
            tuning: Some(self.comm.tuning().to_string()),
            user: job,
            ..State::default()
        };
        let parameters = &self.optimizer.parameters;
        snapshot::save(checkpoints, self.comm, state, parameters, &self.replica)?;
        if self.comm.rank() == 0 {
            for warning in checkpoints.warnings() {
                eprintln!("mingpt: {warning}");
            }
        }
        Ok(())
    }

    /// Goes on from `checkpoint`; every rank calls it.
    pub(crate) fn resume(&mut self, checkpoint: &Checkpoint) -> Result<(), Failure> {
        Job::of(checkpoint)?.check_fits(&self.job())?;
        let parameters = &mut self.optimizer.parameters;
        snapshot::restore(checkpoint, self.comm, parameters, &mut self.replica)?;
        let state = &checkpoint.state;
        let own = self.comm.tuning().to_string();
        if self.comm.rank() == 0 && state.tuning.as_ref().is_some_and(|table| *table != own) {
            eprintln!(
                "mingpt: the checkpoint was made under another tuning table, so that sums may \
                 differ in their last bits; RINGTREE_TUNING can name a file that keeps the table"
            );
        }
        self.sampler.resume(state.epoch, state.sampler_position);
        self.step = state.step;
        self.run.clone_from(&state.run_id);
        Ok(())
    }

    fn job(&self) -> Job {
        Job::new(self.config, self.text)
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
