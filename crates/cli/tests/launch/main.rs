//! Tests `ringtree run` with shell scripts as ranks.

#![allow(clippy::unwrap_used)]

#[path = "../../../../tests/support/address.rs"]
mod address;
mod bars;
#[path = "../../../../tests/support/more_test_threads.rs"]
mod more_test_threads;
mod nccl_benchmark;
mod one_host;
mod output;
#[path = "../../../../tests/support/pty.rs"]
mod pty;
mod restarts;
mod several_hosts;
mod sharing;
mod terminal;
mod torchrun;
mod train_text;
mod words;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A stopped job must end within this time, long before its ranks would exit on their own.
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// Time limit for every wait in these tests.
const WAIT_LIMIT: Duration = Duration::from_secs(120);
const NO_PROCESSES: [u32; 0] = [];
const SECRET: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// Exit code, output and running time of a launcher.
#[derive(Debug)]
struct End {
    code: Option<i32>,
    stdout: String,
    stderr: String,
    took: Duration,
}

impl End {
    /// Returns the lines on standard error that the launcher wrote itself.
    fn messages(&self) -> Vec<&str> {
        self.stderr
            .lines()
            .filter(|line| line.starts_with("ringtree: "))
            .collect()
    }

    fn lines(&self) -> BTreeSet<&str> {
        self.stdout.lines().collect()
    }
}

/// Returns the command `ringtree run OPTIONS -- /bin/sh -c SCRIPT`, without the settings of this
/// process's environment.
fn launcher(options: &[&str], script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringtree"));
    command
        .arg("run")
        .args(options)
        .args(["--", "/bin/sh", "-c", script]);
    for name in ["RINGTREE_SECRET", "RINGTREE_SECRET_FILE", "OMP_NUM_THREADS"] {
        command.env_remove(name);
    }
    // SAFETY: the closure runs between fork and exec and makes only an async-signal-safe call on
    // plain integers.
    unsafe {
        command.pre_exec(|| {
            // These signals may be ignored if a shell runs the tests in the background.
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGTSTP] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        });
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Waits for a launcher in a thread. The test fails if the launcher does not exit in time.
fn wait_in_thread(command: &mut Command) -> thread::JoinHandle<End> {
    let child = command.spawn().unwrap();
    thread::spawn(move || wait(child))
}

fn wait(child: Child) -> End {
    let start = Instant::now();
    let id = child.id();
    let waiting = thread::spawn(move || child.wait_with_output().unwrap());
    while !waiting.is_finished() {
        if start.elapsed() > WAIT_LIMIT {
            signal(id, "KILL");
            panic!("the launcher did not exit: {:?}", waiting.join());
        }
        thread::sleep(Duration::from_millis(5));
    }
    let output = waiting.join().unwrap();
    End {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        took: start.elapsed(),
    }
}

fn run(options: &[&str], script: &str) -> End {
    wait(launcher(options, script).spawn().unwrap())
}

fn signal(process: u32, name: &str) {
    let status = Command::new("/bin/sh")
        .args(["-c", &format!("kill -{name} {process}")])
        .status()
        .unwrap();
    assert!(status.success());
}

/// Returns a sleep duration in seconds that no other process uses, so that it identifies the
/// processes of one test.
fn mark() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // All marks have the same length, so that none is a prefix of another.
    format!("1000.{}0{number:03}", std::process::id())
}

/// Returns the processes whose command line is `sleep MARK`.
fn sleepers(mark: &str) -> Vec<u32> {
    running(&format!("sleep\0{mark}\0"))
}

/// Returns the processes whose command line contains `text`. The command line of a zombie is empty.
fn running(text: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap();
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    ids.filter(|id| {
        let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(text)
    })
    .collect()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(
            start.elapsed() < WAIT_LIMIT,
            "timed out waiting until {what}"
        );
        thread::sleep(Duration::from_millis(5));
    }
}
