//! Records when the messages of collectives are sent and received, and adds the times that the cost
//! model predicts for the same messages.

use super::{Active, RankSpans, Span, Timeline, Trace};
use crate::comm::Communicator;
use crate::comm::recording::{CallRecord, PredictionInput, StepRecord, What};
use crate::limits::TRACE_SPANS_MAX;
use crate::lock::lock;
use crate::plan::internal::cost::{MessageTimes, Schedule};
use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

/// Names of the tracks for measured calls, messages and local steps. Each of these tracks except
/// `local` is followed by the corresponding track of predictions.
const CALL: &str = "call";
const SEND: &str = "send";
const RECEIVE: &str = "receive";
const LOCAL: &str = "local";
/// Suffix that turns the name of a track into the name of the corresponding prediction track.
const PREDICTED: &str = ", predicted";

/// A call whose messages were recorded, with the data needed to predict it.
#[derive(Debug)]
pub(super) struct Predicted {
    /// Name of the call, as used in its spans.
    name: String,
    /// Input for the prediction, or the reason why the call cannot be predicted.
    question: Result<PredictionInput, String>,
}

impl Trace {
    /// Runs `body` and records the messages of the collectives that are started on `comm` while
    /// `body` is running.
    ///
    /// The tracks `call`, `send`, `receive` and `local` show when each rank's engine started and
    /// completed each call and the steps of that call. A local step copies or reduces the rank's
    /// own data. A send completes when the link has accepted its bytes, and a receive completes
    /// when its bytes are in place. The tracks `call, predicted`, `send, predicted` and `receive,
    /// predicted` show the times that the cost model predicts for the plan. Predicted
    /// times are relative to the moment at which the first rank started the call.
    ///
    /// All ranks must call this method with the same collectives in `body`. Calls outside `body`
    /// incur no cost.
    ///
    /// - Messages of [`send`](Communicator::send) and operations that a device runs on its own are
    ///   not recorded.
    /// - Calls with counts and calls on device memory are not predicted. Neither are calls on a
    ///   communicator whose ranks differ from those of the trace or are in a different order.
    /// - Nothing is recorded for a communicator that belongs to a different world.
    /// - Space for [`TRACE_SPANS_MAX`] steps is reserved before `body` runs. Any further steps are
    ///   not recorded and are counted as dropped.
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// use ringtree::ddp::Trace;
    ///
    /// let timelines = ringtree::simulate(4, |comm| {
    ///     let trace = Trace::new(comm)?;
    ///     let mut numbers = [1.0f32; 1000];
    ///     trace.messages(comm, || comm.all_reduce(&mut numbers, ReduceOp::Sum))?;
    ///     trace.collect()
    /// });
    /// let timeline = timelines[0].clone()?.expect("rank 0 has it");
    /// let sends = |rank: usize, track: &str| {
    ///     let spans = timeline.ranks[rank].spans.iter().filter(|span| span.track == track);
    ///     spans.map(|span| span.name.clone()).collect::<Vec<_>>()
    /// };
    /// assert!(sends(3, "send").iter().all(|name| name.starts_with("round ")));
    /// assert_eq!(sends(3, "send"), sends(3, "send, predicted"));
    /// # Ok::<(), ringtree::Error>(())
    /// ```
    pub fn messages<R>(&self, comm: &Communicator, body: impl FnOnce() -> R) -> R {
        let of_this_world = |active: &&Active| comm.shares_clock_with(&active.comm);
        let Some(active) = self.0.as_ref().filter(of_this_world) else {
            return body();
        };
        let (result, recording) = comm.recorded(body);
        active.recording().dropped += recording.dropped;
        for record in &recording.calls {
            self.record(record);
            let mut predicted = lock(&active.predicted);
            if active.comm.rank() == 0 && predicted.len() < TRACE_SPANS_MAX {
                let question = match comm.shares_ranks_with(&active.comm) {
                    true => comm.prediction_input(&record.call),
                    false => Err("its ranks differ from the ranks of the trace".into()),
                };
                predicted.push(Predicted {
                    name: record.call.to_string(),
                    question,
                });
            }
        }
        result
    }

