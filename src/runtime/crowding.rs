//! Decides whether a waiting rank may yield its core.
//!
//! A yield is the fastest way to wait for another rank that needs the same core: it takes less than
//! a microsecond if no other thread can run. But if another thread computes on the core, the
//! scheduler lets that thread run for its whole slice, even if the data arrives in the meantime. A
//! rank that sleeps is woken by the data and then runs before that thread.

use crate::limits::{CROWDED_MAX, CROWDED_MIN, YIELD_MAX};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The time until which this process does not yield its cores. All times are those of the host's
/// clock. Threads may update it at the same time, because any of their results is good enough.
#[derive(Debug, Default)]
pub(crate) struct Crowding {
    /// End of the time without yields, in nanoseconds.
    until: AtomicU64,
    /// Length of that time, in nanoseconds.
    length: AtomicU64,
}

impl Crowding {
    /// Returns `true` if a rank that is waiting at the time `now` may yield.
    pub(crate) fn may_yield(&self, now: Duration) -> bool {
        nanos(now) >= self.until.load(Ordering::Relaxed)
    }

    /// Records a yield. If it took long, forbids yields for some time.
    pub(crate) fn yielded(&self, before: Duration, after: Duration) {
        if after.saturating_sub(before) <= YIELD_MAX {
            return;
        }
        let length = self.length.load(Ordering::Relaxed);
        let is_soon = nanos(before) < self.until.load(Ordering::Relaxed).saturating_add(length);
        let next = match is_soon {
            true => (2 * length).clamp(nanos(CROWDED_MIN), nanos(CROWDED_MAX)),
            false => nanos(CROWDED_MIN),
        };
        self.length.store(next, Ordering::Relaxed);
        self.until.store(nanos(after) + next, Ordering::Relaxed);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn long_yields_forbid_further_yields_for_longer_each_time() {
        let crowding = Crowding::default();
        let mut now = MS(7);
        let mut lengths = Vec::new();
        for _ in 0..6 {
            assert!(crowding.may_yield(now));
            crowding.yielded(now, now + MS(4));
            now += MS(4);
            let until = (0..).find(|after| crowding.may_yield(now + MS(*after)));
            let length = until.expect("yields are allowed again");
            lengths.push(length);
            now += MS(length);
        }
        assert_eq!(lengths, [400, 800, 1600, 3200, 3200, 3200]);
        // Later, the core has been free for longer than the last such time.
        now += MS(3200);
        crowding.yielded(now, now + MS(4));
        assert!(!crowding.may_yield(now + MS(403)) && crowding.may_yield(now + MS(404)));
    }

    #[test]
    fn short_yields_change_nothing() {
        let crowding = Crowding::default();
        for at in 0..100 {
            crowding.yielded(MS(at), MS(at) + YIELD_MAX);
            assert!(crowding.may_yield(MS(at)));
        }
    }
}
