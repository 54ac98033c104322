//! Binds ranks to CPUs.

use crate::error::{Error, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// While this value exists, processes that this thread starts run only on certain CPUs.
pub(super) struct Binding(Option<CpuSet>);

impl Binding {
    /// Binds this thread, and the processes that it starts, to `cpus`. Does nothing if `cpus` is
    /// empty.
    ///
    /// # Errors
    /// Returns `ErrorKind::Usage` if this process may not use any of these CPUs.
    pub(super) fn new(cpus: &[usize]) -> Result<Self> {
        if cpus.is_empty() {
            return Ok(Self(None));
        }
        let before = sched_getaffinity(None);
        let before = before.map_err(|error| Error::io("cannot read the CPUs", &error.into()))?;
        let mut set = CpuSet::new();
        for cpu in cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU) {
            set.set(*cpu);
        }
        sched_setaffinity(None, &set).map_err(|error| {
            Error::usage(format!("cannot bind a rank to the CPUs {cpus:?}: {error}"))
        })?;
        Ok(Self(Some(before)))
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = sched_setaffinity(None, before);
        }
    }
}
