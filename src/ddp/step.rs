//! Ends a step: launches the remaining buckets, waits for all buckets, and agrees with the other
//! ranks that the step is committed.
//!
//! A step ends with the *commit*, a small all-reduce that a rank enters once it has the averages of
//! all buckets. The result shows which parameters were used by some ranks but not by others. No
//! rank leaves the commit before every rank has entered it. Therefore, a rank that updates its
//! weights knows that every rank has all averages of this step.

use super::agree::{gather_number, listed};
use super::flight::{Content, Flight};
use super::options::NonFinite;
use super::parallel::{DataParallel, Phase};
use crate::error::{Error, Result};
use crate::op::ReduceOp;
use std::ops::Range;
use std::time::Duration;

/// Maximum number of unused parameters that an error names.
const UNUSED_NAMED: usize = 8;

impl DataParallel {
    /// Ends the step: waits until every rank has all averages and all ranks have agreed that the
    /// step is valid.
    ///
    /// Before it waits, this method launches the remaining buckets, with zeros in place of missing
    /// gradients. Call this method once per step on every rank. Then update the weights, either
    /// with an [`Optimizer`](super::Optimizer) or by using the averages from
    /// [`DataParallel::gradient`].
    ///
    /// # Errors
    /// In addition to the [errors that all calls share](crate::Communicator#errors), returns
    /// [`ErrorKind::Usage`](crate::ErrorKind::Usage) on all ranks in these cases:
    ///
    /// - No rank reported any gradient in this step.
    /// - A rank that has data did not report a gradient for a parameter, and
    ///   [`Options::allow_unused`](super::Options::allow_unused) is not set.
    /// - A gradient is not finite or, with [`Options::clip_norm`](super::Options::clip_norm), the
    ///   norm of the averages is not finite, and [`NonFinite::Fail`] is set.
    ///
    /// After an error, no averages can be read, so no rank updates a parameter.
    pub fn wait(&mut self) -> Result<()> {
        self.check_alive()?;
        let result = self.begin_step();
        let result = result.and_then(|()| self.announce());
        let result = result.and_then(|()| self.finish(true));
        self.keep_failure(result)
    }

