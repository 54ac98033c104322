//! Tests the messages of a call on a timeline. Every message of the plan appears for every
//! rank, with its measured and predicted times. In virtual time, the two agree.

use ringtree::ddp::{RankSpans, Span, Timeline, Trace};
use ringtree::internal::limits::TRACE_SPANS_MAX;
use ringtree::plan::internal::algorithms::{self, entry};
use ringtree::plan::{Algorithm, Collective};
use ringtree::plan::{Hosts, Request};
use ringtree::sim::{World, sleep};
use ringtree::{Layout, ReduceOp};
use std::collections::BTreeMap;
use std::time::Duration;

/// Size of the frame header of every message.
const HEADER_BYTES: f64 = 32.0;

/// Returns a world in which every message is one packet. Its tuning table matches its network.
fn one_packet_per_message(world_size: usize, algorithm: Algorithm) -> World {
    let mut world = World::new(world_size);
    world.algorithm = Some(algorithm);
    world.network.bandwidth_bytes_per_s = 1e9;
    world.network.overhead = Duration::from_micros(3);
    world.network.quantum_bytes = 1 << 30;
    world.network.window_bytes = 1 << 30;
    let link = &mut world.tuning.tcp;
    link.alpha_s = world.network.latency.as_secs_f64();
    link.beta_s_per_byte = 1.0 / world.network.bandwidth_bytes_per_s;
    link.overhead_s = 3e-6 + HEADER_BYTES * link.beta_s_per_byte;
    link.gamma_s_per_byte = 0.0;
    world
}

/// Records the timeline of one call on `count` elements, which all ranks start at the same time.
fn traced(world: &World, collective: Collective, count: usize) -> Timeline {
    let ends = world.run(|comm| {
        let trace = Trace::new(comm)?;
        sleep(comm, Duration::from_secs(1) - comm.clock());
        let mut buffer = vec![1.0f32; count];
        trace.messages(comm, || {
            ringtree::internal::calls::collective(comm, collective, &mut buffer, ReduceOp::Sum, 0)
        })?;
        trace.collect()
    });
    let timelines: ringtree::Result<Vec<_>> = ends.into_iter().collect();
    timelines.unwrap().remove(0).unwrap()
}

/// Returns the end times of the messages on one track of a rank, in nanoseconds. A span stands for
/// all messages in its name.
fn ends(spans: &RankSpans, track: &str) -> BTreeMap<String, i128> {
    let mut ends = BTreeMap::new();
    for span in spans.spans.iter().filter(|span| span.track == track) {
        for message in messages(span) {
            let ended = i128::try_from(span.end.as_nanos()).unwrap();
            assert_eq!(ends.insert(message, ended), None, "{span:?} appears twice");
        }
    }
    ends
}

/// Splits the name of a span: "round 2 ← 1 3" stands for "round 2 ← 1" and "round 2 ← 3".
fn messages(span: &Span) -> Vec<String> {
    crate::names::messages_in(&span.name)
}

/// Returns `true` if any message is predicted to wait at its receiver's port for another message.
/// If messages arrive simultaneously, either may be served first, and later times depend on the
/// order.
fn is_any_port_shared(timeline: &Timeline) -> bool {
    timeline.ranks.iter().any(|spans| {
        let receives = spans.spans.iter();
        let receives: Vec<_> = receives
            .filter(|span| span.track == "receive, predicted")
            .collect();
        receives.windows(2).any(|two| two[1].start <= two[0].end)
    })
}

/// Returns the largest difference between the end of a receive and its prediction, as a fraction of
/// the predicted time of the call. A span that stores or reduces several messages ends with the
/// last of them.
fn farthest(timeline: &Timeline) -> f64 {
    let mut farthest: f64 = 0.0;
    for spans in &timeline.ranks {
        let on = |track: &'static str| spans.spans.iter().filter(move |span| span.track == track);
        let call = on("call, predicted").next().unwrap();
        let whole_ns = (call.end - call.start).as_nanos() as f64;
        let predicted = ends(spans, "receive, predicted");
        let measured = ends(spans, "receive");
        assert!(
            measured.keys().eq(predicted.keys()),
            "measured {measured:?}, but predicted {predicted:?}"
        );
        for span in on("receive") {
            let last = messages(span).iter().map(|one| predicted[one]).max();
            let ended = i128::try_from(span.end.as_nanos()).unwrap();
            farthest = farthest.max((ended - last.unwrap()).abs() as f64 / whole_ns);
        }
    }
    farthest
}

