//! Relates the clocks of other ranks to rank 0's clock.

use crate::comm::Communicator;
use crate::error::Result;
use crate::limits::CLOCK_QUESTIONS;
use std::time::Duration;

/// One reading of a rank's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Time on that rank's clock, in nanoseconds.
    pub(super) its_ns: i128,
    /// Estimated time on rank 0's clock at that moment, in nanoseconds.
    pub(super) ours_ns: i128,
    /// Maximum error of the estimate in nanoseconds, which is half the round trip.
    pub(super) error_ns: i128,
}

impl Reading {
    /// Creates a reading from a request that was sent at `asked_ns` and its answer `its_ns`, which
    /// arrived at `answered_ns`. The other rank read its clock at some moment in between, so the
    /// midpoint is off by at most half the round trip.
    pub(crate) fn new(asked_ns: i128, its_ns: i128, answered_ns: i128) -> Self {
        Self {
            its_ns,
            ours_ns: asked_ns.midpoint(answered_ns),
            error_ns: (answered_ns - asked_ns + 1) / 2,
        }
    }

    fn lead_ns(&self) -> i128 {
        self.its_ns - self.ours_ns
    }
}

/// Returns the time on rank 0's clock at which a rank's clock showed `its_ns`. The clocks of
/// different hosts drift apart by tens of milliseconds per hour, so the offset is interpolated
/// between the two readings.
pub(super) fn shift(its_ns: i128, begin: &Reading, end: &Reading) -> i128 {
    let drift_ns = end.lead_ns() - begin.lead_ns();
    let whole_ns = end.its_ns - begin.its_ns;
    if whole_ns <= 0 {
        return its_ns - begin.lead_ns();
    }
    let passed_ns = (its_ns - begin.its_ns).clamp(0, whole_ns);
    its_ns - begin.lead_ns() - drift_ns.saturating_mul(passed_ns) / whole_ns
}

/// Makes rank 0 read the clocks of all ranks. The other ranks answer rank 0's requests and get no
/// readings.
pub(super) fn read_all(comm: &Communicator) -> Result<Vec<Reading>> {
    if comm.rank() > 0 {
        for _ in 0..CLOCK_QUESTIONS {
            comm.recv(&mut [0u8], 0)?;
            let answer = u64::try_from(comm.clock().as_nanos()).unwrap_or(u64::MAX);
            comm.send(&[answer], 0)?;
        }
        return Ok(Vec::new());
    }
    let now_ns = nanoseconds(comm.clock());
    let mut readings = vec![Reading::new(now_ns, now_ns, now_ns)];
    for rank in 1..comm.world_size() {
        readings.push(read(comm, rank)?);
    }
    Ok(readings)
}

fn read(comm: &Communicator, rank: usize) -> Result<Reading> {
    let ask = |_| {
        let asked_ns = nanoseconds(comm.clock());
        comm.send(&[0u8], rank)?;
        let mut its_ns = [0u64];
        comm.recv(&mut its_ns, rank)?;
        let answered_ns = nanoseconds(comm.clock());
        Ok(Reading::new(asked_ns, its_ns[0].into(), answered_ns))
    };
    let readings: Vec<_> = (0..CLOCK_QUESTIONS).map(ask).collect::<Result<_>>()?;
    let best = readings.into_iter().min_by_key(|reading| reading.error_ns);
    Ok(best.unwrap_or_default())
}

pub(super) fn nanoseconds(time: Duration) -> i128 {
    i128::try_from(time.as_nanos()).unwrap_or(i128::MAX)
}

#[cfg(test)]
mod tests;