    /// Takes part in the other ranks' steps, contributing zeros as gradients, until no rank has any
    /// data left.
    ///
    /// Calls `on_step` after each step. This closure must update the weights in the same way as the
    /// other ranks do. Averages are sums divided by the total number of ranks, including the ranks
    /// without data.
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
    /// In addition to the [errors that all calls share](crate::Communicator#errors), returns
    /// [`ErrorKind::Usage`](crate::ErrorKind::Usage) if
    /// [`Options::uneven_data`](super::Options::uneven_data) is not set or if this method is called
    /// in the middle of a step. Also returns any error that `on_step` returns.
    pub fn join(&mut self, mut on_step: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.check_alive()?;
        if !self.options.has_uneven_data || self.phase != Phase::Averaged {
            return Err(Error::usage(
                "`join` must be called between two steps and requires the option `uneven_data`",
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

    /// With [`Options::uneven_data`](super::Options::uneven_data), announces once per step that
    /// this rank still has data.
    pub(super) fn announce(&mut self) -> Result<()> {
        if self.options.has_uneven_data && self.active.is_none() {
            let active = self.comms[0].start_all_reduce(vec![1u32], ReduceOp::Sum)?;
            self.active = Some(active);
        }
        Ok(())
    }

    /// Launches `buckets`, and then issues the next stage of each bucket whose current exchange has
    /// completed.
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
            return Err(Error::usage("the bucket is already in flight"));
        };
        let element_bytes = values.dtype().size();
        let is_checked = self.options.non_finite != NonFinite::Ignore;
        for number in &self.layout.buckets[index].parameters {
            if !self.is_used[*number] {
                let Range { start, end } = self.layout.places[*number].range;
                values.bytes_mut()[start * element_bytes..end * element_bytes].fill(0);
            } else if is_checked && self.own_non_finite.is_none() {
                let range = self.layout.places[*number].range.clone();
                self.own_non_finite = (!values.are_finite(range)).then_some(*number);
            }
        }
        self.count_launch(index);
        let (info, algorithm) = (&self.infos[index], self.algorithms[index]);
        let flight = Flight::launch(&self.comms[0], &mut self.options, info, values, algorithm)?;
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

    /// Issues the next stage of each bucket whose current exchange has completed. A bucket enters a
    /// stage only after the previous bucket has entered it.
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
            if stage < stage_before && flight.is_finished() {
                self.proceed(index)?;
            }
            stage_before = match &self.contents[index] {
                Content::Flying(flight) => flight.stage,
                Content::Here(_) | Content::Carried | Content::Lost => usize::MAX,
            };
        }
        Ok(())
    }

    /// Waits for a bucket's current exchange, and issues the bucket's next stage if there is one.
    fn proceed(&mut self, index: usize) -> Result<()> {
        let content = std::mem::replace(&mut self.contents[index], Content::Lost);
        self.contents[index] = match content {
            Content::Flying(flight) => {
                let (hook, info) = (&mut *self.options.hook, &self.infos[index]);
                let ended_at = &mut self.statistics[index].ended_at;
                flight.proceed(&self.comms, hook, info, ended_at)?
            }
            other => other,
        };
        Ok(())
    }

    /// Launches the remaining buckets, waits for all buckets, and commits the step. `has_data` is
    /// `false` if called by [`DataParallel::join`].
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

    /// Returns the number of committed steps after an error, as agreed on by all surviving ranks.
    ///
    /// If this number is one more than [`DataParallel::steps`], the step in which this rank failed
    /// is committed because every surviving rank had all gradients of that step. However, this rank
    /// can no longer read the averages.
    ///
    /// Returns `None` if the ranks do not agree within `at_most`, or if a rank that may already
    /// have announced a decision (rank 0, unless it has left) is lost. In that case, it is unknown
    /// whether the step is committed. See `agreed_mark`.
    ///
    /// ```
    /// use ringtree::ddp::{DataParallel, Options, Parameter};
    /// use ringtree::{Dtype, sim::World};
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
            // All ranks completed the commit but rejected the step, so it does not count.
            true => Some(self.steps),
            false => Some((self.steps + commits).saturating_sub(self.commits)),
        }
    }

    /// Waits until every rank has the averages of all buckets, and determines whether the step is
    /// valid. Call this method once this rank has these averages. Afterward, `is_used` marks the
    /// parameters for which any rank reported a gradient.
    fn commit(&mut self, has_data: bool) -> Result<()> {
        let own = self.is_used.clone();
        let count = own.len();
        // The first `count` bits mark the parameters for which a rank reported a gradient. The next
        // `count` bits mark the parameters for which a rank with data reported no gradient. The
        // last bit is set if a rank reported a non-finite gradient.
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
        let verdict = self.validate(&any, &own, has_data);
        // If the communicator has failed, the ranks did not jointly reject the step.
        self.is_refused = verdict.is_err() && self.comms[0].error().is_none();
        verdict
    }

    /// Determines from the commit's result whether the step is valid. Skips the step or clips the
    /// gradients, as the options require.
    fn validate(
        &mut self,
        any: &dyn Fn(usize) -> bool,
        own: &[bool],
        has_data: bool,
    ) -> Result<()> {
        let count = own.len();
        if any(2 * count) {
            return self.handle_non_finite();
        }
        self.check_used()?;
        let missing = (0..count).find(|at| any(*at) && any(count + at));
        match missing.filter(|_| !self.options.allows_unused) {
            Some(parameter) => {
                Err(self.missing_gradient_error(parameter, own[parameter], has_data)?)
            }
            None => self.clip(),
        }
    }

    /// Returns the error for a `parameter` whose gradient was reported by some ranks but not by
    /// others that have data. Uses an all-gather to determine which ranks to name.
    fn missing_gradient_error(
        &self,
        parameter: usize,
        is_used: bool,
        has_data: bool,
    ) -> Result<Error> {
        let all = gather_number(&self.comms[0], u8::from(has_data) + u8::from(is_used))?;
        let [without, with] = [1, 2].map(|state| all.iter().position(|one| *one == state));
        Ok(Error::usage(format!(
            "rank {} reported no gradient for {} in step {}, but rank {} did; report it on every \
             rank that has data, or set `Options::allow_unused` to count missing gradients as zero",
            without.unwrap_or_default(),
            self.parameters[parameter],
            self.steps,
            with.unwrap_or_default(),
        )))
    }

    /// Determines, together with all other ranks, which gradient is not finite. Then skips the step
    /// or returns an error.
    fn handle_non_finite(&mut self) -> Result<()> {
        let own = self.own_non_finite;
        let own = own.map_or(u64::MAX, |parameter| parameter as u64);
        let first = gather_number(&self.comms[0], own)?;
        let rank = first.iter().position(|parameter| *parameter != u64::MAX);
        self.found_non_finite = rank.map(|rank| (rank, first[rank] as usize));
        if self.options.non_finite == NonFinite::Fail
            && let Some((rank, parameter)) = self.found_non_finite
        {
            return Err(Error::usage(format!(
                "the gradient of {} on rank {rank} is infinite or NaN in step {}; reduce the \
                 learning rate, clip gradients, or use `NonFinite::Skip` to skip such steps",
                self.parameters[parameter], self.steps
            )));
        }
        self.skip_step();
        Ok(())
    }

    /// Skips the step, so that no parameter has a gradient in it.
    pub(super) fn skip_step(&mut self) {
        self.skipped += 1;
        self.is_used.fill(false);
    }

    /// Returns an error, which is the same on all ranks, if no rank reported any gradient, or if
    /// unused parameters are not allowed and no rank reported a gradient for some parameter.
    fn check_used(&self) -> Result<()> {
        let unused = self.unused();
        let all = self.parameters.len();
        if unused.is_empty() || (self.options.allows_unused && unused.len() < all) {
            return Ok(());
        }
        if unused.len() == all {
            return Err(Error::usage(
                "no rank reported a gradient in this step; call `wait` once per step, after \
                 `report`",
            ));
        }
        let names: Vec<_> = unused
            .iter()
            .map(|one| &self.parameters[*one].name)
            .collect();
        Err(Error::usage(format!(
            "no rank reported a gradient for {} of {all} parameters: {}; if the model does not use \
             them in every step, set `Options::allow_unused`",
            unused.len(),
            listed(&names, UNUSED_NAMED)
        )))
    }
}
