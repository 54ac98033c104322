//! `ringtree run`, the real binary, with shell programs as ranks.

#![allow(clippy::unwrap_used)]

#[path = "../../../../tests/support/address.rs"]
mod address;
mod bars;
mod beside_nccl;
#[path = "../../../../tests/support/more_test_threads.rs"]
mod more_test_threads;
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

/// A job ends long before its ranks would by themselves, on any machine.
const ENDS_WITHIN: Duration = Duration::from_secs(20);
/// No test waits longer for anything.
const PATIENCE: Duration = Duration::from_secs(120);
const NOBODY: [u32; 0] = [];
const SECRET: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// How a launcher ended.
#[derive(Debug)]
struct End {
    code: Option<i32>,
    stdout: String,
    stderr: String,
    took: Duration,
}

impl End {
    /// The lines of the launcher itself on standard error.
    fn told(&self) -> Vec<&str> {
        self.stderr
            .lines()
            .filter(|line| line.starts_with("ringtree: "))
            .collect()
    }

    fn lines(&self) -> BTreeSet<&str> {
        self.stdout.lines().collect()
    }
}

/// `ringtree run OPTIONS -- /bin/sh -c SCRIPT`, without settings from outside.
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
            // A shell that runs tests in the background may have made them ignored.
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

/// Stands by a launcher in a thread until it ends; fails the test if it does not.
fn stand_by(command: &mut Command) -> thread::JoinHandle<End> {
    let child = command.spawn().unwrap();
    thread::spawn(move || wait(child))
}

fn wait(child: Child) -> End {
    let start = Instant::now();
    let id = child.id();
    let waiting = thread::spawn(move || child.wait_with_output().unwrap());
    while !waiting.is_finished() {
        if start.elapsed() > PATIENCE {
            signal(id, "KILL");
            panic!("the launcher did not end: {:?}", waiting.join());
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

/// A number of seconds to sleep that no other process sleeps: a mark to find processes by.
fn mark() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // As many digits each time, so that none is the beginning of another.
    format!("1000.{}0{number:03}", std::process::id())
}

/// The processes whose command line is `sleep MARK`.
fn sleepers(mark: &str) -> Vec<u32> {
    running(&format!("sleep\0{mark}\0"))
}

/// The processes whose command line contains `text`; zombies have none.
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
        assert!(start.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}
