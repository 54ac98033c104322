//! Wraps system calls that have no safe wrapper: namespaces, TUN ports, real-time priority, and
//! children that end with their parent. Contains all unsafe code of this package.

use rustix::fs::{Mode, OFlags};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Size of the header in front of each packet on a port: `struct virtio_net_hdr`, which describes
/// segmentation and checksum offload.
pub(crate) const HEADER_BYTES: usize = 10;

/// Moves the calling thread into a new network without links, with its own host name.
///
/// # Errors
/// Returns `EPERM` without the capability CAP_SYS_ADMIN.
pub(crate) fn leave_network() -> io::Result<()> {
    let kinds = UnshareFlags::NEWNET | UnshareFlags::NEWUTS;
    // SAFETY: the wrapper is unsafe because of `FILES`, after which threads disagree about
    // descriptors. These two kinds change only which network and host name system calls see.
    Ok(unsafe { unshare_unsafe(kinds) }?)
}

/// Creates the port `eth0` in the calling thread's network. Reading it returns the packets that the
/// kernel sends, and the kernel receives what is written. Packets may be up to 64 KiB long, because
/// neither the kernel nor the device splits them into segments.
///
/// # Errors
/// Returns an error if the device cannot be opened (`ENOENT`, `EACCES`) or the port cannot be
/// created (`EPERM`).
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

/// Gives the calling thread real-time priority, so that busy ranks do not delay it.
///
/// # Errors
/// Returns `EPERM` without the capability CAP_SYS_NICE.
pub(crate) fn run_first() -> io::Result<()> {
    let priority = libc::sched_param { sched_priority: 50 };
    // SAFETY: 0 is the calling thread, and the call only reads `priority`.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) })
}

/// Makes the kernel kill the command's process when the thread that starts it ends.
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
