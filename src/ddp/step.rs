//! The end of a step: launch the rest, wait for all buckets, agree that the step counts.
//!
//! A step ends with the *commit*: one small all-reduce that a rank enters when all its buckets are
//! there, and whose result is which parameters some ranks used and some left out. No rank leaves it
//! before every rank has entered, so a rank that takes its optimizer step knows that every rank has
//! all the gradients of this step.

use super::flight::{Flight, Landing};
use super::options::NonFinite;
use super::parallel::{Content, DataParallel, Phase};
use crate::error::{Error, Result};
use crate::op::ReduceOp;
use std::ops::Range;
use std::time::Duration;

/// So many unused parameters are named.
const UNUSED_NAMED: usize = 8;

impl DataParallel {
    /// Ends the step: launches what is left (zeros where no gradient came), waits for all buckets,
    /// and agrees with all ranks that the step counts. Then the optimizer takes its step, with
    /// [`DataParallel::gradient`].
    ///
    /// # Errors
    /// The first error; no gradient can be read then, so no parameter is updated.
    /// [`Error::usage`] on all ranks if no rank reported anything in this step, or, without
    /// [`Options::allow_unused`](super::Options::allow_unused), if one of them reported nothing for
    /// some parameter.
    pub fn wait(&mut self) -> Result<()> {
        self.check_alive()?;
        let result = self.begin_step();
        let result = result.and_then(|()| self.announce());
        let result = result.and_then(|()| self.finish(true));
        self.keep_failure(result)
    }

    /// Takes part in the steps of ranks that still have data, until none has. `on_step` is called
    /// after each and takes the optimizer's step, as the others do. Averages divide by all ranks.
    ///
    /// ```
    /// use ringtree::{Dtype, ddp::{DataParallel, Options, Parameter}};
    /// let weights = ringtree::simulate(3, |comm| {
    ///     let parameters = vec![Parameter::new("weight", &[1], Dtype::F32)];
    ///     let mut model = DataParallel::new(comm, parameters, Options::new().uneven_data())?;
    ///     let mut weight = 0.0;
    ///     let mut update = |model: &mut DataParallel| {
    ///         weight += model.gradient::<f32>(0)?.map_or(0.0, |gradient| gradient[0]);
    ///         Ok(())
    ///     };
    ///     for _batch in 0..comm.rank() {
    ///         model.report(0, &[3.0f32])?;
    ///         model.wait()?;
    ///         update(&mut model)?;
    ///     }
    ///     model.join(&mut update)?;
    ///     Ok::<_, ringtree::Error>(weight)
    /// });
    /// assert_eq!(weights, vec![Ok(2.0 + 1.0); 3]);
    /// ```
    ///
    /// # Errors
    /// [`Error::usage`] without [`Options::uneven_data`](super::Options::uneven_data), or in the
    /// middle of a step; what `on_step` returns; any of the communicator's.
    pub fn join(&mut self, mut on_step: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.check_alive()?;
        if !self.has_uneven_data || self.phase != Phase::Averaged {
            return Err(Error::usage(
                "`join` is called between two steps, with the option `uneven_data`",
            ));
        }
        loop {
            let mut active = [0u32];
            let result = self.comms[0].all_reduce(&mut active, ReduceOp::Sum);
            self.keep_failure(result)?;
            if active == [0] {
                return Ok(());
            }
            let result = self.begin_step().and_then(|()| self.finish(false));
            self.keep_failure(result)?;
            let result = on_step(self);
            self.keep_failure(result)?;
        }
    }

    /// Announces, once a step, that this rank has data.
    pub(super) fn announce(&mut self) -> Result<()> {
        if self.has_uneven_data && self.active.is_none() {
            let active = self.comms[0].all_reduce_async(vec![1u32], ReduceOp::Sum)?;
            self.active = Some(active);
        }
        Ok(())
    }

    /// Launches full buckets.
    pub(super) fn launch(&mut self, buckets: Range<usize>) -> Result<()> {
        for index in buckets {
            self.launch_one(index)?;
        }
        self.advance()
    }

    fn launch_one(&mut self, index: usize) -> Result<()> {
        if let Some(carrier) = &mut self.carrier {
            carrier.launch(&self.comms[0], &self.infos[index])?;
            self.count_launch(index);
            return Ok(());
        }
        let Content::Here(mut values) = std::mem::replace(&mut self.contents[index], Content::Lost)
        else {
            return Err(Error::usage("the bucket is under way"));
        };
        let element_bytes = values.dtype().size();
        for number in &self.layout.buckets[index].parameters {
            if !self.is_used[*number] {
                let Range { start, end } = self.layout.places[*number].range;
                values.bytes_mut()[start * element_bytes..end * element_bytes].fill(0);
            } else if self.on_non_finite != NonFinite::Ignore && self.own_non_finite.is_none() {
                let range = self.layout.places[*number].range.clone();
                self.own_non_finite = (!values.are_finite(range)).then_some(*number);
            }
        }
        self.count_launch(index);
        let info = &self.infos[index];
        let flight = match self.is_sharded {
            true => Flight::scatter(&self.comms[0], values)?,
            false => {
                let algorithm = self.algorithms[index];
                Flight::launch(&self.comms[0], &mut *self.hook, info, values, algorithm)?
            }
        };
        self.contents[index] = Content::Flying(flight);
        Ok(())
    }

