//! Where the ranks of a test meet.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// An address of loopback at which no process listens. Its port is below those that the system
/// gives to connections (32768 and above, unless set otherwise): one of those could be given away
/// between this call and the rank that listens.
pub(crate) fn free_address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Tests run in several processes at once, whose numbers are near each other.
    let first = std::process::id().wrapping_mul(97);
    loop {
        let number = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let address = format!("127.0.0.1:{}", 10_000 + number % 20_000);
        if TcpListener::bind(&address).is_ok() {
            return address;
        }
    }
}
