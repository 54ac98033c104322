//! Lists the network interfaces of this host and their addresses.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

/// Returns pairs of interface name and address, for all addresses of all interfaces that are up.
///
/// # Errors
/// Returns the operating system's error.
pub fn addresses() -> io::Result<Vec<(String, IpAddr)>> {
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: `list` is a valid place for the pointer that the call writes.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut at = list;
    while !at.is_null() {
        // SAFETY: `at` is the list's head or an `ifa_next` of it, not null, and the list lives
        // until `freeifaddrs` below.
        let entry = unsafe { &*at };
        at = entry.ifa_next;
        // The value 1 is IFF_UP on all targets. On some targets, the constant and the field have
        // different types.
        if entry.ifa_flags & 1 == 0 || entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: `ifa_addr` is not null and points to the entry's socket address.
        if let Some(address) = unsafe { ip_address(entry.ifa_addr) } {
            // SAFETY: `ifa_name` of every entry is a string that ends with a zero byte.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            found.push((name.to_string_lossy().into_owned(), address));
        }
    }
    // SAFETY: `list` came from `getifaddrs` and is freed once. No borrow of it is left.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// Returns the IP address at `address`, or `None` if the address belongs to a different family.
///
/// # Safety
/// `address` must point to a socket address of the length that its family implies.
unsafe fn ip_address(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: by the caller's promise. The family field is within every socket address. Unaligned
    // reads are used because the pointer's type promises less alignment than the target's.
    let family = i32::from(unsafe { ptr::addr_of!((*address).sa_family).read_unaligned() });
    match family {
        libc::AF_INET => {
            // SAFETY: by the caller's promise: with this family, it is a `sockaddr_in`.
            let inet = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            let bits = u32::from_be(inet.sin_addr.s_addr);
            Some(IpAddr::V4(Ipv4Addr::from(bits)))
        }
        libc::AF_INET6 => {
            // SAFETY: by the caller's promise: with this family, it is a `sockaddr_in6`.
            let inet = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::V6(Ipv6Addr::from(inet.sin6_addr.s6_addr)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
