//! What rank 0 writes down about a run: one JSON object a line, under the run's id. A run that goes
//! on from a checkpoint goes on in the same file.

use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    /// The run's id.
    pub(crate) run: String,
    /// Optimizer steps that were taken.
    pub(crate) step: u64,
    /// The epoch that the step's batch was from.
    pub(crate) epoch: u64,
    /// The mean loss of the step's global batch.
    pub(crate) loss: f64,
    /// The mean loss of the validation sequences, where it was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) validation_loss: Option<f64>,
    /// The length of the averaged gradient, before clipping.
    pub(crate) gradient_norm: f64,
    /// The learning rate.
    pub(crate) learning_rate: f64,
    /// How long the step took.
    pub(crate) step_ms: f64,
    /// How long it waited for communication that backward did not hide.
    pub(crate) exposed_ms: f64,
    /// Ranks that took part.
    pub(crate) ranks: usize,
}

/// The file of a run's lines.
pub(crate) struct Metrics {
    path: PathBuf,
    run: String,
    file: File,
}

impl Metrics {
    /// Goes on with the lines of `run` in the file `path` up to `step`; what the file has of the
    /// run beyond is dropped, for those steps are taken once more. What others wrote stays.
    pub(crate) fn open(path: &Path, run: &str, step: u64) -> Result<Self, String> {
        let failed = |error| format!("cannot write the metrics {}: {error}", path.display());
        let old = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            // Not as if it were empty: it would be lost.
            Err(error) => {
                return Err(format!(
                    "cannot read the metrics {}: {error}",
                    path.display()
                ));
            }
        };
        let kept: String = old
            .split_inclusive('\n')
            .filter(|line| !is_outdated(line, run, step))
            .flat_map(|line| [line.trim_end_matches('\n'), "\n"])
            .collect();
        if let Some(directory) = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
        {
            fs::create_dir_all(directory).map_err(failed)?;
        }
        if kept != old {
            // In one step, so that a kill does not lose what there was.
            let new = path.with_extension("new");
            fs::write(&new, kept).map_err(failed)?;
            fs::rename(&new, path).map_err(failed)?;
        }
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            run: run.to_owned(),
            file,
        })
    }

    /// Adds a line.
    pub(crate) fn write(&mut self, line: &Line) -> Result<(), String> {
        let failed = |error| format!("cannot write the metrics {}: {error}", self.path.display());
        let mut text = serde_json::to_string(line).expect("invariant: a line is plain data");
        text.push('\n');
        self.file.write_all(text.as_bytes()).map_err(failed)
    }

    /// All lines of the run.
    pub(crate) fn lines(&self) -> Vec<Line> {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        text.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .filter(|line: &Line| line.run == self.run)
            .collect()
    }
}

/// Whether `line` is of `run` and beyond `step`, or all that a kill has left of a line.
fn is_outdated(line: &str, run: &str, step: u64) -> bool {
    match serde_json::from_str::<Line>(line) {
        Ok(line) => line.run == run && line.step > step,
        Err(_) => line.starts_with('{') && !line.ends_with('\n'),
    }
}

/// A new run's id.
pub(crate) fn new_run() -> String {
    // The only randomness of the standard library.
    format!("{:012x}", RandomState::new().build_hasher().finish() >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(run: &str, step: u64) -> Line {
        Line {
            run: run.into(),
            step,
            epoch: 0,
            loss: 2.5,
            validation_loss: None,
            gradient_norm: 1.0,
            learning_rate: 0.1,
            step_ms: 3.0,
            exposed_ms: 0.5,
            ranks: 2,
        }
    }

    #[test]
    fn a_resumed_run_goes_on_where_its_checkpoint_was() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/metrics.jsonl");
        let mut first = Metrics::open(&path, "a", 0).unwrap();
        for step in 1..=5 {
            first.write(&line("a", step)).unwrap();
        }
        // Killed in the middle of a line.
        write!(first.file, "{{\"run\":\"a\",\"st").unwrap();
        let mut second = Metrics::open(&path, "a", 3).unwrap();
        second.write(&line("a", 4)).unwrap();
        let steps: Vec<_> = second.lines().iter().map(|line| line.step).collect();
        assert_eq!(steps, [1, 2, 3, 4]);
        // Another run in the same file has its own lines, and leaves those of the first.
        let mut other = Metrics::open(&path, "b", 0).unwrap();
        other.write(&line("b", 1)).unwrap();
        assert_eq!(other.lines(), [line("b", 1)]);
        assert_eq!(Metrics::open(&path, "a", 2).unwrap().lines().len(), 2);
        assert_eq!(Metrics::open(&path, "b", 9).unwrap().lines().len(), 1);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        fs::write(&path, [0xFF, 0xFE]).unwrap();
        let message = Metrics::open(&path, "a", 0).err().unwrap();
        assert!(message.starts_with("cannot read the metrics "), "{message}");
        assert_eq!(fs::read(&path).unwrap(), [0xFF, 0xFE]);
    }
}
