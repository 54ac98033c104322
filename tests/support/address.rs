//! Addresses at which the ranks of a test connect.

use ringtree::start::UniqueId;
use std::sync::{Mutex, PoisonError};

/// Unique IDs that keep the ports of this process bound until it exits.
static TAKEN: Mutex<Vec<UniqueId>> = Mutex::new(Vec::new());

/// Returns a loopback address that no other process gets: this process has bound the port, and only
/// a rank that knows the port listens on it.
#[allow(dead_code, reason = "some tests need only the port")]
pub(crate) fn reserved_address() -> String {
    format!("127.0.0.1:{}", reserved_port())
}

/// Like [`reserved_address`], but returns only the port.
pub(crate) fn reserved_port() -> u16 {
    let taken = UniqueId::on("127.0.0.1").unwrap();
    let port = taken.address().port();
    let mut all = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    all.push(taken);
    port
}
