//! Finds the GPU driver on this machine, and whether MPS is running.

use super::group;
use ringtree::cuda;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Maximum time that a program or the driver may take to answer. A sleeping GPU takes seconds to
/// wake up.
const PATIENCE: Duration = Duration::from_secs(30);

/// Checks that there is a GPU. Returns a message if there is none or if the driver does not answer.
pub(super) fn find_gpu() -> Result<(), String> {
    let (tell, told) = channel();
    std::thread::spawn(move || tell.send(cuda::count().map(drop)));
    match told.recv_timeout(PATIENCE) {
        Ok(found) => found.map_err(|error| error.to_string()),
        Err(_) => Err(format!(
            "CUDA is not available: the driver did not answer within {} s",
            PATIENCE.as_secs()
        )),
    }
}

/// Returns the rows of the probe table that describe the driver and MPS.
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

/// Returns a text that states whether a client with this environment would find an MPS daemon.
fn mps() -> String {
    let folder = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY");
    let folder = folder.map_or_else(|| PathBuf::from("/tmp/nvidia-mps"), PathBuf::from);
    let tool = match found("nvidia-cuda-mps-control") {
        Some(_) => "nvidia-cuda-mps-control is installed",
        None => "nvidia-cuda-mps-control is not installed",
    };
    match folder.join("control").exists() {
        true => format!("daemon whose pipe is in {}", folder.display()),
        false => format!("no daemon; {tool}"),
    }
}

fn found(program: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let mut paths = std::env::split_paths(&folders).map(|folder| folder.join(program));
    paths.find(|path| path.is_file())
}

/// Returns the output of a program if it succeeds in time.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    group::output_within(command, PATIENCE)
}
