//! Defines the synthetic model: its parameters, and gradients with predictable values.

use crate::options::Job;
use ringtree::ddp::{DataParallel, Parameter};
use ringtree::{Communicator, Dtype, Error, ErrorKind, Result};
use std::ops::Range;

/// Number of elements after which the values repeat. The values are small integers, so that
/// averages are exact.
const PERIOD: usize = 101;

/// Layers of weights and biases. The weight w in a layer has the index 2w, and its bias has the
/// index 2w + 1.
pub(crate) struct Model {
    /// All parameters, in the order of forward.
    pub(crate) parameters: Vec<Parameter>,
    layers: usize,
    /// Pools from which the values of this rank's gradients, and of the averages, are taken.
    own: Vec<f32>,
    averaged: Vec<f32>,
}

impl Model {
    pub(crate) fn new(job: &Job, comm: &Communicator) -> Self {
        let elements = job.parameters / (job.layers * job.weights);
        let bias = elements.isqrt();
        let parameters: Vec<_> = (0..job.layers * job.weights)
            .flat_map(|weight| {
                let layer = weight / job.weights;
                let place = weight % job.weights;
                [
                    Parameter::new(
                        &format!("layer{layer}.{place}.weight"),
                        &[elements - bias],
                        Dtype::F32,
                    ),
                    Parameter::new(&format!("layer{layer}.{place}.bias"), &[bias], Dtype::F32),
                ]
            })
            .collect();
        let values = |added: f32| -> Vec<f32> {
            let length = elements + PERIOD;
            (0..length)
                .map(|at| (at * 37 % PERIOD) as f32 + added)
                .collect()
        };
        Self {
            parameters,
            layers: job.layers,
            own: values(comm.rank() as f32),
            averaged: values((comm.world_size() - 1) as f32 / 2.0),
        }
    }

    /// Returns the total size of all gradients in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.parameters.iter().map(Parameter::bytes).sum()
    }

    /// Returns the indices of the parameters in a layer.
    pub(crate) fn layer(&self, layer: usize) -> Range<usize> {
        let each = self.parameters.len() / self.layers;
        layer * each..(layer + 1) * each
    }

    /// Returns the gradient that this rank reports for a parameter.
    pub(crate) fn gradient(&self, parameter: usize, step: usize) -> &[f32] {
        &self.own[self.place(parameter, step)]
    }

    fn place(&self, parameter: usize, step: usize) -> Range<usize> {
        let start = (parameter * 13 + step * 7) % PERIOD;
        start..start + self.parameters[parameter].count()
    }

    /// Checks every average.
    pub(crate) fn check(&self, reducer: &DataParallel, step: usize) -> Result<()> {
        for (number, parameter) in self.parameters.iter().enumerate() {
            let expected = &self.averaged[self.place(number, step)];
            if reducer.gradient::<f32>(number)? != Some(expected) {
                return Err(Error::new(
                    ErrorKind::Protocol,
                    format!("step {step}: {parameter} has a wrong average"),
                ));
            }
        }
        Ok(())
    }
}
