//! When each message of a call passes, by the price of its plans.
//!
//! *May import* what `cost` imports.

use super::{Schedule, Traffic, path, shared};
use crate::algorithms::{plans, required};
use crate::ir::Request;
use crate::limits::TRACE_SPANS_MAX;
use crate::topology::Sharing;
use crate::tuning::TuningTable;

/// When each message passes in a call on `count` elements of `element_bytes` bytes each, whatever
/// the rank of `request`.
///
/// Over a network it is the longest path through the plans of all ranks that decides, inside a host
/// the sum of the busiest rank's rounds. Of a hierarchical plan, what stays inside a host is taken
/// to go through shared memory. So the end is the price that the choice is made by, or close to
/// that where the choice takes a closed form or a bound.
///
/// ```
/// use ringtree::TuningTable;
/// use ringtree::plan::cost::schedule;
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
/// // 1 s before the first byte leaves, 10 s on the way.
/// assert_eq!(second.receives_s, [17.0, 23.0]);
/// assert_eq!(schedule.end_s, 23.0);
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// A sentence: there is no such plan, or it has more than [`TRACE_SPANS_MAX`] messages.
pub fn schedule(
    request: &Request,
    count: usize,
    element_bytes: usize,
    table: &TuningTable,
) -> Result<Schedule, String> {
    let entry = required(request.collective, request.algorithm)?;
    if request.world_size == 1 {
        return Ok(Schedule::default());
    }
    let messages = Traffic::of(request, count * element_bytes)?.messages;
    if messages.is_none_or(|messages| messages > TRACE_SPANS_MAX) {
        return Err(format!(
            "it has more than {TRACE_SPANS_MAX} messages, which are not priced one by one"
        ));
    }
    let plans = plans(request)?;
    Ok(match request.topology().sharing() {
        Sharing::All => shared::schedule(&plans, count, element_bytes, &table.shm),
        sharing => {
            let shares = sharing == Sharing::Some && entry.stages.is_some();
            path::schedule(&plans, (count, element_bytes), table, shares)
        }
    })
}