    fn count_launch(&mut self, index: usize) {
        let now = self.comms[0].clock();
        let statistics = &mut self.statistics[index];
        statistics.backward = now.saturating_sub(self.full_at.unwrap_or(now));
        statistics.launched_at = now;
        self.full_at = Some(now);
    }

    /// Issues the next stages of buckets whose exchanges have ended. A bucket enters a stage only
    /// after the bucket before it has.
    fn advance(&mut self) -> Result<()> {
        if self.comms.len() == 1 {
            return Ok(());
        }
        let mut stage_before = usize::MAX;
        for index in 0..self.contents.len() {
            let Content::Flying(flight) = &self.contents[index] else {
                continue;
            };
            let stage = flight.stage;
            if stage < stage_before && flight.has_ended() {
                self.proceed(index)?;
            }
            stage_before = match &self.contents[index] {
                Content::Flying(flight) => flight.stage,
                Content::Here(_) | Content::Carried | Content::Lost => usize::MAX,
            };
        }
        Ok(())
    }

    /// Waits for the current exchange of a bucket.
    fn proceed(&mut self, index: usize) -> Result<()> {
        let content = std::mem::replace(&mut self.contents[index], Content::Lost);
        self.contents[index] = match content {
            Content::Flying(flight) => {
                let info = &self.infos[index];
                match flight.proceed(&self.comms, &mut *self.hook, info)? {
                    Landing::Flying(flight) => Content::Flying(flight),
                    Landing::Landed(values, at) => {
                        self.statistics[index].ended_at = at;
                        Content::Here(values)
                    }
                }
            }
            other => other,
        };
        Ok(())
    }

    /// Launches the rest, waits for everything and commits. A rank in `join` has no data.
    fn finish(&mut self, has_data: bool) -> Result<()> {
        let start = self.comms[0].clock();
        let rest = self.readiness.rest();
        self.launch(rest)?;
        for index in 0..self.contents.len() {
            let before = self.comms[0].clock();
            while matches!(self.contents[index], Content::Flying(_)) {
                self.advance()?;
                self.proceed(index)?;
            }
            if let Some(carrier) = &mut self.carrier {
                carrier.land(&self.comms[0], &self.infos[index])?;
                self.statistics[index].ended_at = self.comms[0].clock();
            }
            let now = self.comms[0].clock();
            self.statistics[index].exposed = now.saturating_sub(before);
        }
        if let Some(active) = self.active.take() {
            active.wait()?;
        }
        if self.order_since.is_none() {
            self.agree_on_order()?;
        }
        self.agree_on_norm()?;
        self.comms[0].mark(self.commits + 1);
        self.commit(has_data)?;
        self.commits += 1;
        self.steps += 1;
        self.exposed = self.comms[0].clock().saturating_sub(start);
        self.full_at = None;
        self.phase = Phase::Averaged;
        self.is_spent = false;
        Ok(())
    }

    /// After an error: how many steps count, by the agreement of all that are left. One more than
    /// [`DataParallel::steps`] means that the step in which this rank failed counts, for every
    /// survivor had all its gradients; its averages cannot be read here any more.
    ///
    /// None after `at_most` or if rank 0 is gone: then the step is in doubt. See
    /// [`Communicator::agreed_mark`](crate::Communicator::agreed_mark).
    ///
    /// ```
    /// use ringtree::ddp::{DataParallel, Options, Parameter};
    /// use ringtree::{Dtype, sim::simulate::World};
    /// use std::time::Duration;
    ///
    /// let mut world = World::new(4);
    /// world.network.faults.deaths = vec![(2, Duration::from_millis(5))];
    /// let counts = world.run(|comm| {
    ///     let parameters = vec![Parameter::new("weight", &[100], Dtype::F32)];
    ///     let mut model = DataParallel::new(comm, parameters, Options::new())?;
    ///     while model.report(0, &[1.0f32; 100]).and_then(|()| model.wait()).is_ok() {}
    ///     Ok::<_, ringtree::Error>(model.steps_that_count(Duration::from_secs(5)))
    /// });
    /// assert!(matches!(counts[0], Ok(Some(_))), "{counts:?}");
    /// assert!(counts[1] == counts[0] && counts[3] == counts[0]);
    /// ```
    #[must_use]
    pub fn steps_that_count(&self, at_most: Duration) -> Option<u64> {
        let commits = self.comms[0].agreed_mark(at_most)?;
        match self.is_refused {
            // All ranks had their gradients, and the same reason not to use them.
            true => Some(self.steps),
            false => Some((self.steps + commits).saturating_sub(self.commits)),
        }
    }

