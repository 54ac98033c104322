//! Child processes that cannot outlive the process that started them.
//!
//! Three nets, from fine to coarse: the kernel kills a child when the thread that spawned it ends
//! ([`bind_to_parent`]); each child leads a process group of its own, so that one signal reaches
//! its descendants; and a [`Watchdog`], a tiny process in a session of its own, kills those groups
//! when the launcher itself was killed and could not.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The most process groups a watchdog guards at once.
const GROUPS_MAX: usize = 4096;

/// Makes the child of `command` the leader of a process group of its own and ties its life to the
/// *thread* that will call `spawn`: when that thread ends, the kernel kills the child.
///
/// With `inherit`, that descriptor, and no other child's, stays open in the child under the same
/// number. The caller keeps it open until `spawn` has returned.
pub fn bind_to_parent(command: &mut Command, inherit: Option<BorrowedFd<'_>>) {
    let inherited = inherit.map(|descriptor| descriptor.as_raw_fd());
    let parent = std::process::id();
    command.process_group(0);
    let prepare = move || {
        // SAFETY: prctl, getppid and fcntl are async-signal-safe system calls on plain integers;
        // they touch no memory of this process. A stale descriptor number only makes fcntl fail.
        unsafe {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the request above took effect.
            if libc::getppid() as u32 != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            if let Some(descriptor) = inherited
                && libc::fcntl(descriptor, libc::F_SETFD, 0) != 0
            {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec; it allocates nothing, takes no lock and
    // makes only the async-signal-safe calls above (`last_os_error` reads errno).
    unsafe {
        command.pre_exec(prepare);
    }
}

/// A process that kills the guarded process groups when this process is gone without a word.
///
/// It is no child of this process and shares neither its session nor its command line, so nobody
/// takes it for a rank. It sleeps in one `read` and ends with the value that started it.
#[derive(Debug)]
pub struct Watchdog {
    telling: Option<PipeWriter>,
    ended: PipeReader,
}

impl Watchdog {
    /// Starts the watchdog process.
    ///
    /// # Errors
    /// When the system refuses a pipe or a process.
    pub fn start() -> io::Result<Self> {
        let (listening, telling) = io::pipe()?;
        let (ended, ending) = io::pipe()?;
        let arguments = argument_memory().unwrap_or(0..0);
        // SAFETY: the child makes only async-signal-safe calls, so it may follow a fork of many
        // threads: setsid and fork, after which it ends at once; its own child runs `watch`,
        // which never returns. Both leave without exit handlers or destructors.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                libc::setsid();
                if libc::fork() == 0 {
                    let pipes = [listening.as_fd(), ending.as_fd(), telling.as_fd()];
                    watch(pipes.map(|pipe| pipe.as_raw_fd()), arguments);
                }
                libc::_exit(0);
            }
        }
        if child < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: waits for the child just started, for which nobody else waits; a null status
        // pointer is allowed.
        while unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) } < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
        Ok(Watchdog {
            telling: Some(telling),
            ended,
        })
    }

    /// From now on `group` is killed when this process dies.
    pub fn guard(&mut self, group: i32) {
        self.tell(group);
    }

    /// Forgets `group`: called before its leader is reaped, since the number may then be reused.
    pub fn release(&mut self, group: i32) {
        self.tell(-group);
    }

    fn tell(&mut self, word: i32) {
        // A watchdog that was killed leaves the other two nets; there is nothing to do about it.
        if let Some(telling) = &mut self.telling {
            let _ = telling.write_all(&word.to_ne_bytes());
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.telling = None;
        // Nobody writes to this pipe; it ends with the watchdog.
        let _ = self.ended.read(&mut [0]);
    }
}

/// Where this process's command line stands in its memory, as the kernel shows it to others.
fn argument_memory() -> Option<Range<usize>> {
    let status = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The fields are numbered from 1 and the second, in brackets, may itself contain spaces.
    let (_, from_third) = status.rsplit_once(") ")?;
    let mut fields = from_third.split_ascii_whitespace().skip(48 - 3);
    Some(fields.next()?.parse().ok()?..fields.next()?.parse().ok()?)
}

/// The life of the watchdog process, after the forks.
fn watch([listening, ending, telling]: [libc::c_int; 3], arguments: Range<usize>) -> ! {
    // SAFETY: system calls on plain integers and a literal. Descriptor 0 becomes the pipe that is
    // listened to, 1 the one whose end tells of this process's end, and all others are closed, so
    // that no socket, pipe or terminal of the launcher is held open here. The kernel has said that
    // the command line stands in `arguments`; that memory belongs to this process alone since the
    // fork, and nothing here reads it.
    unsafe {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::prctl(libc::PR_SET_NAME, c"ringtree-watch".as_ptr());
        libc::close(telling);
        libc::dup2(listening, 0);
        libc::dup2(ending, 1);
        libc::syscall(libc::SYS_close_range, 2, libc::c_uint::MAX, 0);
        let start = std::ptr::with_exposed_provenance_mut::<u8>(arguments.start);
        start.write_bytes(0, arguments.len());
    }
    let mut groups = [0_i32; GROUPS_MAX];
    // SAFETY: descriptor 0 is the pipe, owned by nobody else in this process.
    let mut pipe = ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(0) });
    let mut word = [0; 4];
    while pipe.read_exact(&mut word).is_ok() {
        let word = i32::from_ne_bytes(word);
        let (sought, replacement) = if word > 0 { (0, word) } else { (-word, 0) };
        if let Some(slot) = groups.iter_mut().find(|group| **group == sought) {
            *slot = replacement;
        }
    }
    for group in groups.into_iter().filter(|group| *group > 0) {
        // SAFETY: a system call on plain integers; the group is one the launcher still guarded.
        unsafe { libc::kill(-group, libc::SIGKILL) };
    }
    // SAFETY: ends this process without running the launcher's exit handlers.
    unsafe { libc::_exit(0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::process::Stdio;

    #[test]
    fn a_descriptor_is_inherited_by_the_chosen_child_only() {
        let (reading, writing) = io::pipe().unwrap();
        let number = writing.as_raw_fd();
        let script = format!("echo chosen >&{number}");
        let mut chosen = Command::new("/bin/sh");
        bind_to_parent(chosen.args(["-c", &script]), Some(writing.as_fd()));
        let mut other = Command::new("/bin/sh");
        bind_to_parent(other.args(["-c", &script]).stderr(Stdio::null()), None);
        assert!(chosen.status().unwrap().success());
        assert!(!other.status().unwrap().success());
        drop((chosen, other, writing));
        assert_eq!(io::read_to_string(reading).unwrap(), "chosen\n");
    }

    #[test]
    fn the_watchdog_kills_guarded_groups_and_spares_released_ones() {
        let sleeper = || {
            let mut command = Command::new("/bin/sleep");
            command.arg("60");
            bind_to_parent(&mut command, None);
            command.spawn().unwrap()
        };
        let (mut guarded, mut released) = (sleeper(), sleeper());
        let mut watchdog = Watchdog::start().unwrap();
        watchdog.guard(guarded.id() as i32);
        watchdog.guard(released.id() as i32);
        watchdog.release(released.id() as i32);
        drop(watchdog);
        assert!(!guarded.wait().unwrap().success());
        assert!(released.try_wait().unwrap().is_none());
        released.kill().unwrap();
        released.wait().unwrap();
    }
}