    fn record(&self, record: &CallRecord) {
        let began = record.began;
        let ended = record.steps.iter().map(|step| step.ended).max();
        self.span(CALL, record.call, began, ended.unwrap_or(began));
        for step in &record.steps {
            let StepRecord { began, ended, .. } = *step;
            let (track, name) = match &step.what {
                What::Send(to) => (SEND, name(step.round, "→", to)),
                What::Receive(from) => (RECEIVE, name(step.round, "←", from)),
                What::Local => (LOCAL, format!("round {}", step.round + 1)),
            };
            self.span_with(track, name, began..ended, &numbers(step.round, step.bytes));
        }
    }
}

/// Adds the predictions to the measured timeline. If every rank dropped its span of a call, the
/// start of the call is unknown, so no prediction is added for it.
pub(super) fn predict(calls: &[Predicted], timeline: &mut Timeline) {
    let mut begins: HashMap<String, Duration> = HashMap::new();
    for span in timeline.ranks.iter().flat_map(|rank| &rank.spans) {
        if span.track == CALL {
            let begin = begins.entry(span.name.clone()).or_insert(span.start);
            *begin = span.start.min(*begin);
        }
    }
    for call in calls {
        if let Some(begin) = begins.get(&call.name) {
            call.add_to(timeline, *begin);
        }
    }
    timeline.ranks.iter_mut().for_each(RankSpans::sort);
}

impl Predicted {
    /// Adds the predictions for this call. `start` is the time at which the first rank started the
    /// call.
    fn add_to(&self, timeline: &mut Timeline, start: Duration) {
        let answer = self.question.as_ref().map_err(String::clone);
        let (schedule, label) = match answer.and_then(PredictionInput::answer) {
            Ok(schedule) => (schedule, self.name.clone()),
            Err(why) => (Schedule::default(), format!("not predicted: {why}")),
        };
        let end = start + seconds(schedule.end_s);
        for rank in &mut timeline.ranks {
            add(rank, CALL, &label, start..end, &[]);
        }
        for message in &schedule.messages {
            let MessageTimes {
                round, from, to, ..
            } = *message;
            let numbers = numbers(round, message.bytes);
            for (rank, track, name, [begin_s, end_s]) in [
                (from, SEND, name(round, "→", &[to]), message.sends_s),
                (to, RECEIVE, name(round, "←", &[from]), message.receives_s),
            ] {
                let time = start + seconds(begin_s)..start + seconds(end_s);
                add(&mut timeline.ranks[rank], track, &name, time, &numbers);
            }
        }
    }
}

/// Adds a prediction, unless the rank already has twice [`TRACE_SPANS_MAX`] spans.
fn add(
    rank: &mut RankSpans,
    track: &str,
    name: &str,
    time: Range<Duration>,
    numbers: &[(&str, u64)],
) {
    if rank.spans.len() >= 2 * TRACE_SPANS_MAX {
        rank.dropped += 1;
        return;
    }
    let track = format!("{track}{PREDICTED}");
    rank.spans.push(Span::new(&track, name, time, numbers));
}

/// Returns the name of a message's span. Rounds are numbered from 1, as in plan drawings.
fn name(round: usize, arrow: &str, peers: &[usize]) -> String {
    let peers: Vec<_> = peers.iter().map(ToString::to_string).collect();
    format!("round {} {arrow} {}", round + 1, peers.join(" "))
}

fn numbers(round: usize, bytes: usize) -> [(&'static str, u64); 2] {
    [("round", round as u64 + 1), ("bytes", bytes as u64)]
}

/// Converts seconds to a duration, rounded to nanoseconds.
fn seconds(seconds: f64) -> Duration {
    Duration::from_nanos((seconds * 1e9).round() as u64)
}
