//! Describes a communicator to Python, and reports how often it was used.

use pyo3::prelude::*;

/// How a communicator is set up. `str(info)` is one line.
#[pyclass(frozen, module = "ringtree")]
pub(crate) struct Info {
    /// The rank of this process.
    #[pyo3(get)]
    rank: usize,
    /// The number of ranks.
    #[pyo3(get)]
    world_size: usize,
    /// The number of hosts on which the ranks run.
    #[pyo3(get)]
    hosts: usize,
    /// The name set by `with_name`, or None.
    #[pyo3(get)]
    name: Option<String>,
    /// The name of the transport, which is shm, tcp or shm+tcp.
    #[pyo3(get)]
    transport: &'static str,
    /// The source of the table from which algorithms are chosen.
    #[pyo3(get)]
    tuning_origin: String,
    /// The algorithm that a setting requires, or None.
    #[pyo3(get)]
    algorithm: Option<String>,
    /// True if sums have the same bits for every algorithm and network.
    #[pyo3(get)]
    is_reproducible: bool,
    /// The description of the communicator as one line.
    line: String,
}

impl Info {
    pub(crate) fn of(info: &ringtree::comm::Info) -> Self {
        Self {
            rank: info.rank,
            world_size: info.world_size,
            hosts: info.hosts,
            name: info.name.clone(),
            transport: info.transport,
            tuning_origin: info.tuning_origin.to_string(),
            algorithm: info.algorithm.map(|algorithm| algorithm.to_string()),
            is_reproducible: info.is_reproducible,
            line: info.to_string(),
        }
    }
}

#[pymethods]
impl Info {
    fn __str__(&self) -> &str {
        &self.line
    }

    fn __repr__(&self) -> String {
        format!("Info({})", self.line)
    }
}

/// The count of one kind of call over one transport.
#[pyclass(frozen, get_all, module = "ringtree")]
pub(crate) struct CallStats {
    /// The name of the collective, "send" or "recv".
    call: &'static str,
    /// The transport of the call's messages: shm, tcp, shm+tcp or none.
    transport: &'static str,
    /// The number of calls that were made.
    calls: u64,
    /// The number of bytes in the buffers of these calls. If a call has an input and an output, the
    /// larger one counts.
    bytes: u64,
    /// The time, in seconds, for which threads waited for these calls.
    waited: f64,
}

impl CallStats {
    pub(crate) fn of(stats: ringtree::comm::CallStats) -> Self {
        Self {
            call: stats.call,
            transport: stats.transport,
            calls: stats.calls,
            bytes: stats.bytes,
            waited: stats.waited.as_secs_f64(),
        }
    }
}

#[pymethods]
impl CallStats {
    fn __repr__(&self) -> String {
        let Self {
            call,
            transport,
            calls,
            bytes,
            waited,
        } = self;
        format!(
            "CallStats(call={call:?}, transport={transport:?}, calls={calls}, bytes={bytes}, \
             waited={waited:.6})"
        )
    }
}
