//! Runs MPS, NVIDIA's service that lets kernels of several processes run at the same time. The
//! benchmark uses a separate daemon with separate directories. The GPU's settings stay as they are.
//!
//! A separate process, the keeper, starts the daemon. The keeper has its own process group, so it
//! does not receive the terminal's signals. It stops the daemon when this benchmark asks it to, or
//! when the benchmark has exited for any reason.

use crate::rank::say;
use crate::world::Players;
use ringtree::internal::launch::bind_to_parent;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

const CONTROL: &str = "nvidia-cuda-mps-control";
/// The environment variable with the directory in which clients search for the daemon. If the
/// directory is empty, clients do not find any daemon.
pub(crate) const PIPES: &str = "CUDA_MPS_PIPE_DIRECTORY";
const LOGS: &str = "CUDA_MPS_LOG_DIRECTORY";
/// Maximum time that the daemon may take to start, and to stop.
const PATIENCE: Duration = Duration::from_secs(10);

/// The MPS daemon, which runs for as long as this value exists.
pub(crate) struct Mps {
    _keeper: Players,
    pub(crate) pipes: PathBuf,
}

/// Returns `true` if MPS is installed on this machine.
pub(crate) fn is_found() -> bool {
    let places = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&places).any(|place| place.join(CONTROL).is_file())
}

impl Mps {
    pub(crate) fn start() -> Result<Self, String> {
        let apart = |command: &mut Command| {
            command.process_group(0);
        };
        let keeper = Players::one("mps", "the MPS keeper", apart)?;
        let mut keeper = keeper.with_grace(3 * PATIENCE);
        let pipes = keeper.hear(1, 2 * PATIENCE)?.remove(0).into();
        Ok(Self {
            _keeper: keeper,
            pipes,
        })
    }

    /// Returns `true` if a process of this job has connected to the daemon.
    pub(crate) fn is_used(&self) -> bool {
        let listed = ask(&self.pipes, "get_server_list");
        listed.is_some_and(|list| list.bytes().any(|byte| byte.is_ascii_digit()))
    }
}

/// Sends the command `order` to the daemon and returns its answer, or `None` if it does not answer
/// in time.
fn ask(pipes: &Path, order: &str) -> Option<String> {
    let mut control = Command::new(CONTROL)
        .env(PIPES, pipes)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    // The program may have exited without reading the command. Its exit status shows this.
    let _ = writeln!(control.stdin.take()?, "{order}");
    let is_over = wait_until(|| !matches!(control.try_wait(), Ok(None)));
    if !is_over {
        let _ = control.kill();
    }
    let output = control.wait_with_output().ok()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    (is_over && output.status.success()).then_some(said)
}

/// Waits until `is_so` returns `true`. Returns `false` if this takes too long.
fn wait_until(mut is_so: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    true
}

/// Runs the keeper, which starts the daemon, waits until `told` is closed, and then stops the
/// daemon.
pub(crate) fn keep(told: &Receiver<String>) -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let (pipes, logs) = (folder.path().join("pipes"), folder.path().join("logs"));
    for directory in [&pipes, &logs] {
        std::fs::create_dir(directory).map_err(|error| error.to_string())?;
    }
    let mut daemon = Command::new(CONTROL);
    // If this process is killed, the daemon is killed too.
    bind_to_parent(&mut daemon);
    let mut daemon = daemon
        .arg("-f")
        .env(PIPES, &pipes)
        .env(LOGS, &logs)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot start {CONTROL}: {error}"))?;
    let has_ended = |daemon: &mut Child| !matches!(daemon.try_wait(), Ok(None));
    let answers = wait_until(|| has_ended(&mut daemon) || ask(&pipes, "get_server_list").is_some());
    let is_there = answers && !has_ended(&mut daemon);
    if is_there {
        say(&pipes.to_string_lossy());
        while told.recv().is_ok() {}
        // On `quit`, the daemon disconnects clients that are still connected after 5 seconds.
        ask(&pipes, "quit -t 5");
    }
    if !wait_until(|| has_ended(&mut daemon)) {
        // This also kills the daemon's servers.
        let _ = kill_process_group(Pid::from_child(&daemon), Signal::KILL);
        wait_until(|| has_ended(&mut daemon));
    }
    match is_there {
        true => Ok(()),
        false => Err(format!("{CONTROL} does not work on this machine")),
    }
}
