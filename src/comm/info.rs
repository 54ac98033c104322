//! Describes how a communicator is set up.

use super::Communicator;
use super::tuning::TuningOrigin;
use crate::engine::group::Group;
use crate::plan::Algorithm;
use std::fmt;

/// The setup of a communicator. Returned by [`Communicator::info`], and printed as one line.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Info {
    /// Rank of this process.
    pub rank: usize,
    /// Number of ranks.
    pub world_size: usize,
    /// Number of hosts on which the ranks run.
    pub hosts: usize,
    /// The name set by [`Communicator::with_name`].
    pub name: Option<String>,
    /// `"shm"`, `"tcp"`, `"shm+tcp"` or, for simulated ranks, `"sim"`.
    pub transport: &'static str,
    /// Path that buffers on devices take between ranks: `"mapped"` or `"staged"`. `None` if no
    /// device is attached.
    pub device_path: Option<&'static str>,
    /// The reason why the device path is used.
    pub device_path_reason: String,
    /// The source of the table that is used to choose algorithms.
    pub tuning_origin: TuningOrigin,
    /// The algorithm that a setting or [`Communicator::use_algorithm`] requires.
    pub algorithm: Option<Algorithm>,
    /// `true` if sums are [reproducible](super::builder::Builder::reproducible).
    pub is_reproducible: bool,
}

impl fmt::Display for Info {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "rank {} of {}", self.rank, self.world_size)?;
        if let Some(name) = &self.name {
            write!(formatter, " in {name:?}")?;
        }
        let hosts = match self.hosts {
            1 => "1 host".to_owned(),
            hosts => format!("{hosts} hosts"),
        };
        write!(formatter, ", {hosts}, over {}", self.transport)?;
        if self.device_path.is_some() {
            write!(formatter, ", device buffers {}", device_path_line(self))?;
        }
        match self.algorithm {
            Some(algorithm) => write!(formatter, "; algorithm {algorithm}, as requested")?,
            None => write!(formatter, "; tuning table {}", self.tuning_origin)?,
        }
        match self.is_reproducible {
            true => formatter.write_str("; reproducible sums"),
            false => Ok(()),
        }
    }
}

/// Returns how buffers on devices travel between ranks, and why, on one line.
#[must_use]
pub fn device_path_line(info: &Info) -> String {
    let (over, reason) = (info.transport, &info.device_path_reason);
    match info.device_path {
        Some("staged") => format!("staged: through pinned host memory, over {over}: {reason}"),
        Some(path) => format!("{path}: {reason}"),
        None => String::new(),
    }
}

impl Communicator {
    /// Returns how this communicator is set up. This method does not communicate.
    ///
    /// ```
    /// let infos = ringtree::simulate(2, |comm| comm.info());
    /// assert_eq!(infos[1].transport, "sim");
    /// let line = infos[1].to_string();
    /// assert_eq!(line, "rank 1 of 2, 2 hosts, over sim; tuning table built-in");
    /// ```
    #[must_use]
    pub fn info(&self) -> Info {
        let parts = &self.core.parts;
        let title = |group: &mut Group| group.title().map(str::to_owned);
        let runtime = parts.runtime.get().ok();
        let name = runtime.and_then(|runtime| runtime.with_group(parts.group, title).flatten());
        #[cfg(feature = "cuda")]
        let device_path = self.device_path();
        #[cfg(not(feature = "cuda"))]
        let device_path: Option<(&str, String)> = None;
        Info {
            rank: self.rank(),
            world_size: self.world_size(),
            hosts: parts.topology().host_count(),
            name,
            transport: parts.transport_name,
            device_path: device_path.as_ref().map(|path| path.0),
            device_path_reason: device_path.map_or_else(String::new, |path| path.1),
            tuning_origin: parts.tuning_origin,
            algorithm: self.algorithm(),
            is_reproducible: parts.is_reproducible,
        }
    }
}