#[test]
fn messages_arrive_at_predicted_times_in_virtual_time() {
    let (mut compared, mut all_off) = (0, Vec::new());
    for (collective, algorithm) in algorithms::pairs(&[2, 3]) {
        for world_size in [2, 3, 6, 8] {
            let world = one_packet_per_message(world_size, algorithm);
            let request = Request {
                collective,
                algorithm,
                world_size,
                rank: 0,
                root: 0,
                pieces: 1,
                hosts: Hosts::APART,
            };
            let chunks = (entry(collective, algorithm).unwrap().chunks)(&request);
            let timeline = traced(&world, collective, 256 * chunks);
            assert_eq!(timeline.ranks.len(), world_size);
            let (off, is_shared) = (farthest(&timeline), is_any_port_shared(&timeline));
            compared += usize::from(!is_shared);
            if off > 0.02 && !is_shared {
                let what = format!("{collective} by {algorithm} over {world_size} ranks: {off:.3}");
                all_off.push(what);
            }
        }
    }
    assert_eq!(all_off, Vec::<String>::new());
    assert!(compared >= 80, "only {compared} calls have no shared port");
}

#[test]
fn recorded_call_is_named_and_covers_all_its_spans() {
    let world = one_packet_per_message(6, Algorithm::Circulant);
    let timeline = traced(&world, Collective::AllReduce, 6000);
    for spans in &timeline.ranks {
        let on = |track: &'static str| spans.spans.iter().filter(move |span| span.track == track);
        let [call] = on("call").collect::<Vec<_>>()[..] else {
            panic!("one call was recorded: {spans:?}");
        };
        assert_eq!(call.name, "all-reduce #2 of 6000 f32, sum, by circulant");
        let own = on("send").chain(on("receive")).chain(on("local"));
        assert!(
            own.clone()
                .all(|span| call.start <= span.start && span.end <= call.end)
        );
        assert_eq!(own.clone().map(|span| span.end).max(), Some(call.end));
        // Each rank sends 5/6 of the buffer to be reduced, and 5/6 to be stored.
        let bytes = |track| on(track).map(|span| span.numbers[1].1).sum::<u64>();
        assert_eq!((bytes("send"), bytes("send, predicted")), (40_000, 40_000));
        assert_eq!((spans.dropped, bytes("receive, predicted")), (0, 40_000));
    }
}

#[test]
fn calls_outside_trace_or_beyond_its_capacity_are_not_recorded() {
    let calls = TRACE_SPANS_MAX / 2 + 7;
    let timelines = ringtree::simulate(2, |comm| {
        let trace = Trace::new(comm)?;
        comm.barrier()?;
        trace.messages(comm, || (0..calls).try_for_each(|_| comm.barrier()))?;
        comm.barrier()?;
        trace.collect()
    });
    let timeline = timelines[0].clone().unwrap().unwrap();
    for spans in &timeline.ranks {
        // Each call has a span, a send and a receive.
        let recorded = spans.spans.iter().filter(|span| span.track == "call");
        assert_eq!(recorded.count(), TRACE_SPANS_MAX.div_ceil(3));
        assert!(spans.dropped as usize >= 3 * calls - TRACE_SPANS_MAX);
        assert_eq!(spans.spans.len(), 2 * TRACE_SPANS_MAX);
    }
}

#[test]
fn call_with_counts_is_measured_but_not_predicted() {
    let timelines = ringtree::simulate(2, |comm| {
        let trace = Trace::new(comm)?;
        let (input, mut output) = ([1u8; 2], [0u8; 4]);
        trace.messages(comm, || {
            comm.all_gather_into(&input, &mut Layout::Counts(&[2, 2]).of(&mut output))
        })?;
        trace.collect()
    });
    let timeline = timelines[0].clone().unwrap().unwrap();
    for spans in &timeline.ranks {
        assert_eq!(ends(spans, "send").len(), 1);
        let mut predicted = spans
            .spans
            .iter()
            .filter(|span| span.track.ends_with("predicted"));
        let (only, next) = (predicted.next().unwrap(), predicted.next());
        assert!(only.name.starts_with("not predicted: "), "{only:?}");
        assert_eq!(next, None);
    }
}

#[test]
fn subgroup_calls_are_measured_but_not_predicted() {
    let timelines = ringtree::simulate(4, |comm| {
        let trace = Trace::new(comm)?;
        let pair = comm.split(comm.rank() / 2, 0)?;
        trace.messages(&pair, || pair.barrier())?;
        trace.collect()
    });
    let timeline = timelines[0].clone().unwrap().unwrap();
    for spans in &timeline.ranks {
        let names = |track: &'static str| {
            let spans = spans.spans.iter().filter(move |span| span.track == track);
            spans.map(|span| span.name.as_str())
        };
        assert_eq!((names("send").count(), names("receive").count()), (1, 1));
        assert_eq!(names("send, predicted").count(), 0);
        let mut calls = names("call, predicted");
        let why = "not predicted: its ranks differ from the ranks of the trace";
        assert!(calls.all(|name| name == why), "{spans:?}");
    }
}
