//! What is beside the GPU on this machine.

use super::group;
use ringtree::device;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// How long a program, or the driver, may take to say what there is: a GPU that sleeps takes
/// seconds to wake.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whether there is a GPU, or why not; also if the driver never answers.
pub(super) fn find_gpu() -> Result<(), String> {
    let (tell, told) = channel();
    std::thread::spawn(move || tell.send(device::count().map(drop)));
    match told.recv_timeout(PATIENCE) {
        Ok(found) => found.map_err(|error| error.to_string()),
        Err(_) => Err(format!(
            "no CUDA here: the driver has not answered for {} s",
            PATIENCE.as_secs()
        )),
    }
}

/// Rows for the probe's table.
pub(super) fn facts() -> Vec<Vec<String>> {
    let row = |what: &str, value: String| vec![what.into(), value, String::new()];
    let mut rows = vec![row("MPS", mps())];
    let query = [
        "--query-gpu=driver_version,compute_mode",
        "--format=csv,noheader",
    ];
    if let Some(text) = output("nvidia-smi", &query)
        && let Some((version, mode)) = text.lines().next().and_then(|line| line.split_once(", "))
    {
        rows.push(row("driver", version.into()));
        rows.push(row("compute mode", mode.into()));
    }
    rows
}

/// Whether clients of this process's environment would find an MPS daemon.
fn mps() -> String {
    let folder = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY");
    let folder = folder.map_or_else(|| PathBuf::from("/tmp/nvidia-mps"), PathBuf::from);
    let tool = match found("nvidia-cuda-mps-control") {
        Some(_) => "the tool is here",
        None => "nor the tool",
    };
    match folder.join("control").exists() {
        true => format!("a daemon's pipe is in {}", folder.display()),
        false => format!("no daemon; {tool}"),
    }
}

fn found(program: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let mut paths = std::env::split_paths(&folders).map(|folder| folder.join(program));
    paths.find(|path| path.is_file())
}

/// What a program says, if it does so in time.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    group::said_within(command, PATIENCE)
}
