//! AdamW (Loshchilov, Hutter, 2019), with its state in the open, so that a checkpoint can keep it.

use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Storage, Tensor, Var};
use std::cell::RefCell;

/// How much of the mean of past gradients a step keeps.
const MOMENTUM: f64 = 0.9;
/// How much of the mean of their squares.
const SQUARE_MOMENTUM: f64 = 0.99;
/// Keeps divisors off zero.
const EPSILON: f64 = 1e-8;
/// The part of the highest learning rate at which training ends.
const FINAL_RATE: f64 = 0.1;

/// A parameter and what its updates remember.
pub(crate) struct Parameter {
    pub(crate) name: String,
    pub(crate) var: Var,
    /// The mean of its past gradients.
    pub(crate) mean: Vec<f32>,
    /// The mean of their squares.
    pub(crate) square: Vec<f32>,
}

/// The optimizer of all parameters.
pub(crate) struct AdamW {
    pub(crate) parameters: Vec<Parameter>,
    weight_decay: f64,
}

impl AdamW {
    /// An optimizer without memories.
    pub(crate) fn new(parameters: Vec<(String, Var)>, weight_decay: f64) -> Self {
        let parameter = |(name, var): (String, Var)| Parameter {
            name,
            mean: vec![0.0; var.elem_count()],
            square: vec![0.0; var.elem_count()],
            var,
        };
        Self {
            parameters: parameters.into_iter().map(parameter).collect(),
            weight_decay,
        }
    }

    /// The Euclidean length of all gradients together.
    pub(crate) fn norm(&self, gradients: &GradStore) -> Result<f64> {
        let mut squares = 0.0;
        for parameter in &self.parameters {
            if let Some(gradient) = gradients.get(&parameter.var) {
                squares += with_slice(gradient, |gradient| {
                    let squares = gradient.iter().map(|value| f64::from(*value).powi(2));
                    squares.sum::<f64>()
                })?;
            }
        }
        Ok(squares.sqrt())
    }

    /// Takes step number `step`, from 0, along `factor` times the gradients.
    pub(crate) fn step(
        &mut self,
        gradients: &GradStore,
        factor: f64,
        rate: f64,
        step: u64,
    ) -> Result<()> {
        // The memories start at zero; this makes up for it.
        let taken = step as f64 + 1.0;
        let mean_share = 1.0 - MOMENTUM.powf(taken);
        let square_share = 1.0 - SQUARE_MOMENTUM.powf(taken);
        for parameter in &mut self.parameters {
            let Some(gradient) = gradients.get(&parameter.var) else {
                continue;
            };
            let is_matrix = parameter.var.rank() >= 2;
            let decay = if is_matrix { self.weight_decay } else { 0.0 };
            let rates = Rates {
                factor: factor as f32,
                keep: (1.0 - rate * decay) as f32,
                length: (rate / mean_share) as f32,
                square_share: square_share as f32,
            };
            let Parameter {
                var, mean, square, ..
            } = parameter;
            with_slice(gradient, |gradient| {
                let memory = RefCell::new((&mut mean[..], &mut square[..]));
                var.inplace_op1(&Update {
                    gradient,
                    memory,
                    rates,
                })
            })??;
        }
        Ok(())
    }
}

/// The learning rate of `step`: it rises linearly, then falls along half a cosine (Loshchilov,
/// Hutter, 2017) to a tenth.
pub(crate) fn learning_rate(highest: f64, step: u64, warmup: u64, steps: u64) -> f64 {
    if step < warmup {
        return highest * (step + 1) as f64 / warmup as f64;
    }
    let rest = steps.saturating_sub(warmup).max(1);
    let gone = ((step - warmup) as f64 / rest as f64).min(1.0);
    let height = (1.0 + (std::f64::consts::PI * gone).cos()) / 2.0;
    highest * (FINAL_RATE + (1.0 - FINAL_RATE) * height)
}

/// Shows `visit` the elements of a tensor of the CPU.
pub(crate) fn with_slice<R>(tensor: &Tensor, visit: impl FnOnce(&[f32]) -> R) -> Result<R> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        candle_core::bail!("mingpt trains on the CPU")
    };
    let start = layout.start_offset();
    let elements = &storage.as_slice::<f32>()?[start..start + layout.shape().elem_count()];
    Ok(visit(elements))
}

