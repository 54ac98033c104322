//! Records what every rank did and when, and writes a single timeline of all ranks in Chrome's
//! trace format. <https://ui.perfetto.dev> and `chrome://tracing` can open this format.

pub(crate) mod clock;
mod messages;
mod timeline;

pub use timeline::{RankSpans, Span, Timeline};

use super::parallel::DataParallel;
use crate::comm::Communicator;
use crate::comm::values::{broadcast_bytes, gather_bytes};
use crate::error::{Error, Result};
use crate::limits::TRACE_SPANS_MAX;
use crate::lock::lock;
use crate::whole_file;
use clock::Reading;
use messages::Predicted;
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// Track on which [`Trace::buckets`] records spans.
const COMMUNICATION: &str = "communication";

/// A recorder of time spans on all ranks.
///
/// Each span has a track and a name. The tracks `step`, `forward`, `backward`, `communication` and
/// `optimizer` are shown first, in this order. Other tracks follow, sorted by name. A trace must be
/// either on for all ranks or off for all ranks. A trace that is off does nothing.
/// [`Trace::messages`] records individual messages.
///
/// ```
/// use ringtree::ddp::{DataParallel, Options, Parameter, Trace};
/// use ringtree::{Dtype, sim::sleep};
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
    /// On rank 0, a reading of every rank's clock, taken when the trace began.
    begin: Vec<Reading>,
    recording: Mutex<Recording>,
    /// On rank 0, the calls whose messages were recorded, with the data needed to predict them.
    predicted: Mutex<Vec<Predicted>>,
}

/// The spans that a rank has recorded, with times on its own clock.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Recording {
    spans: Vec<Span>,
    dropped: u64,
}

/// Returns `true` if the trace records spans.
#[must_use]
pub fn is_on(trace: &Trace) -> bool {
    trace.0.is_some()
}

/// Returns the number of spans that this rank dropped because it had already recorded
/// [`TRACE_SPANS_MAX`] spans.
#[must_use]
pub fn dropped(trace: &Trace) -> u64 {
    let active = trace.0.as_ref();
    active.map_or(0, |active| active.recording().dropped)
}

impl Trace {
    /// Creates a trace of all ranks of `comm`. The trace uses a separate communicator. Rank 0 reads
    /// the clock of every rank several times and uses the answer that arrives fastest. The maximum
    /// error is half the round-trip time of this answer. All ranks must call this function in the
    /// same order relative to their other calls on `comm`.
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors).
    pub fn new(comm: &Communicator) -> Result<Self> {
        let comm = comm.duplicate()?.with_name("trace");
        let begin = clock::read_all(&comm)?;
        Ok(Self(Some(Active {
            comm,
            begin,
            recording: Mutex::default(),
            predicted: Mutex::default(),
        })))
    }

    /// Creates a trace that is off and does not record or write anything.
    #[must_use]
    pub fn off() -> Self {
        Self(None)
    }

    /// Returns the current time on this rank's clock (see [`Communicator::clock`]), for use as the
    /// start or end of a span. Returns 0 if the trace is off.
    #[must_use]
    pub fn clock(&self) -> Duration {
        let active = self.0.as_ref();
        active.map_or(Duration::ZERO, |active| active.comm.clock())
    }

    /// Records a span called `name` from `start` to `end`, which are times on this rank's clock.
    pub fn span(&self, track: &str, name: impl Display, start: Duration, end: Duration) {
        self.span_with(track, name, start..end, &[]);
    }

    /// Like [`Trace::span`], but also records named numbers that viewers show alongside the span.
    pub(crate) fn span_with(
        &self,
        track: &str,
        name: impl Display,
        time: std::ops::Range<Duration>,
        numbers: &[(&str, u64)],
    ) {
        let Some(active) = &self.0 else {
            return;
        };
        // Create the span before taking the lock: formatting the name runs the program's code,
        // which may itself record a span.
        let span = Span::new(track, name, time, numbers);
        let mut recording = active.recording();
        if recording.spans.len() >= TRACE_SPANS_MAX {
            recording.dropped += 1;
            return;
        }
        recording.spans.push(span);
    }

    /// Runs `body` and records its duration as a span.
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

    /// Records the communication of the last step's buckets. Each span shows the bucket's size in
    /// bytes, its number of parameters, and its exposed communication time in microseconds. Call
    /// this method between [`DataParallel::wait`] and the next report.
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
            let name = format_args!("bucket {index}");
            let time = bucket.launched_at..bucket.ended_at;
            self.span_with(COMMUNICATION, name, time, &numbers);
        }
    }

    /// Gathers on rank 0 the spans that all ranks have recorded so far, and converts their times to
    /// rank 0's clock. Returns `None` on the other ranks, and on all ranks if the trace is off. All
    /// ranks must call this method.
    ///
    /// # Errors
    /// In addition to the [errors that all calls share](Communicator#errors), returns an [`Error`]
    /// of kind [`ErrorKind::System`](crate::ErrorKind::System) on every rank if a recording cannot
    /// be decoded.
    pub fn collect(&self) -> Result<Option<Timeline>> {
        self.gather_and_run(|_| Ok(()))
    }

    /// Like [`Trace::collect`], but rank 0 also writes the timeline to the file `path`. The file is
    /// either written completely or not at all. The paths that other ranks pass are ignored.
    ///
    /// # Errors
    /// Returns the same errors as [`Trace::collect`], and an [`Error`] of kind
    /// [`ErrorKind::System`](crate::ErrorKind::System) on every rank if rank 0 cannot write the
    /// file.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<Option<Timeline>> {
        let path = path.as_ref();
        self.gather_and_run(|timeline| {
            let written = whole_file::replace(path, &[timeline.json().as_bytes()]);
            written.map_err(|error| {
                format!(
                    "cannot write {}: {error}; check that its directory exists and is writable",
                    path.display()
                )
            })
        })
    }

    /// Gathers the spans on rank 0, runs `what` there, and returns any error from it on all ranks.
    fn gather_and_run(
        &self,
        what: impl FnOnce(&Timeline) -> Result<(), String>,
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
            "the trace failed on rank 0: {}",
            String::from_utf8_lossy(&complaint)
        )))
    }
}

impl Active {
    fn recording(&self) -> MutexGuard<'_, Recording> {
        lock(&self.recording)
    }

    /// Gathers all recordings on rank 0, with times on rank 0's clock. The inner error explains why
    /// a recording cannot be decoded.
    fn gather(&self) -> Result<Option<Result<Timeline, String>>> {
        let comm = &self.comm;
        let end = clock::read_all(comm)?;
        let own = serde_json::to_vec(&*self.recording())
            .map_err(|error| Error::system(format!("cannot encode the trace: {error}")))
            .map_err(|error| comm.first_cause(error))?;
        let Some(parts) = gather_bytes(comm, own, 0)? else {
            return Ok(None);
        };
        let parts = parts.iter().enumerate();
        let recordings: Result<Vec<_>, _> = parts.map(|(rank, part)| decode(rank, part)).collect();
        Ok(Some(recordings.map(|recordings| {
            let mut timeline = Timeline::new(recordings, &self.begin, &end);
            messages::predict(&lock(&self.predicted), &mut timeline);
            timeline
        })))
    }
}

pub(crate) fn decode(rank: usize, bytes: &[u8]) -> Result<Recording, String> {
    serde_json::from_slice(bytes).map_err(|error| {
        format!("cannot decode rank {rank}'s trace: {error}; use the same version on all ranks")
    })
}
