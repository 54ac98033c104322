//! Enlarges the send buffers of connections that have a long round trip.
//!
//! A connection sends at full speed only if its send buffer can hold all unacknowledged bytes, that
//! is, the rate times the round-trip time. The kernel grows the buffer automatically, up to a limit
//! in `net.ipv4.tcp_wmem`. The default limit of 4 MiB allows 1.3 Gbit/s at a round trip of 25 ms. A
//! program can request a buffer of up to `net.core.wmem_max`. The kernel doubles the requested
//! value and stops tuning that buffer. So the library requests a buffer size only if the round trip
//! is long and the doubled value exceeds the limit of the kernel's automatic tuning. Receive
//! buffers are left to the kernel, because their limit is higher.
//!
//! *May import* `limits` and `sys`.

use crate::limits::LONG_ROUND_TRIP;
use crate::sys::tcp::round_trip;
use socket2::SockRef;
use std::fs;
use std::os::fd::AsFd;
use std::sync::LazyLock;

/// If the round trip of a connection is long, enlarges its send buffer to the system's maximum. The
/// buffer stays unchanged if the system's limits are unknown or do not allow a larger buffer.
pub(super) fn widen(stream: &impl AsFd) {
    static WIDEST: LazyLock<Option<usize>> = LazyLock::new(|| {
        let asked_for = fs::read_to_string("/proc/sys/net/core/wmem_max").ok()?;
        let tuned = fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem").ok()?;
        widest(&asked_for, &tuned)
    });
    let is_long = round_trip(stream).is_ok_and(|way| way >= LONG_ROUND_TRIP);
    if is_long && let Some(bytes) = *WIDEST {
        let _ = SockRef::from(stream).set_send_buffer_size(bytes);
    }
}

/// Returns the size to request, or `None` if the kernel's tuning allows a buffer that is at least
/// as large.
fn widest(asked_for: &str, tuned: &str) -> Option<usize> {
    let asked_for: usize = asked_for.trim().parse().ok()?;
    let tuned: usize = tuned.split_whitespace().last()?.parse().ok()?;
    (asked_for.saturating_mul(2) > tuned).then_some(asked_for)
}

#[cfg(test)]
mod tests;
