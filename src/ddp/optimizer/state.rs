//! The optimizer's state as whole tensors: for checkpoints, and when the buckets change.

use super::{Optimizer, UpdateRule, both, share};
use crate::ddp::parallel::DataParallel;
use crate::ddp::parameter::Parameter;
use crate::error::{Error, Result};

/// A parameter's number, the state's number, and its values for the whole parameter.
type Visit<'a> = dyn FnMut(usize, usize, &[f32]) -> Result<()> + 'a;

impl<R: UpdateRule> Optimizer<R> {
    /// Hands `each` the state as tensors of a parameter's shape, by name
    /// (`optimizer/PARAMETER/STATE`), as a checkpoint keeps them: on every rank, whichever rank's
    /// share they are. All ranks call it, between steps.
    ///
    /// # Errors
    /// Those of `each`; with [`Options::sharded`](crate::ddp::Options::sharded) any of the
    /// communicator's.
    pub fn save(
        &self,
        model: &DataParallel,
        mut each: impl FnMut(String, &[usize], &[f32]) -> Result<()>,
    ) -> Result<()> {
        self.visit(model, &mut |number, state, values| {
            let parameter = &model.parameters[number];
            each(self.tensor(parameter, state), &parameter.shape, values)
        })
    }

    /// Goes on as after `steps` steps with the tensors that `find` finds by name, which
    /// [`Optimizer::save`] gave. There may be more or fewer ranks than there were, and the model
    /// may be sharded or not.
    ///
    /// # Errors
    /// Those of `find`; [`Error::usage`] for a tensor of another length.
    pub fn restore(
        &mut self,
        model: &DataParallel,
        steps: u64,
        mut find: impl FnMut(&str) -> Result<Vec<f32>>,
    ) -> Result<()> {
        let mut new = zeros(&self.rule, model);
        for (number, parameter) in model.parameters.iter().enumerate() {
            for (state, new) in new.iter_mut().enumerate() {
                let name = self.tensor(parameter, state);
                let values = find(&name)?;
                let count = parameter.count();
                if values.len() != count {
                    return Err(Error::usage(format!(
                        "{name} has {} elements, but its parameter {count}; is the checkpoint of \
                         another model?",
                        values.len()
                    )));
                }
                keep(model, number, &values, new);
            }
        }
        self.layout.clone_from(&model.layout);
        (self.state, self.steps) = (new, steps);
        Ok(())
    }

    /// Takes up the buckets of the model, which change once: after the first step.
    pub(super) fn follow(&mut self, model: &DataParallel) -> Result<()> {
        if self.layout == model.layout {
            return Ok(());
        }
        let mut new = zeros(&self.rule, model);
        self.visit(model, &mut |number, state, values| {
            keep(model, number, values, &mut new[state]);
            Ok(())
        })?;
        self.layout.clone_from(&model.layout);
        self.state = new;
        Ok(())
    }

    /// Shows all of the state, bucket by bucket.
    fn visit(&self, model: &DataParallel, each: &mut Visit<'_>) -> Result<()> {
        let mut start = 0;
        for bucket in &self.layout.buckets {
            let own = share(model, bucket);
            for (number, state) in self.state.iter().enumerate() {
                let mut whole = vec![0.0; bucket.count];
                whole[own.clone()].copy_from_slice(&state[start..start + own.len()]);
                if model.is_sharded {
                    model.comms[0].all_gather(&mut whole)?;
                }
                for parameter in &bucket.parameters {
                    let range = self.layout.places[*parameter].range.clone();
                    each(*parameter, number, &whole[range])?;
                }
            }
            start += own.len();
        }
        Ok(())
    }

    fn tensor(&self, parameter: &Parameter, state: usize) -> String {
        format!("optimizer/{}/{}", parameter.name, self.rule.state()[state])
    }
}

/// The state of a rank's share before the first step.
pub(super) fn zeros(rule: &impl UpdateRule, model: &DataParallel) -> Vec<Vec<f32>> {
    let buckets = model.layout.buckets.iter();
    let count = buckets.map(|bucket| share(model, bucket).len()).sum();
    vec![vec![0.0; count]; rule.state().len()]
}

/// Copies what this rank has a share in of a parameter's `values` to its place among the `kept`.
fn keep(model: &DataParallel, number: usize, values: &[f32], kept: &mut [f32]) {
    let place = &model.layout.places[number];
    let (before, from) = model.layout.buckets.split_at(place.bucket);
    let start: usize = before.iter().map(|bucket| share(model, bucket).len()).sum();
    let own = share(model, &from[0]);
    let both = both(&place.range, &own);
    if both.is_empty() {
        return;
    }
    let start = start + both.start - own.start;
    let values = &values[both.start - place.range.start..][..both.len()];
    kept[start..start + both.len()].copy_from_slice(values);
}
