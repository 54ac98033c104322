//! Child processes that cannot outlive the process that started them.
//!
//! Three nets, from fine to coarse: the kernel kills a child when the thread that spawned it ends
//! ([`bind_to_parent`]); each child leads a process group of its own, so that one signal reaches
//! its descendants; and a [`Watchdog`], a tiny process in a session of its own, kills those groups
//! when the launcher itself was killed and could not.

use std::io::{self, PipeWriter, Read, Write};
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// The most process groups a watchdog guards at once.
const GROUPS_MAX: usize = 4096;

/// Tells the watchdog that a child is about to be made, which will tell it its own group.
const CHILD_FOLLOWS: i32 = 0;
/// Tells the watchdog that the child which was to follow never came to run its program.
const CHILD_FAILED: i32 = i32::MIN;

/// Whether this process was started with `signal` ignored, as `nohup` starts programs, or has set
/// it so: then it must stay ignored, in children too.
#[must_use]
pub(crate) fn is_ignored(signal: i32) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: with a null action the call changes nothing; it writes the present one to memory that
    // is valid for it, which is read only if it says that it did.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Stops this process as SIGTSTP does by default, and returns when it goes on. The system does not
/// stop a process that no shell could let go on: the first one of a container, and one whose group
/// has no parent in its session.
pub(crate) fn suspend() {
    let mut before = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: a sigaction of zeros is the default action with an empty mask. The first call writes
    // the present action to memory that is valid for it, and only if it has done so is that put
    // back. `raise` signals this thread, so the process stops before it returns.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGTSTP, &raw const default, before.as_mut_ptr()) == 0 {
            libc::raise(libc::SIGTSTP);
            libc::sigaction(libc::SIGTSTP, before.as_ptr(), std::ptr::null_mut());
        }
    }
}

/// Makes the child of `command` the leader of a process group of its own and ties its life to the
/// *thread* that will call `spawn`: when that thread ends, the kernel kills the child.
///
/// On a terminal such a group is in the background, so SIGTTOU is ignored in the child: a terminal
/// that stops background writers (`stty tostop`) would stop it for ever.
pub fn bind_to_parent(command: &mut Command) {
    bind(command, false);
}

