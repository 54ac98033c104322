//! Where the ranks of a test meet.

use std::hash::{BuildHasher, RandomState};
use std::net::TcpListener;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The lowest port that a test takes, and how many it chooses from at most.
const FIRST: u32 = 10_000;
const CHOICE: u32 = 20_000;

/// An address of loopback at which no process listens.
#[allow(
    dead_code,
    reason = "not every test that meets needs the whole address"
)]
pub(crate) fn free_address() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// A port of loopback that is free, and its successor too. Both are below those that the system
/// gives to connections by itself: one of those could be given away between this call and the rank
/// that listens.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    static CHANCE: OnceLock<u32> = OnceLock::new();
    let choice = below_the_systems_own();
    // Tests run in several processes at once, in containers whose process numbers are alike.
    let chance = CHANCE.get_or_init(|| RandomState::new().hash_one("port") as u32 % CHOICE);
    loop {
        let at = chance + NEXT.fetch_add(2, Ordering::Relaxed);
        let port = u16::try_from(FIRST + at % choice / 2 * 2).unwrap();
        let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if free(port) && free(port + 1) {
            return port;
        }
    }
}

/// How many ports from [`FIRST`] on the system leaves alone; all of the choice where it leaves few.
fn below_the_systems_own() -> u32 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let low = range.ok().and_then(|range| {
        let low = range.split_whitespace().next()?;
        low.parse::<u32>().ok()
    });
    let left = low.map_or(CHOICE, |low| low.saturating_sub(FIRST));
    if left < 1_000 {
        CHOICE
    } else {
        left.min(CHOICE)
    }
}