    /// Called when this rank has all its buckets; returns when all ranks have theirs. `is_used`
    /// then holds which parameters any rank used.
    fn commit(&mut self, has_data: bool) -> Result<()> {
        let own = self.is_used.clone();
        let count = own.len();
        // For each parameter, whether a rank used it; then, whether one left it out; and whether a
        // gradient of a rank is not finite.
        let mut words = vec![0u32; 2 * count / 32 + 1];
        let mut set = |at: usize| words[at / 32] |= 1 << (at % 32);
        for (at, is_used) in own.iter().enumerate() {
            match is_used {
                true => set(at),
                false if has_data => set(count + at),
                false => {}
            }
        }
        if self.own_non_finite.is_some() {
            set(2 * count);
        }
        self.comms[0].all_reduce(&mut words, ReduceOp::Bor)?;
        let any = |at: usize| words[at / 32] >> (at % 32) & 1 == 1;
        self.is_used = (0..count).map(any).collect();
        self.found_non_finite = None;
        let verdict = self.judge(&any, &own, has_data);
        // A failure on the way says nothing about the step.
        self.is_refused = verdict.is_err() && self.comms[0].failure().is_none();
        verdict
    }

    /// Whether the step counts, by what all ranks have said in its commit.
    fn judge(&mut self, any: &dyn Fn(usize) -> bool, own: &[bool], has_data: bool) -> Result<()> {
        let count = own.len();
        if any(2 * count) {
            return self.left_out();
        }
        self.check_used()?;
        let forgotten = (0..count).find(|at| any(*at) && any(count + at));
        match forgotten.filter(|_| !self.allows_unused) {
            Some(parameter) => Err(self.forgotten(parameter, own[parameter], has_data)?),
            None => self.clip(),
        }
    }

    /// That some ranks have a gradient for `parameter` and others, which have data, have none.
    fn forgotten(&self, parameter: usize, is_used: bool, has_data: bool) -> Result<Error> {
        let comm = &self.comms[0];
        let mut all = vec![0u8; comm.world_size()];
        all[comm.rank()] = u8::from(has_data) + u8::from(is_used);
        comm.all_gather(&mut all)?;
        let [without, with] = [1, 2].map(|state| all.iter().position(|one| *one == state));
        Ok(Error::usage(format!(
            "rank {} reported no gradient for {} in step {}, and rank {} did; report it on every \
             rank that has data, or say `Options::allow_unused`, with which it counts as zero \
             where it is left out",
            without.unwrap_or_default(),
            self.parameters[parameter],
            self.steps,
            with.unwrap_or_default(),
        )))
    }

    /// Finds out, with all ranks, which gradient is not finite, and leaves the step out or fails.
    fn left_out(&mut self) -> Result<()> {
        let comm = &self.comms[0];
        let mut first = vec![u64::MAX; comm.world_size()];
        if let Some(parameter) = self.own_non_finite {
            first[comm.rank()] = parameter as u64;
        }
        comm.all_gather(&mut first)?;
        let mut found = first.iter().enumerate();
        let found = found.find(|(_, parameter)| **parameter != u64::MAX);
        self.found_non_finite = found.map(|(rank, parameter)| (rank, *parameter as usize));
        if self.on_non_finite == NonFinite::Fail
            && let Some((rank, parameter)) = self.found_non_finite
        {
            return Err(Error::usage(format!(
                "the gradient of {} on rank {rank} is infinite or not a number in step {}; a \
                 smaller learning rate or clipping may help, `NonFinite::Skip` leaves such steps \
                 out",
                self.parameters[parameter], self.steps
            )));
        }
        self.leave_out();
        Ok(())
    }

    /// No parameter has a gradient in this step.
    pub(super) fn leave_out(&mut self) {
        self.skipped += 1;
        self.is_used.fill(false);
    }

    /// Parameters that no rank used are an error, the same on all ranks, unless that is meant.
    fn check_used(&self) -> Result<()> {
        let unused = self.unused();
        let all = self.parameters.len();
        if unused.is_empty() || (self.allows_unused && unused.len() < all) {
            return Ok(());
        }
        if unused.len() == all {
            return Err(Error::usage(
                "no rank reported a gradient in this step; `wait` ends a step: call it once, after \
                 `report`",
            ));
        }
        let names: Vec<_> = unused.iter().take(UNUSED_NAMED).collect();
        let names = names.iter().map(|one| self.parameters[**one].name.as_str());
        let names: Vec<&str> = names.collect();
        let others = match unused.len() - names.len() {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        Err(Error::usage(format!(
            "no rank reported a gradient for {} of {all} parameters: {}{others}; if the model does \
             not use them in every step, say `Options::allow_unused`",
            unused.len(),
            names.join(", ")
        )))
    }
}
