//! Gets random bytes from the operating system.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::io;

/// Returns new random bytes from the system's random source.
///
/// # Errors
/// Returns the operating system's error.
pub(crate) fn bytes<const COUNT: usize>() -> io::Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    let mut filled = 0;
    while filled < COUNT {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

/// Returns a new random number from the system's random source.
///
/// # Errors
/// Returns the operating system's error.
pub(crate) fn number() -> io::Result<u64> {
    bytes().map(u64::from_ne_bytes)
}
