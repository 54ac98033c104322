//! Predicts when each message of a call is sent and received.
//!
//! *May import* what `cost` imports.

use super::{Schedule, Traffic, path, shared};
use crate::algorithms::{plans, required};
use crate::error::PlanError;
use crate::ir::Request;
use crate::limits::TRACE_SPANS_MAX;
use crate::topology::{Sharing, sharing};
use crate::tuning::TuningTable;

/// Returns the times of each message in a call on `count` elements of `element_bytes` bytes each.
/// The rank in `request` is ignored.
///
/// Over a network, the times are determined by the longest path through the plans of all ranks.
/// Inside a host, they are determined by the busiest rank in each round. In a hierarchical plan,
/// messages inside a host are assumed to use shared memory. The end of the schedule equals the
/// prediction that is used to choose the algorithm, or is close to it if the choice uses a closed
/// form or a bound.
///
/// ```
/// use ringtree::tuning::TuningTable;
/// use ringtree::plan::internal::cost::schedule;
/// use ringtree::plan::{Algorithm, Collective, Hosts, Request};
///
/// let mut table = TuningTable::default();
/// table.tcp.alpha_s = 10.0;
/// table.tcp.overhead_s = 1.0;
/// table.tcp.beta_s_per_byte = 0.25;
/// let request = Request {
///     collective: Collective::Broadcast,
///     algorithm: Algorithm::Flat,
///     world_size: 3,
///     rank: 0,
///     root: 0,
///     pieces: 1,
///     hosts: Hosts::APART,
/// };
/// let schedule = schedule(&request, 5, 4, &table)?;
/// let second = schedule.messages[1];
/// assert_eq!((second.to, second.bytes, second.sends_s), (2, 20, [6.0, 12.0]));
/// // The first byte leaves after 1 s and travels for 10 s.
/// assert_eq!(second.receives_s, [17.0, 23.0]);
/// assert_eq!(schedule.end_s, 23.0);
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// Returns an error if there is no plan for `request`, or if the plan has more than
/// [`TRACE_SPANS_MAX`] messages.
pub fn schedule(
    request: &Request,
    count: usize,
    element_bytes: usize,
    table: &TuningTable,
) -> Result<Schedule, PlanError> {
    let entry = required(request.collective, request.algorithm)?;
    if request.world_size == 1 {
        return Ok(Schedule::default());
    }
    let messages = Traffic::of(request, count * element_bytes)?.messages;
    if messages.is_none_or(|messages| messages > TRACE_SPANS_MAX) {
        return Err(refused!(
            TooLarge,
            "the plan exceeds the limit of {TRACE_SPANS_MAX} messages for a schedule"
        ));
    }
    let plans = plans(request)?;
    Ok(match sharing(&request.topology()) {
        Sharing::All => shared::schedule(&plans, count, element_bytes, &table.shm),
        sharing => {
            let shares = sharing == Sharing::Some && entry.stages.is_some();
            path::schedule(&plans, (count, element_bytes), table, shares)
        }
    })
}
