//! Records the metrics of a run. Rank 0 writes one JSON object per line. Each object includes the
//! ID of the run. A resumed run continues writing to the same file.

use super::parallel::DataParallel;
use crate::comm::Communicator;
use crate::error::{Error, Result};
use crate::whole_file;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// One line of the metrics file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// ID of the run.
    pub run: String,
    /// Number of completed steps.
    pub step: u64,
    /// Time, in seconds, since the previous line or, for the first line, since the file was opened.
    pub seconds: f64,
    /// Communication time in the step that the backward pass did not hide, in milliseconds.
    pub exposed_ms: f64,
    /// Size of the gradients that were averaged in the step, in bytes per rank.
    pub bytes: u64,
    /// Number of ranks.
    pub ranks: usize,
    /// Metrics that were passed to [`Metrics::write`], by name.
    #[serde(flatten)]
    pub numbers: BTreeMap<String, f64>,
}

/// The metrics file of a run. Only rank 0 writes to the file.
///
/// ```
/// use ringtree::ddp::{DataParallel, Metrics, Options};
///
/// # let scratch = tempfile::tempdir().expect("a scratch folder");
/// # let path = scratch.path().join("metrics.jsonl");
/// ringtree::simulate(2, |comm| {
///     let mut model = DataParallel::new(comm, [("weight", 1)], Options::new())?;
///     let mut metrics = Metrics::open(comm, path.clone(), "first try", 0)?;
///     for step in 0..3 {
///         model.report(0, &[1.0f32])?;
///         model.wait()?;
///         let loss = 1.0 / f64::from(step + 1);
///         metrics.write(&model, [("loss", loss), ("samples", 8.0)])?;
///     }
///     Ok::<_, ringtree::Error>(())
/// });
/// let lines = Metrics::read(&path, "first try")?;
/// assert_eq!(lines.len(), 3);
/// assert_eq!((lines[1].step, lines[1].bytes), (2, 4));
/// assert_eq!(lines[1].numbers["loss"], 0.5);
/// assert!(lines[1].numbers["samples_per_s"] > 0.0);
/// # Ok::<(), ringtree::Error>(())
/// ```
#[derive(Debug)]
pub struct Metrics {
    run: String,
    ranks: usize,
    /// `true` on rank 0.
    is_told: bool,
    file: Option<(File, PathBuf)>,
    since: Instant,
}

impl Metrics {
    /// Opens the file `path` so that writing the metrics of `run` continues after `step`.
    ///
    /// Removes the run's lines for later steps because these steps will be repeated. Also removes
    /// any partial line left behind by a process that was killed. Keeps the lines of other runs.
    /// [`Run::metrics`](super::checkpoint::Run::metrics) calls this function with the values from a
    /// checkpoint. If `path` is `None`, nothing is written, and [`Metrics::write`] only returns the
    /// lines.
    ///
    /// # Errors
    /// Returns [`ErrorKind::System`](crate::ErrorKind::System) on rank 0 if the file cannot be read
    /// or written.
    pub fn open(
        comm: &Communicator,
        path: impl Into<Option<PathBuf>>,
        run: &str,
        step: u64,
    ) -> Result<Self> {
        let path = path.into().filter(|_| comm.rank() == 0);
        let open = |path: PathBuf| open(&path, run, step).map(|file| (file, path));
        Ok(Self {
            run: run.to_owned(),
            ranks: comm.world_size(),
            is_told: comm.rank() == 0,
            file: path.map(open).transpose()?,
            since: Instant::now(),
        })
    }

    /// Writes a line about the step that `model` has just completed. Returns the line on rank 0 and
    /// `None` on the other ranks.
    ///
    /// `numbers` are named metrics, such as the loss on the global batch, the learning rate or the
    /// validation loss. If one of them is `samples` or `tokens`, the number that all ranks together
    /// have processed since the previous line, the line contains `samples_per_s` or `tokens_per_s`
    /// instead.
    ///
    /// # Errors
    /// Returns [`ErrorKind::System`](crate::ErrorKind::System) on rank 0 if the line cannot be
    /// written.
    pub fn write<'n>(
        &mut self,
        model: &DataParallel,
        numbers: impl IntoIterator<Item = (&'n str, f64)>,
    ) -> Result<Option<Line>> {
        if !self.is_told {
            return Ok(None);
        }
        let now = Instant::now();
        // Must not be 0, because an infinite rate could not be read back from JSON.
        let seconds = (now - self.since).as_secs_f64().max(1e-9);
        self.since = now;
        let named = |(name, number): (&str, f64)| match name {
            "samples" | "tokens" => (format!("{name}_per_s"), number / seconds),
            name => (name.to_owned(), number),
        };
        let bytes = model.statistics().iter().map(|bucket| bucket.bytes as u64);
        let line = Line {
            run: self.run.clone(),
            step: model.steps(),
            seconds,
            exposed_ms: model.exposed().as_secs_f64() * 1e3,
            bytes: bytes.sum(),
            ranks: self.ranks,
            numbers: numbers.into_iter().map(named).collect(),
        };
        if let Some((file, path)) = &mut self.file {
            let mut text = serde_json::to_string(&line).expect("invariant: a line is plain data");
            text.push('\n');
            let written = file.write_all(text.as_bytes());
            written.map_err(|error| cannot("write", path, &error))?;
        }
        Ok(Some(line))
    }

    /// Returns all lines of `run` in the file `path`, or an empty list if the file does not exist.
    ///
    /// # Errors
    /// Returns [`ErrorKind::System`](crate::ErrorKind::System) if the file cannot be read.
    pub fn read(path: impl AsRef<Path>, run: &str) -> Result<Vec<Line>> {
        let text = text_of(path.as_ref())?;
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        Ok(lines.filter(|line: &Line| line.run == run).collect())
    }
}

/// The fields that identify a line.
#[derive(Deserialize)]
struct Place {
    run: String,
    step: u64,
}

fn open(path: &Path, run: &str, step: u64) -> Result<File> {
    let failed = |error: std::io::Error| cannot("write", path, &error);
    let old = text_of(path)?;
    let kept: String = old
        .split_inclusive('\n')
        .filter(|line| !is_outdated(line, run, step))
        .flat_map(|line| [line.trim_end_matches('\n'), "\n"])
        .collect();
    whole_file::create_directory(whole_file::parent(path)).map_err(failed)?;
    if kept != old {
        // Replace the file atomically, so that no line is lost if the process is killed.
        whole_file::replace(path, &[kept.as_bytes()]).map_err(failed)?;
    }
    let mut options = OpenOptions::new();
    options.create(true).append(true).open(path).map_err(failed)
}

fn text_of(path: &Path) -> Result<String> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        // If the file were treated as empty, it would be overwritten.
        Err(error) => Err(cannot("read", path, &error)),
    }
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::io(
        format_args!("cannot {what} the metrics file {}", path.display()),
        error,
    )
}

/// Returns `true` if `line` belongs to a step of `run` after `step`, or if it is a partial line
/// left by a process that was killed.
fn is_outdated(line: &str, run: &str, step: u64) -> bool {
    match serde_json::from_str::<Place>(line) {
        Ok(place) => place.run == run && place.step > step,
        Err(_) => line.starts_with('{') && !line.ends_with('\n'),
    }
}

#[cfg(test)]
mod tests;
