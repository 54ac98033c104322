//! Starts child processes that cannot outlive the process that starts them.
//!
//! There are three safeguards, ordered from fine to coarse. The kernel kills a child when the
//! thread that spawned it ends ([`bind_to_parent`]). Each child leads its own process group, so
//! that a single signal also reaches its descendants. A [`Watchdog`], which is a tiny process in
//! its own session, kills those groups if the launcher itself was killed and could not do so.

use std::io::{self, PipeWriter, Read, Write};
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// Maximum number of process groups that a watchdog guards at the same time.
const GROUPS_MAX: usize = 4096;

/// The word that announces a child to the watchdog. After this word, the child sends its own group.
const CHILD_FOLLOWS: i32 = 0;
/// The word that reports that the announced child never ran its program.
const CHILD_FAILED: i32 = i32::MIN;

/// Returns `true` if this process ignores `signal`, either because it was started this way, for
/// example by `nohup`, or because it has changed the setting. In that case, this process and its
/// children must continue to ignore the signal.
#[must_use]
pub(crate) fn is_ignored(signal: i32) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: with a null action, the call changes nothing. It writes the current action to memory
    // that is valid for it, which is read only if the call reports success.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Stops this process, as SIGTSTP does by default, and returns when the process resumes. The system
/// does not stop a process that no shell could resume, such as the first process in a container, or
/// a process whose group has no parent in its session.
pub(crate) fn suspend() {
    let mut before = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: a sigaction of zeros is the default action with an empty mask. The first call writes
    // the current action to memory that is valid for it, and that action is restored only if the
    // call succeeded. `raise` signals this thread, so the process stops before it returns.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGTSTP, &raw const default, before.as_mut_ptr()) == 0 {
            libc::raise(libc::SIGTSTP);
            libc::sigaction(libc::SIGTSTP, before.as_ptr(), std::ptr::null_mut());
        }
    }
}

/// Makes the child of `command` the leader of its own process group, and ties its lifetime to the
/// *thread* that will call `spawn`. When that thread ends, the kernel kills the child.
///
/// On a terminal, such a process group is in the background. With `stty tostop`, a terminal would
/// stop such a child forever when it writes, so the child ignores SIGTTOU.
pub fn bind_to_parent(command: &mut Command) {
    bind(command, false);
}