/// The factors of one update.
#[derive(Clone, Copy)]
struct Rates {
    /// Of the gradient.
    factor: f32,
    /// Of the weight, decayed.
    keep: f32,
    /// Of the step.
    length: f32,
    /// By which the mean of squares is too small.
    square_share: f32,
}

/// The update of one parameter, where it lies.
struct Update<'a> {
    gradient: &'a [f32],
    /// The means of gradients and squares. An operation has no mutable self.
    memory: RefCell<(&'a mut [f32], &'a mut [f32])>,
    rates: Rates,
}

impl InplaceOp1 for Update<'_> {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (CpuStorage::F32(all), Some((start, end))) = (storage, layout.contiguous_offsets())
        else {
            candle_core::bail!("mingpt trains in f32")
        };
        let Rates {
            factor,
            keep,
            length,
            square_share,
        } = self.rates;
        let (momentum, square_momentum) = (MOMENTUM as f32, SQUARE_MOMENTUM as f32);
        let (means, squares) = &mut *self.memory.borrow_mut();
        let memories = means.iter_mut().zip(squares.iter_mut());
        let weights = all[start..end].iter_mut();
        for ((weight, gradient), (mean, square)) in weights.zip(self.gradient).zip(memories) {
            let gradient = gradient * factor;
            *mean = momentum * *mean + (1.0 - momentum) * gradient;
            *square = square_momentum * *square + (1.0 - square_momentum) * gradient * gradient;
            let spread = (*square / square_share).sqrt() + EPSILON as f32;
            *weight = keep * *weight - length * *mean / spread;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    /// Gradient 3 on two weights of a matrix, then 1; against the paper's formulas by hand.
    #[test]
    fn two_steps_are_those_of_the_paper() {
        let var = Var::new(&[[1f32, -2.0]], &Device::Cpu).unwrap();
        let mut adam = AdamW::new(vec![("weight".into(), var.clone())], 0.5);
        for (step, slope) in [(0, 3.0), (1, 1.0)] {
            let loss = var.sum_all().unwrap();
            let mut gradients = loss.backward().unwrap();
            let gradient = Tensor::full(slope as f32, (1, 2), &Device::Cpu).unwrap();
            gradients.insert(&var, gradient);
            // Half of the gradient, as if it had been clipped.
            adam.step(&gradients, 0.5, 0.1, step).unwrap();
        }
        let mut expected = [1.0f64, -2.0];
        let (mut mean, mut square) = (0.0, 0.0);
        for (taken, gradient) in [(1, 1.5), (2, 0.5)] {
            mean = 0.9 * mean + 0.1 * gradient;
            square = 0.99 * square + 0.01 * gradient * gradient;
            let mean = mean / (1.0 - 0.9f64.powi(taken));
            let spread = (square / (1.0 - 0.99f64.powi(taken))).sqrt() + 1e-8;
            for weight in &mut expected {
                *weight -= 0.1 * (mean / spread + 0.5 * *weight);
            }
        }
        let got = var.to_vec2::<f32>().unwrap();
        for (got, expected) in got[0].iter().zip(expected) {
            assert!(
                (f64::from(*got) - expected).abs() < 1e-6,
                "{got} {expected}"
            );
        }
    }

    #[test]
    fn vectors_do_not_decay() {
        let var = Var::new(&[1f32], &Device::Cpu).unwrap();
        let mut adam = AdamW::new(vec![("bias".into(), var.clone())], 0.5);
        let mut gradients = var.sum_all().unwrap().backward().unwrap();
        gradients.insert(
            &var,
            Tensor::zeros(1, candle_core::DType::F32, &Device::Cpu).unwrap(),
        );
        adam.step(&gradients, 1.0, 0.1, 0).unwrap();
        assert_eq!(var.to_vec1::<f32>().unwrap(), [1.0]);
    }

    #[test]
    fn the_rate_rises_and_falls() {
        let rate = |step| learning_rate(1.0, step, 10, 110);
        assert!((rate(0) - 0.1).abs() < 1e-12 && (rate(9) - 1.0).abs() < 1e-12);
        assert!((rate(60) - 0.55).abs() < 1e-12 && (rate(110) - 0.1).abs() < 1e-12);
    }
}
