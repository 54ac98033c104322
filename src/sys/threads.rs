//! What the threads of this process do.

use std::fs;

/// System calls in which a thread sleeps until a time of its own choice.
const TIMED: [i64; 2] = [libc::SYS_nanosleep, libc::SYS_clock_nanosleep];

/// Whether every other thread of this process is blocked in a system call that waits for something
/// else than a time: for another thread, a socket, a child. A thread that runs, is about to run, or
/// sleeps for a while may be about to do anything. False where the system does not say.
///
/// ```
/// let (tell, told) = std::sync::mpsc::channel::<()>();
/// let other = std::thread::spawn(move || told.recv().is_err());
/// while !ringtree::sys::threads::others_wait() {
///     std::thread::yield_now(); // it may not have come to that yet
/// }
/// drop(tell);
/// assert!(other.join().unwrap());
/// ```
#[must_use]
pub fn others_wait() -> bool {
    let Ok(threads) = fs::read_dir("/proc/self/task") else {
        return false;
    };
    let own = rustix::thread::gettid().as_raw_nonzero().to_string();
    threads.flatten().all(|thread| {
        if thread.file_name().to_str() == Some(&own) {
            return true;
        }
        match fs::read_to_string(thread.path().join("syscall")) {
            Ok(line) => is_waiting(&line),
            // A thread that has ended is no obstacle.
            Err(_) => !thread.path().exists(),
        }
    })
}

/// What the system says of a thread: `running`, or the number of its system call and more, which is
/// -1 if it is blocked outside of one.
fn is_waiting(line: &str) -> bool {
    let number = line.split_whitespace().next();
    let number = number.and_then(|number| number.parse::<i64>().ok());
    number.is_some_and(|number| number >= 0 && !TIMED.contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_runs_or_sleeps_for_a_while_is_not_waiting() {
        assert!(is_waiting("202 0x7f 0x80 0x0\n"));
        let timed = format!("{} 0x0 0x1", libc::SYS_clock_nanosleep);
        for line in ["running\n", "-1 0x7ffc 0x7f00", timed.as_str(), ""] {
            assert!(!is_waiting(line), "{line}");
        }
    }
}
