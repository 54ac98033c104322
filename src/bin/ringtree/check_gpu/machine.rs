//! What is beside the GPU on this machine.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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
    let sanitizer = sanitizer().unwrap_or_else(|| "not here".into());
    rows.push(row("compute-sanitizer", sanitizer));
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

/// Where compute-sanitizer is, if it is.
pub(super) fn sanitizer() -> Option<String> {
    let name = "compute-sanitizer";
    let toolkit = Path::new("/usr/local/cuda/bin").join(name);
    let path = found(name).or_else(|| toolkit.is_file().then_some(toolkit))?;
    Some(path.to_string_lossy().into_owned())
}

fn found(program: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let mut paths = std::env::split_paths(&folders).map(|folder| folder.join(program));
    paths.find(|path| path.is_file())
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    let command = command
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let output = command
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()
}
