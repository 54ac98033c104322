//! What every rank did when: one timeline of all ranks, in Chrome's trace format, that
//! <https://ui.perfetto.dev> and `chrome://tracing` open.

pub(crate) mod clock;
mod messages;
mod timeline;

pub use timeline::{RankSpans, Span, Timeline};

use super::parallel::DataParallel;
use crate::comm::Communicator;
use crate::comm::values::{broadcast_bytes, gather_bytes};
use crate::error::{Error, Result};
use crate::limits::TRACE_SPANS_MAX;
use crate::whole_file;
use clock::Reading;
use messages::Predicted;
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The track of [`Trace::buckets`].
const COMMUNICATION: &str = "communication";

/// A recorder of spans of time, one on each rank.
///
/// A span has a track (`step`, `forward`, `backward`, `communication`, `optimizer` come first, in
/// this order; others by any name, in the order of their names) and a name. A trace is on on all
/// ranks or off on all; one that is off does nothing. [`Trace::messages`] records single messages.
///
/// ```
/// use ringtree::ddp::{DataParallel, Options, Parameter, Trace};
/// use ringtree::{Dtype, sim::simulate::sleep};
/// use std::time::Duration;
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("step.json");
/// let ends = ringtree::simulate(2, |comm| {
///     let trace = Trace::new(comm)?; // or Trace::off()
///     let parameters = vec![Parameter::new("weight", &[1000], Dtype::F32)];
///     let mut model = DataParallel::new(comm, parameters, Options::new())?;
///     trace.measure("forward", "forward", || sleep(comm, Duration::from_millis(10)));
///     trace.measure("backward", "layer 0", || sleep(comm, Duration::from_millis(20)));
///     model.report(0, &[1.0f32; 1000])?;
///     model.wait()?;
///     trace.buckets(&model);
///     trace.write(&path)?; // rank 0 writes the spans of all
///     Ok::<_, ringtree::Error>(())
/// });
/// assert_eq!(ends, [Ok(()), Ok(())]);
/// assert!(std::fs::read_to_string(&path).unwrap().contains("\"rank 1\""));
/// ```
#[derive(Debug)]
pub struct Trace(Option<Active>);

/// A trace that is on.
#[derive(Debug)]
struct Active {
    comm: Communicator,
    /// On rank 0: every rank's clock when the trace began.
    begin: Vec<Reading>,
    recording: Mutex<Recording>,
    /// On rank 0: the calls whose messages were recorded, and what it takes to predict them.
    predicted: Mutex<Vec<Predicted>>,
}

/// What a rank has recorded, on its own clock.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Recording {
    spans: Vec<Span>,
    dropped: u64,
}

impl Trace {
    /// A trace of all ranks of `comm`, with a communicator of its own. Rank 0 asks every rank for
    /// its clock; the fastest answer counts, and half of its round trip is the error. All ranks
    /// call it, in the order of their calls on `comm`.
    ///
    /// # Errors
    /// Any of [`Error`].
    pub fn new(comm: &Communicator) -> Result<Self> {
        let comm = comm.duplicate()?.named("trace");
        let begin = clock::read_all(&comm)?;
        Ok(Self(Some(Active {
            comm,
            begin,
            recording: Mutex::default(),
            predicted: Mutex::default(),
        })))
    }

    /// A trace that records and writes nothing.
    #[must_use]
    pub fn off() -> Self {
        Self(None)
    }

    /// Whether it records anything.
    ///
    /// ```
    /// assert!(!ringtree::ddp::Trace::off().is_on());
    /// ```
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The time on this rank's clock, [`Communicator::clock`], for the ends of spans; 0 when off.
    #[must_use]
    pub fn clock(&self) -> Duration {
        let active = self.0.as_ref();
        active.map_or(Duration::ZERO, |active| active.comm.clock())
    }

    /// Records that `name` went on from `start` to `end` on this rank's clock.
    pub fn span(&self, track: &str, name: impl Display, start: Duration, end: Duration) {
        self.span_with(track, name, start..end, &[]);
    }

    /// As [`Trace::span`], with numbers to be shown for it.
    pub fn span_with(
        &self,
        track: &str,
        name: impl Display,
        time: std::ops::Range<Duration>,
        numbers: &[(&str, u64)],
    ) {
        let Some(active) = &self.0 else {
            return;
        };
        // The name is the program's code, which may record a span itself.
        let span = Span::new(track, name, time, numbers);
        let mut recording = active.recording();
        if recording.spans.len() >= TRACE_SPANS_MAX {
            recording.dropped += 1;
            return;
        }
        recording.spans.push(span);
    }

