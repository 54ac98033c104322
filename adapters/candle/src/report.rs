//! Implements the identity operation whose backward function reports the gradient to the current
//! pass.

use crate::buckets::Buckets;
use crate::elements::{for_element, with_slice};
use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, Layout, MetalStorage, Result, Shape, Tensor,
};
use ringtree::ddp::DataParallel;
use ringtree::internal::ddp::place;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A backward pass in progress.
pub(crate) struct Pass {
    pub(crate) parallel: DataParallel,
    /// The buckets of the gradients on the device, or `None` if they are in host memory.
    buckets: Option<Buckets>,
    /// Each parameter whose gradient was reported, with the time of the report, in order.
    pub(crate) reports: Vec<(usize, Instant)>,
    /// The last error of a report. It is more precise than the error that candle derives from it.
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
            Some(buckets) => match place(parallel, parameter) {
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

/// The channel through which reports reach the current pass.
#[derive(Clone, Default)]
pub(crate) struct Channel(Arc<Mutex<Option<Pass>>>);

impl Channel {
    pub(crate) fn open(&self, pass: Pass) {
        *self.lock() = Some(pass);
    }

    /// Ends the current pass and returns it, or `None` if no pass is open.
    pub(crate) fn close(&self) -> Option<Pass> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Pass>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An operation that forwards a parameter unchanged and reports its gradient in the backward pass.
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

    /// Reports `gradient`. Returns `None` because the entry of the variable in the gradient store
    /// will be the average.
    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        match self.channel.lock().as_mut() {
            Some(pass) => pass.report(self.parameter, gradient).map(|()| None),
            None => candle_core::bail!(
                "cannot run backward without the replica, because the gradients would not be \
                 averaged; pass the loss to `Replica::backward`"
            ),
        }
    }
}
