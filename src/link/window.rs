//! Send buffers that hold what is on a long way.
//!
//! A connection sends at full speed only if its send buffer holds all bytes that no acknowledgement
//! has come for: rate times round trip. The kernel tunes a buffer as the window opens, up to a
//! limit, `net.ipv4.tcp_wmem`, of 4 MiB by default: 1.3 Gbit/s at a round trip of 25 ms. A program
//! may ask for up to `net.core.wmem_max`, of which the kernel makes twice as much, and which ends
//! the tuning. So it is asked for only on long ways, and only where that is more. Receive buffers
//! need nothing: their limit is higher.
//!
//! *May import* `limits` and `sys`.

use crate::limits::LONG_ROUND_TRIP;
use crate::sys::tcp::round_trip;
use socket2::SockRef;
use std::fs;
use std::os::fd::AsFd;
use std::sync::LazyLock;

/// Lets a connection over a long way send as much as the system allows before an acknowledgement
/// comes. Where the system says or allows nothing, the connection keeps its buffer.
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

/// What to ask for, if it gives more than the kernel's tuning does.
fn widest(asked_for: &str, tuned: &str) -> Option<usize> {
    let asked_for: usize = asked_for.trim().parse().ok()?;
    let tuned: usize = tuned.split_whitespace().last()?.parse().ok()?;
    (asked_for.saturating_mul(2) > tuned).then_some(asked_for)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_asked_for_where_it_gives_more() {
        let tuned = "4096\t16384\t4194304\n";
        assert_eq!(widest("4194304\n", tuned), Some(4_194_304));
        assert_eq!(widest("212992\n", tuned), None);
        assert_eq!(widest("much", tuned), None);
    }
}