    /// Runs `body` and records how long it took.
    ///
    /// ```
    /// use ringtree::ddp::Trace;
    /// let trace = Trace::off(); // costs nothing
    /// assert_eq!(trace.measure("backward", format_args!("layer {}", 3), || 42), 42);
    /// ```
    pub fn measure<R>(&self, track: &str, name: impl Display, body: impl FnOnce() -> R) -> R {
        let start = self.clock();
        let result = body();
        self.span(track, name, start, self.clock());
        result
    }

    /// Records the communication of the last step's buckets, each with its bytes, its parameters
    /// and the microseconds of it that were exposed. Call it between
    /// [`DataParallel::wait`] and the next report.
    pub fn buckets(&self, model: &DataParallel) {
        if self.0.is_none() {
            return;
        }
        for (index, bucket) in model.statistics().iter().enumerate() {
            let exposed_us = u64::try_from(bucket.exposed.as_micros()).unwrap_or(u64::MAX);
            let numbers = [
                ("bytes", bucket.bytes as u64),
                ("parameters", bucket.parameters as u64),
                ("exposed_us", exposed_us),
            ];
            let time = bucket.launched_at..bucket.ended_at;
            self.span_with(
                COMMUNICATION,
                format_args!("bucket {index}"),
                time,
                &numbers,
            );
        }
    }

    /// How many spans this rank has dropped, beyond [`TRACE_SPANS_MAX`].
    #[must_use]
    pub fn dropped(&self) -> u64 {
        let active = self.0.as_ref();
        active.map_or(0, |active| active.recording().dropped)
    }

    /// Rank 0 gets what all ranks have recorded so far, on its clock; the others get nothing, and
    /// so do all ranks when the trace is off. All ranks call it.
    ///
    /// # Errors
    /// Any of [`Error`], on every rank.
    pub fn collect(&self) -> Result<Option<Timeline>> {
        self.hand_in(|_| Ok(()))
    }

    /// As [`Trace::collect`]; rank 0 also writes the file `path`, which appears whole or not at
    /// all. The path of other ranks does not matter.
    ///
    /// # Errors
    /// Any of [`Error`], on every rank; [`Error::system`] if rank 0 cannot write.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<Option<Timeline>> {
        let path = path.as_ref();
        self.hand_in(|timeline| {
            let written = whole_file::replace(path, &[timeline.json().as_bytes()]);
            written.map_err(|error| {
                format!(
                    "writing {}: {error}; does its directory exist, and may this user write there?",
                    path.display()
                )
            })
        })
    }

    /// Brings the spans to rank 0, does `what` there, and sends its error, if any, to all ranks.
    fn hand_in(
        &self,
        what: impl FnOnce(&Timeline) -> std::result::Result<(), String>,
    ) -> Result<Option<Timeline>> {
        let Some(active) = &self.0 else {
            return Ok(None);
        };
        let outcome = match active.gather()? {
            Some(Ok(timeline)) => what(&timeline).map(|()| Some(timeline)),
            Some(Err(complaint)) => Err(complaint),
            None => Ok(None),
        };
        let complaint = outcome.as_ref().err().cloned().unwrap_or_default();
        let complaint = broadcast_bytes(&active.comm, complaint.into_bytes(), 0)?;
        if complaint.is_empty() {
            return Ok(outcome.unwrap_or_default());
        }
        Err(Error::system(format!(
            "the trace on rank 0: {}",
            String::from_utf8_lossy(&complaint)
        )))
    }
}

impl Active {
    fn recording(&self) -> std::sync::MutexGuard<'_, Recording> {
        lock(&self.recording)
    }

    /// On rank 0 the recordings of all ranks, on its clock, or why they cannot be read.
    fn gather(&self) -> Result<Option<std::result::Result<Timeline, String>>> {
        let comm = &self.comm;
        let end = clock::read_all(comm)?;
        let own = serde_json::to_vec(&*self.recording())
            .map_err(|error| Error::system(format!("encoding the trace: {error}")))
            .map_err(|error| comm.first_cause(error))?;
        let Some(parts) = gather_bytes(comm, own, 0)? else {
            return Ok(None);
        };
        let parts = parts.iter().enumerate();
        let recordings = parts.map(|(rank, part)| decode(rank, part)).collect();
        let join = |recordings| {
            let mut timeline = Timeline::new(recordings, &self.begin, &end);
            messages::predict(&lock(&self.predicted), &mut timeline);
            timeline
        };
        Ok(Some(std::result::Result::map(recordings, join)))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn decode(rank: usize, bytes: &[u8]) -> std::result::Result<Recording, String> {
    serde_json::from_slice(bytes).map_err(|error| {
        format!("what rank {rank} sent is no recording ({error}); do all ranks run one version?")
    })
}
