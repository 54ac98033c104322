//! Stores the optimizer's state in checkpoints, as tensors that have the shapes of the parameters,
//! and rearranges the state when the buckets change.

#[cfg(feature = "checkpoint")]
use super::Weights;
use super::{Optimizer, Shares, UpdateRule, both};
#[cfg(feature = "checkpoint")]
use crate::ddp::checkpoint::Parts;
use crate::ddp::parallel::DataParallel;
use crate::error::Result;
use std::ops::Range;

#[cfg(feature = "checkpoint")]
impl<R: UpdateRule> Optimizer<R> {
    /// Names the parts of the state that are saved in a checkpoint, in the form
    /// `optimizer/PARAMETER/STATE`. See [`Parts`] for details.
    ///
    /// Each rank may have only a share of each tensor. Any number of ranks can resume from the
    /// saved state, whether or not the averages are sharded.
    ///
    /// # Errors
    /// Returns the same errors as [`Parts::tensor`] and [`Parts::shard`].
    pub fn parts(&mut self, parts: &mut Parts<'_>) -> Result<()> {
        self.name_all(parts, false)
    }

    /// Names the weights, as `model/PARAMETER`, and the parts that [`Optimizer::parts`] names.
    ///
    /// # Errors
    /// Returns the same errors as [`Optimizer::parts`], and an error if the weights have the wrong
    /// length.
    pub fn parts_and_weights(
        &mut self,
        parts: &mut Parts<'_>,
        weights: &mut (impl Weights + ?Sized),
    ) -> Result<()> {
        for (number, parameter) in self.parameters.iter().enumerate() {
            let mut named = Ok(());
            weights.visit(number, &mut |weights| {
                let name = format!("model/{}", parameter.name);
                named = parts.tensor(&name, &parameter.shape, weights);
            })?;
            named?;
        }
        self.parts(parts)
    }

    /// Like [`Optimizer::parts`], but each rank saves its own state.
    ///
    /// Use this method if ranks train independently (see [`LocalSteps`](crate::ddp::LocalSteps)). A
    /// rank for which the checkpoint contains no state keeps its current state, which is initially
    /// zero.
    ///
    /// # Errors
    /// Returns the same errors as [`Parts::own`].
    pub fn own_parts(&mut self, parts: &mut Parts<'_>) -> Result<()> {
        self.name_all(parts, true)
    }

    fn name_all(&mut self, parts: &mut Parts<'_>, is_own: bool) -> Result<()> {
        for (number, parameter) in self.parameters.iter().enumerate() {
            let (at, part) = self.shares.of(number);
            for (state, name) in self.state.iter_mut().zip(self.rule.state()) {
                let name = format!("optimizer/{}/{name}", parameter.name);
                let values = &mut state[at..at + part.len()];
                match (is_own, self.is_sharded) {
                    (true, _) => parts.own(&name, &[values.len()], values)?,
                    (_, true) => parts.shard(&name, &parameter.shape, part.start, values)?,
                    (_, false) => parts.tensor(&name, &parameter.shape, values)?,
                }
            }
        }
        parts.value("optimizer/steps", &mut self.steps)
    }
}

impl<R: UpdateRule> Optimizer<R> {
    /// Rearranges the state to match the model's current buckets. The buckets change once after the
    /// first step, and whenever a checkpoint is loaded.
    pub(super) fn follow(&mut self, model: &DataParallel) -> Result<()> {
        if self.shares.layout == model.layout {
            return Ok(());
        }
        let after = Shares::of_model(model);
        let mut new = vec![vec![0.0; after.count()]; self.state.len()];
        let mut start = 0;
        for (bucket, own) in self.shares.layout.buckets.iter().zip(&self.shares.own) {
            for (state, new) in self.state.iter().zip(&mut new) {
                let mut whole = vec![0.0; bucket.count];
                whole[own.clone()].copy_from_slice(&state[start..start + own.len()]);
                if self.is_sharded {
                    model.comms[0].all_gather(&mut whole)?;
                }
                for parameter in &bucket.parameters {
                    let values = &whole[self.shares.layout.places[*parameter].range.clone()];
                    let (at, part) = after.of(*parameter);
                    new[at..at + part.len()].copy_from_slice(&values[part]);
                }
            }
            start += own.len();
        }
        (self.shares, self.state) = (after, new);
        Ok(())
    }
}

impl Shares {
    /// Returns this rank's shares of the model's current buckets.
    pub(super) fn of_model(model: &DataParallel) -> Self {
        let buckets = model.layout.buckets.iter();
        Self {
            own: buckets.map(|bucket| model.own_range(bucket)).collect(),
            layout: model.layout.clone(),
        }
    }

    /// Returns the total number of elements in all shares.
    pub(super) fn count(&self) -> usize {
        self.own.iter().map(Range::len).sum()
    }

    /// Returns two descriptions of the elements of `parameter` that this rank updates: the index of
    /// their first value in each state vector, and their range within the parameter.
    pub(super) fn of(&self, parameter: usize) -> (usize, Range<usize>) {
        let place = &self.layout.places[parameter];
        let (before, from) = self.own.split_at(place.bucket);
        let start: usize = before.iter().map(Range::len).sum();
        let (own, range) = (&from[0], &place.range);
        let both = both(range, own);
        match both.is_empty() {
            true => (start, 0..0),
            false => (
                start + both.start - own.start,
                both.start - range.start..both.end - range.start,
            ),
        }
    }
}
