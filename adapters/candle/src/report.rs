//! The identity operation whose backward reports the gradient, and where the reports go.

use crate::buckets::Buckets;
use crate::elements::{for_element, with_slice};
use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, Layout, MetalStorage, Result, Shape, Tensor,
};
use ringtree::ddp::DataParallel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A backward pass under way.
pub(crate) struct Pass {
    pub(crate) parallel: DataParallel,
    /// Where the gradients stay, if that is not host memory.
    buckets: Option<Buckets>,
    /// The parameters whose gradients came, in their order, and when.
    pub(crate) reports: Vec<(usize, Instant)>,
    /// What went wrong with them, which is better than what candle makes of it.
    pub(crate) failure: Option<ringtree::Error>,
}

impl Pass {
    pub(crate) fn new(parallel: DataParallel, buckets: Option<Buckets>) -> Self {
        Self {
            parallel,
            buckets,
            reports: Vec::new(),
            failure: None,
        }
    }

    fn report(&mut self, parameter: usize, gradient: &Tensor) -> Result<()> {
        self.reports.push((parameter, Instant::now()));
        let parallel = &mut self.parallel;
        let reported = match &self.buckets {
            None => for_element!(gradient.dtype(), T => {
                with_slice::<T, _>(gradient, |elements| parallel.report(parameter, elements))
            })?,
            Some(buckets) => match parallel.place(parameter) {
                Ok(place) => {
                    buckets.put(&place, gradient)?;
                    parallel.ready(parameter)
                }
                Err(error) => Err(error),
            },
        };
        reported.map_err(|error| {
            self.failure = Some(error.clone());
            candle_core::Error::wrap(error)
        })
    }
}

/// The way of reports to the pass that is under way, if one is.
#[derive(Clone, Default)]
pub(crate) struct Channel(Arc<Mutex<Option<Pass>>>);

impl Channel {
    pub(crate) fn open(&self, pass: Pass) {
        *self.lock() = Some(pass);
    }

    /// Ends the pass and gives it back.
    pub(crate) fn close(&self) -> Option<Pass> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Pass>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forwards a parameter as it is; backward reports its gradient.
pub(crate) struct Report {
    pub(crate) parameter: usize,
    pub(crate) channel: Channel,
}

impl CustomOp1 for Report {
    fn name(&self) -> &'static str {
        "report-gradient"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((storage.try_clone(layout)?, layout.shape().clone()))
    }

    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        Ok((storage.try_clone(layout)?, layout.shape().clone()))
    }

    fn metal_fwd(&self, storage: &MetalStorage, layout: &Layout) -> Result<(MetalStorage, Shape)> {
        Ok((storage.try_clone(layout)?, layout.shape().clone()))
    }

    /// Returns nothing for the variable: its entry in the gradient store will be the average.
    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        match self.channel.lock().as_mut() {
            Some(pass) => pass.report(self.parameter, gradient).map(|()| None),
            None => candle_core::bail!(
                "backward was called on the loss of a model that is trained on several ranks; \
                 give the loss to `Replica::backward` instead"
            ),
        }
    }
}
