use super::*;
use crate::dtype::Dtype;
use crate::engine::cache::MessageEnd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns a log whose clock advances by one second each time it is read.
fn log(steps_max: usize) -> Log {
    let ticks = AtomicU64::new(0);
    let clock = move || Duration::from_secs(ticks.fetch_add(1, Ordering::Relaxed));
    Log::new(Box::new(clock), steps_max)
}

fn prepared() -> Arc<Prepared> {
    Arc::new(Prepared::message(0, MessageEnd::To(1), (3, Dtype::F32), 0).unwrap())
}

#[test]
fn step_begins_with_first_successful_attempt() {
    let mut log = log(1);
    log.call(7, &prepared());
    log.tries(); // Moves nothing.
    log.tries();
    log.moved(7, 0, true, false);
    log.moved(7, 0, false, false);
    log.moved(7, 0, false, true);
    let Recording { calls, dropped } = log.finish();
    assert_eq!((calls[0].call.sequence, dropped), (7, 0));
    let step = StepRecord {
        round: 0,
        what: What::Send(vec![1]),
        bytes: 12,
        began: Duration::from_secs(2),
        ended: Duration::from_secs(3),
    };
    assert_eq!(calls[0].steps, [step]);
}

#[test]
fn full_log_stops_growing_and_counts_dropped_steps() {
    let mut log = log(3);
    let capacities = (log.calls.capacity(), log.moments.capacity());
    for sequence in 1..=5 {
        log.call(sequence, &prepared());
        log.tries();
        log.moved(sequence, 0, true, true);
    }
    assert_eq!((log.calls.capacity(), log.moments.capacity()), capacities);
    let Recording { calls, dropped } = log.finish();
    assert_eq!((calls.len(), dropped), (3, 2));
    assert!(calls.iter().all(|call| call.steps.len() == 1));
}

#[test]
fn unfinished_step_is_counted_as_dropped() {
    let mut log = log(4);
    log.call(1, &prepared());
    log.tries();
    log.moved(1, 0, true, false);
    let Recording { calls, dropped } = log.finish();
    assert_eq!((calls[0].steps.len(), dropped), (0, 1));
}