/// Like [`bind_to_parent`]. If `in_session` is `true`, the child also leads its own session, so
/// that a scheduler that divides the cores among sessions treats the child as a separate group.
fn bind(command: &mut Command, in_session: bool) {
    let parent = std::process::id();
    if !in_session {
        command.process_group(0);
    }
    let prepare = move || {
        // SAFETY: setsid, prctl, signal and getppid are async-signal-safe calls on plain integers.
        // They touch no memory of this process, and the child's one thread sets no other handler.
        unsafe {
            if in_session && libc::setsid() < 0 {
                return Err(io::Error::last_os_error());
            }
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            libc::signal(libc::SIGTTOU, libc::SIG_IGN);
            // The parent may have exited before the request above took effect.
            if libc::getppid() as u32 != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
        }
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec. It allocates nothing, takes no lock and makes
    // only the async-signal-safe calls above (`last_os_error` reads errno).
    unsafe {
        command.pre_exec(prepare);
    }
}

/// A process that kills the process groups that it guards if this process ends without releasing
/// them.
///
/// The watchdog has neither the session nor the command line of this process, so that it is not
/// mistaken for a rank. It sleeps in a single `read` and exits when the `Watchdog` value is
/// dropped, which also reaps the process. If it were orphaned in a container whose first process
/// does not reap children, it would remain as a zombie.
#[derive(Debug)]
pub(crate) struct Watchdog {
    writer: Option<PipeWriter>,
    process: libc::pid_t,
}

impl Watchdog {
    /// Starts the watchdog process.
    ///
    /// # Errors
    /// Returns the operating system's error if it cannot create a pipe or a process.
    pub(crate) fn start() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        let arguments = argument_memory().unwrap_or(0..0);
        // SAFETY: the child makes only async-signal-safe calls, so it may follow a fork of many
        // threads. It runs `watch`, which never returns and exits without exit handlers or
        // destructors.
        match unsafe { libc::fork() } {
            0 => watch(reader.as_raw_fd(), writer.as_raw_fd(), arguments),
            process if process < 0 => Err(io::Error::last_os_error()),
            process => Ok(Watchdog {
                writer: Some(writer),
                process,
            }),
        }
    }

    /// Spawns `command` as described for [`bind_to_parent`], and in its own session if `in_session`
    /// is `true`. The child's process group is killed when this process dies. The child itself
    /// notifies the watchdog before its program runs. So no process survives, even if the program
    /// immediately starts another process while this process is killed inside this call.
    ///
    /// The descriptors in `inherited` stay open in this child, under the same numbers, but not in
    /// any other child.
    ///
    /// # Errors
    /// Returns the operating system's error if the child cannot be created or its program cannot be
    /// run. In that case, there is nothing to guard.
    pub(crate) fn spawn(
        &mut self,
        mut command: Command,
        inherited: &[BorrowedFd<'_>],
        in_session: bool,
    ) -> io::Result<Child> {
        bind(&mut command, in_session);
        let writer = self.writer.as_ref().map(AsRawFd::as_raw_fd);
        let inherited: Vec<_> = inherited.iter().map(AsRawFd::as_raw_fd).collect();
        // SAFETY: the closure runs between fork and exec, makes only async-signal-safe system calls
        // on plain integers, and reads a list that it owns. The descriptors are open in the child:
        // they are borrowed until this call returns. The command is spawned in this call and
        // dropped at its end, so the closure never runs later, when the numbers may belong to other
        // files.
        unsafe {
            command.pre_exec(move || {
                for descriptor in &inherited {
                    if libc::fcntl(*descriptor, libc::F_SETFD, 0) != 0 {
                        return Err(io::Error::last_os_error());
                    }
                }
                if let Some(writer) = writer {
                    send_own_group(writer);
                }
                Ok(())
            });
        }
        self.send_word(CHILD_FOLLOWS);
        command
            .spawn()
            .inspect_err(|_| self.send_word(CHILD_FAILED))
    }

    /// Stops guarding `group`. Call this method before the leader of the group is reaped, because
    /// the group's ID may be reused afterwards.
    pub(crate) fn release(&mut self, group: i32) {
        self.send_word(-group);
    }

    fn send_word(&mut self, word: i32) {
        // Ignore a failure. If the watchdog was killed, the other two safeguards remain, and
        // nothing else can be done.
        if let Some(writer) = &mut self.writer {
            let _ = writer.write_all(&word.to_ne_bytes());
        }
    }
}

/// Sends the process group of the calling process, which is a child between fork and exec, to the
/// watchdog that reads the other end of `writer`.
fn send_own_group(writer: libc::c_int) {
    // SAFETY: async-signal-safe system calls on plain integers, and a write from a live local
    // variable of the given length. A watchdog that was killed must not kill the child too, so the
    // signal of a broken pipe is ignored meanwhile.
    unsafe {
        let word = libc::getpid().to_ne_bytes();
        let before = libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        libc::write(writer, word.as_ptr().cast(), word.len());
        libc::signal(libc::SIGPIPE, before);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.writer = None;
        // SAFETY: waits for the child that `start` created, for which no other code of this module
        // waits; a null status pointer is allowed. If another part of the program has reaped it,
        // the call fails immediately.
        while unsafe { libc::waitpid(self.process, std::ptr::null_mut(), 0) } < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
}

/// The process groups that a watchdog guards. They are stored on its stack, because nothing may be
/// allocated after a fork.
struct Groups {
    /// The guarded groups. An entry that is 0 is free.
    guarded: [i32; GROUPS_MAX],
    /// Index of the group that has arrived since a child was last announced.
    newest: Option<usize>,
}

impl Groups {
    const fn new() -> Self {
        Groups {
            guarded: [0; GROUPS_MAX],
            newest: None,
        }
    }

    /// Processes one word, which is a group to guard, the negative of a group to release, or one of
    /// the two words about an announced child.
    fn hear(&mut self, word: i32) {
        match word {
            CHILD_FOLLOWS => self.newest = None,
            CHILD_FAILED => {
                if let Some(place) = self.newest.take() {
                    self.guarded[place] = 0;
                }
            }
            group if group > 0 => self.newest = self.replace(0, group),
            released => {
                self.replace(-released, 0);
            }
        }
    }

    fn replace(&mut self, sought: i32, with: i32) -> Option<usize> {
        let place = self.guarded.iter().position(|group| *group == sought)?;
        self.guarded[place] = with;
        Some(place)
    }
}

/// Returns the address range of this process's command line, which the kernel shows to other
/// processes.
fn argument_memory() -> Option<Range<usize>> {
    let status = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The fields are numbered from 1. The second field, in parentheses, may contain spaces.
    let (_, from_third) = status.rsplit_once(") ")?;
    let mut fields = from_third.split_ascii_whitespace().skip(48 - 3);
    Some(fields.next()?.parse().ok()?..fields.next()?.parse().ok()?)
}

/// Runs the watchdog process after the fork.
fn watch(reader: libc::c_int, writer: libc::c_int, arguments: Range<usize>) -> ! {
    // SAFETY: system calls on plain integers and a literal. Descriptor 0 becomes the pipe that is
    // read, and all others are closed, so that no socket, pipe or terminal of the launcher is held
    // open here. The kernel has reported that the command line is stored in `arguments`. Since the
    // fork, that memory belongs only to this process, and nothing here reads it.
    unsafe {
        libc::setsid();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::prctl(libc::PR_SET_NAME, c"ringtree-watch".as_ptr());
        libc::close(writer);
        libc::dup2(reader, 0);
        libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0);
        let start = std::ptr::with_exposed_provenance_mut::<u8>(arguments.start);
        start.write_bytes(0, arguments.len());
    }
    let mut groups = Groups::new();
    // SAFETY: descriptor 0 is the pipe, which no other value in this process owns.
    let mut pipe = ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(0) });
    let mut word = [0; 4];
    while pipe.read_exact(&mut word).is_ok() {
        groups.hear(i32::from_ne_bytes(word));
    }
    for group in groups.guarded.into_iter().filter(|group| *group > 0) {
        // SAFETY: a system call on plain integers; the launcher still guarded this group.
        unsafe { libc::kill(-group, libc::SIGKILL) };
    }
    // SAFETY: ends this process without running the launcher's exit handlers.
    unsafe { libc::_exit(0) }
}

#[cfg(test)]
mod tests;
