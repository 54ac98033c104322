//! Where the ranks of a test meet.

use ringtree::start::UniqueId;
use std::sync::{Mutex, PoisonError};

/// What keeps the ports that this process has taken, for as long as it lives.
static TAKEN: Mutex<Vec<UniqueId>> = Mutex::new(Vec::new());

/// An address of loopback that no other process is given: this one has bound the port, and only
/// a rank that is told the number listens at it.
#[allow(
    dead_code,
    reason = "not every test that meets needs the whole address"
)]
pub(crate) fn own_address() -> String {
    format!("127.0.0.1:{}", own_port())
}

/// The port of such an address.
pub(crate) fn own_port() -> u16 {
    let taken = UniqueId::on("127.0.0.1").unwrap();
    let port = taken.address().port();
    let mut all = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    all.push(taken);
    port
}