/// As [`bind_to_parent`]; `in_session`: the child leads a session of its own, too, and so is a
/// group of its own for a scheduler that shares the cores among sessions.
fn bind(command: &mut Command, in_session: bool) {
    let parent = std::process::id();
    if !in_session {
        command.process_group(0);
    }
    let prepare = move || {
        // SAFETY: setsid, prctl, signal and getppid are async-signal-safe calls on plain integers;
        // they touch no memory of this process, and the child's one thread sets no other handler.
        unsafe {
            if in_session && libc::setsid() < 0 {
                return Err(io::Error::last_os_error());
            }
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            libc::signal(libc::SIGTTOU, libc::SIG_IGN);
            // The parent may have died before the request above took effect.
            if libc::getppid() as u32 != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
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
/// It shares neither this process's session nor its command line, so that it is not taken for a
/// rank. It sleeps in one `read` and ends with the value that started it, which reaps it: where
/// the first process of a container reaps nothing, an orphan would stay a zombie.
#[derive(Debug)]
pub(crate) struct Watchdog {
    telling: Option<PipeWriter>,
    process: libc::pid_t,
}

impl Watchdog {
    /// Starts the watchdog process.
    ///
    /// # Errors
    /// When the system refuses a pipe or a process.
    pub(crate) fn start() -> io::Result<Self> {
        let (listening, telling) = io::pipe()?;
        let arguments = argument_memory().unwrap_or(0..0);
        // SAFETY: the child makes only async-signal-safe calls, so it may follow a fork of many
        // threads. It runs `watch`, which never returns and leaves without exit handlers or
        // destructors.
        match unsafe { libc::fork() } {
            0 => watch(listening.as_raw_fd(), telling.as_raw_fd(), arguments),
            process if process < 0 => Err(io::Error::last_os_error()),
            process => Ok(Watchdog {
                telling: Some(telling),
                process,
            }),
        }
    }

    /// Spawns `command` as [`bind_to_parent`] does, `in_session`: in a session of its own. The
    /// child's process group is killed when this process dies: the child itself tells the watchdog
    /// before its program runs, so not even a process that the program starts at once, while this
    /// one is killed inside this call, is left over.
    ///
    /// The descriptors `inherited`, and no other child's, stay open in the child under the same
    /// numbers.
    ///
    /// # Errors
    /// When the child cannot be made or its program cannot be run; nothing is left to guard then.
    pub(crate) fn spawn(
        &mut self,
        mut command: Command,
        inherited: &[BorrowedFd<'_>],
        in_session: bool,
    ) -> io::Result<Child> {
        bind(&mut command, in_session);
        let telling = self.telling.as_ref().map(AsRawFd::as_raw_fd);
        let inherited: Vec<_> = inherited.iter().map(AsRawFd::as_raw_fd).collect();
        // SAFETY: the closure runs between fork and exec and makes only async-signal-safe system
        // calls on plain integers, and reads a list that it owns. The descriptors are open in the
        // child: they are borrowed until this call returns. The command is spawned in this call and
        // dropped at its end, so the closure never runs later, when the numbers may belong to other
        // files.
        unsafe {
            command.pre_exec(move || {
                for descriptor in &inherited {
                    if libc::fcntl(*descriptor, libc::F_SETFD, 0) != 0 {
                        return Err(io::Error::last_os_error());
                    }
                }
                if let Some(telling) = telling {
                    tell_own_group(telling);
                }
                Ok(())
            });
        }
        self.tell(CHILD_FOLLOWS);
        command.spawn().inspect_err(|_| self.tell(CHILD_FAILED))
    }

    /// Forgets `group`: called before its leader is reaped, since the number may then be reused.
    pub(crate) fn release(&mut self, group: i32) {
        self.tell(-group);
    }

    fn tell(&mut self, word: i32) {
        // A watchdog that was killed leaves the other two nets; there is nothing to do about it.
        if let Some(telling) = &mut self.telling {
            let _ = telling.write_all(&word.to_ne_bytes());
        }
    }
}

/// Tells the watchdog at the other end of `telling` to guard the group of the calling process, a
/// child between fork and exec.
fn tell_own_group(telling: libc::c_int) {
    // SAFETY: async-signal-safe system calls on plain integers, and a write from a live local of
    // the length given. A watchdog that was killed must not take the child along, so the signal
    // of a broken pipe is set aside meanwhile.
    unsafe {
        let word = libc::getpid().to_ne_bytes();
        let before = libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        libc::write(telling, word.as_ptr().cast(), word.len());
        libc::signal(libc::SIGPIPE, before);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.telling = None;
        // SAFETY: waits for the child that `start` made, for which no other code of this room
        // waits; a null status pointer is allowed. Where another part of the program has reaped
        // it, the call fails at once.
        while unsafe { libc::waitpid(self.process, std::ptr::null_mut(), 0) } < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
}

/// The process groups that a watchdog guards, on its stack: after a fork nothing is allocated.
struct Groups {
    /// 0 where there is none.
    guarded: [i32; GROUPS_MAX],
    /// Where the group stands that was told since a child was last announced.
    newest: Option<usize>,
}

impl Groups {
    const fn new() -> Self {
        Groups {
            guarded: [0; GROUPS_MAX],
            newest: None,
        }
    }

    /// Takes note of one word: a group to guard, its negative to forget it, or one of the two
    /// words about a child that follows.
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

/// Where this process's command line stands in its memory, as the kernel shows it to others.
fn argument_memory() -> Option<Range<usize>> {
    let status = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The fields are numbered from 1 and the second, in brackets, may itself contain spaces.
    let (_, from_third) = status.rsplit_once(") ")?;
    let mut fields = from_third.split_ascii_whitespace().skip(48 - 3);
    Some(fields.next()?.parse().ok()?..fields.next()?.parse().ok()?)
}

/// The life of the watchdog process, after the fork.
fn watch(listening: libc::c_int, telling: libc::c_int, arguments: Range<usize>) -> ! {
    // SAFETY: system calls on plain integers and a literal. Descriptor 0 becomes the pipe that is
    // listened to, and all others are closed, so that no socket, pipe or terminal of the launcher
    // is held open here. The kernel has said that the command line stands in `arguments`; that
    // memory belongs to this process alone since the fork, and nothing here reads it.
    unsafe {
        libc::setsid();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::prctl(libc::PR_SET_NAME, c"ringtree-watch".as_ptr());
        libc::close(telling);
        libc::dup2(listening, 0);
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
        // A shell may redirect to descriptors of one digit only.
        let script = format!("echo chosen >/proc/self/fd/{number}");
        let command = || {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", &script]).stderr(Stdio::null());
            command
        };
        let mut watchdog = Watchdog::start().unwrap();
        let mut spawn =
            |inherited: &[BorrowedFd<'_>]| watchdog.spawn(command(), inherited, false).unwrap();
        let (mut chosen, mut other) = (spawn(&[writing.as_fd()]), spawn(&[]));
        assert!(chosen.wait().unwrap().success());
        assert!(!other.wait().unwrap().success());
        drop(writing);
        assert_eq!(io::read_to_string(reading).unwrap(), "chosen\n");
    }

    #[test]
    fn the_watchdog_kills_guarded_groups_and_spares_released_ones() {
        let mut watchdog = Watchdog::start().unwrap();
        let mut sleeper = || {
            let mut command = Command::new("/bin/sleep");
            command.arg("60");
            watchdog.spawn(command, &[], true).unwrap()
        };
        let (mut guarded, mut released) = (sleeper(), sleeper());
        watchdog.release(released.id() as i32);
        let process = format!("/proc/{}", watchdog.process);
        assert!(std::fs::exists(&process).unwrap());
        drop(watchdog);
        assert!(!std::fs::exists(&process).unwrap(), "it was reaped");
        assert!(!guarded.wait().unwrap().success());
        assert!(released.try_wait().unwrap().is_none());
        released.kill().unwrap();
        released.wait().unwrap();
    }

    #[test]
    fn a_child_without_a_program_is_not_guarded_and_no_other_is_forgotten() {
        let mut groups = Groups::new();
        for word in [CHILD_FOLLOWS, 11, CHILD_FOLLOWS, 12, CHILD_FAILED] {
            groups.hear(word);
        }
        // This one could not even be forked, and told nothing.
        for word in [CHILD_FOLLOWS, CHILD_FAILED, CHILD_FOLLOWS, 13] {
            groups.hear(word);
        }
        assert_eq!(groups.guarded[..3], [11, 13, 0]);
        groups.hear(-11);
        assert_eq!(groups.guarded[..3], [0, 13, 0]);
        groups.hear(-11);
        assert_eq!(groups.guarded[..3], [0, 13, 0]);
    }

    #[test]
    fn a_child_that_runs_is_guarded_before_its_program_starts() {
        let (mut heard, telling) = io::pipe().unwrap();
        let mut watchdog = Watchdog {
            telling: Some(telling),
            // No child of this process.
            process: 1,
        };
        let mut child = watchdog
            .spawn(Command::new("/bin/true"), &[], false)
            .unwrap();
        let mut words = [0; 8];
        heard.read_exact(&mut words).unwrap();
        assert_eq!(words[..4], CHILD_FOLLOWS.to_ne_bytes());
        assert_eq!(words[4..], (child.id() as i32).to_ne_bytes());
        child.wait().unwrap();
        let missing = Command::new("/nowhere/at/all");
        watchdog.spawn(missing, &[], false).unwrap_err();
        drop(watchdog);
        let mut words = Vec::new();
        heard.read_to_end(&mut words).unwrap();
        assert_eq!(words.len(), 12);
        assert_eq!(words[8..], CHILD_FAILED.to_ne_bytes());
    }
}
