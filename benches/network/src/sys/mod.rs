//! System calls without a safe wrapper: namespaces, TUN ports, real-time priority, and children
//! that end with their parent. The only unsafe code of this package.

use rustix::fs::{Mode, OFlags};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// What precedes every packet of a port: `struct virtio_net_hdr`, which tells segmentation and
/// checksums.
pub(crate) const HEADER_BYTES: usize = 10;

/// Gives the calling thread a network without any links and a host name of its own.
///
/// # Errors
/// `EPERM` without the capability CAP_SYS_ADMIN.
pub(crate) fn leave_network() -> io::Result<()> {
    let kinds = UnshareFlags::NEWNET | UnshareFlags::NEWUTS;
    // SAFETY: the wrapper is unsafe because of `FILES`, after which threads disagree about
    // descriptors. These two kinds change only which network and host name system calls see.
    Ok(unsafe { unshare_unsafe(kinds) }?)
}

/// Makes the port `eth0` in the calling thread's network: what the kernel sends there can be read,
/// what is written comes in. Packets may be up to 64 KiB long: neither the kernel nor the device
/// cuts them into segments.
///
/// # Errors
/// The device cannot be opened (`ENOENT`, `EACCES`), or the port cannot be made (`EPERM`).
pub(crate) fn make_port() -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let port = File::from(rustix::fs::open("/dev/net/tun", flags, Mode::empty())?);
    let mut name = [0; libc::IFNAMSIZ];
    for (to, from) in name.iter_mut().zip(*b"eth0") {
        *to = from as libc::c_char;
    }
    let kind = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    let request = libc::ifreq {
        ifr_name: name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_flags: kind as libc::c_short,
        },
    };
    // SAFETY: the descriptor is open, and TUNSETIFF reads and writes one `ifreq`, which `request`
    // is; the kernel keeps no pointer to it.
    let made = unsafe { libc::ioctl(port.as_raw_fd(), libc::TUNSETIFF as _, &raw const request) };
    check(made)?;
    let offload = libc::c_ulong::from(libc::TUN_F_CSUM | libc::TUN_F_TSO4);
    // SAFETY: the descriptor is open, and TUNSETOFFLOAD takes its argument by value.
    let set = unsafe { libc::ioctl(port.as_raw_fd(), libc::TUNSETOFFLOAD as _, offload) };
    check(set)?;
    Ok(port)
}

/// Lets the calling thread run before all ordinary threads, so that busy ranks do not hold it up.
///
/// # Errors
/// `EPERM` without the capability CAP_SYS_NICE.
pub(crate) fn run_first() -> io::Result<()> {
    let priority = libc::sched_param { sched_priority: 50 };
    // SAFETY: 0 is the calling thread, and the call only reads `priority`.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) })
}

/// Has the kernel kill the command's process when the thread that starts it ends.
pub(crate) fn die_with_parent(command: &mut Command) {
    let ask = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: between fork and exec `ask` makes one system call; it allocates nothing and takes no
    // lock.
    unsafe { command.pre_exec(ask) };
}

fn check(returned: libc::c_int) -> io::Result<()> {
    match returned {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
