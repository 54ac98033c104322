//! Evaluates checkpoints in a separate process, so that no rank of the training waits for it.

use crate::evaluate;
use crate::failure::Failure;
use crate::files;
use crate::options::Config;
use crate::snapshot::{self, Job};
use crate::text::Text;
use ringtree::ddp::checkpoint::{Checkpoint, Checkpoints};
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Interval between checks for a new checkpoint.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A line in the file that a validator writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Evaluated {
    /// ID of the training.
    run: String,
    step: u64,
    validation_loss: f64,
    /// Number of validation sequences.
    sequences: usize,
    /// Duration of the evaluation in seconds.
    evaluation_s: f64,
}

/// Evaluates the newest checkpoint. Unless `once` is set, continues with each newer checkpoint
/// until the last one of the training.
pub(crate) fn validate(config: &Config, once: bool) -> Result<(), Failure> {
    let Some(folder) = &config.checkpoint else {
        return Err(Failure::usage("validate needs --checkpoint".into()));
    };
    let checkpoints = snapshot::checkpoints(folder, config.keep);
    let metrics = config.metrics.clone();
    let metrics = metrics.unwrap_or_else(|| folder.join("validation.jsonl"));
    let mut validator = Validator {
        config,
        checkpoints,
        metrics,
        evaluated: None,
        warned: Vec::new(),
        has_said_that_it_waits: false,
    };
    loop {
        if validator.look()? {
            return Ok(());
        }
        match (once, validator.evaluated) {
            (true, Some(_)) => return Ok(()),
            (true, None) => {
                let place = validator.checkpoints.location();
                return Err(Failure::work(format!("there is no checkpoint in {place}")));
            }
            (false, _) => validator.wait(),
        }
    }
}

struct Validator<'a> {
    config: &'a Config,
    checkpoints: Checkpoints,
    /// File to which the losses are appended.
    metrics: PathBuf,
    /// The step that was evaluated last.
    evaluated: Option<u64>,
    warned: Vec<String>,
    has_said_that_it_waits: bool,
}

impl Validator<'_> {
    /// Evaluates the newest checkpoint unless it has already been evaluated. Returns `true` if it
    /// is the last checkpoint of the training.
    fn look(&mut self) -> Result<bool, Failure> {
        let newest = self.checkpoints.newest_step()?;
        if newest.is_none() || newest == self.evaluated {
            return Ok(false);
        }
        let Some(found) = self.checkpoints.latest()? else {
            return Ok(false);
        };
        // While the newest checkpoint is damaged, every check finds the same older one and the same
        // warnings. A damaged checkpoint may be replaced under the same step number, so compare the
        // warnings and not the number.
        if found.warnings != self.warned {
            for warning in &found.warnings {
                eprintln!("mingpt: {warning}");
            }
            self.warned.clone_from(&found.warnings);
        }
        let step = found.checkpoint.state.step;
        if self.evaluated == Some(step) {
            return Ok(false);
        }
        let job = Job::of(&found.checkpoint.state)?;
        let started = Instant::now();
        let validation_loss = loss_of(&found.checkpoint, &job, self.config)?;
        println!("step {step} validation {validation_loss:.4}");
        let line = Evaluated {
            run: found.checkpoint.state.run_id,
            step,
            validation_loss,
            sequences: self.config.validation_sequences,
            evaluation_s: started.elapsed().as_secs_f64(),
        };
        write(&self.metrics, &line).map_err(|error| {
            let path = self.metrics.display();
            Failure::work(format!("cannot write the metrics {path}: {error}"))
        })?;
        self.evaluated = Some(step);
        Ok(job.has_ended(step))
    }

    /// Waits before the next check. The first time, prints a message about the wait.
    fn wait(&mut self) {
        if !std::mem::replace(&mut self.has_said_that_it_waits, true) {
            let place = self.checkpoints.location();
            match self.evaluated {
                // Name the directory, because the user may have misspelled it.
                None => eprintln!(
                    "mingpt: there is no checkpoint in {place} yet; waiting for the first"
                ),
                Some(_) => eprintln!(
                    "mingpt: waiting for newer checkpoints in {place}, until the training's last"
                ),
            }
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Returns the validation loss of the model in `checkpoint`, on the sequences of `config`.
fn loss_of(checkpoint: &Checkpoint, job: &Job, config: &Config) -> Result<f64, Failure> {
    let text = Text::load(config.text.as_deref(), job.config.block).map_err(Failure::usage)?;
    // In a different text, the validation part could contain characters from the training.
    job.check_fits(&Job::new(&job.config, &text))?;
    let model = job.model(checkpoint)?;
    let [sum, characters] =
        evaluate::loss_of_part(&model, &text, config.validation_sequences, 0, 1)?;
    Ok(sum / characters)
}

/// Appends `line` to the file `path`. Removes the lines of the same step and of later steps,
/// because the training has gone back or the step has been evaluated again.
fn write(path: &Path, line: &Evaluated) -> io::Result<()> {
    let old = match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        old => old?,
    };
    let is_outdated = |text: &&str| {
        let old = serde_json::from_str::<Evaluated>(text);
        old.is_ok_and(|old| old.run == line.run && old.step >= line.step)
    };
    if old.lines().any(|text| is_outdated(&text)) {
        let kept = old.lines().filter(|text| !is_outdated(text));
        let kept: String = kept.flat_map(|text| [text, "\n"]).collect();
        files::replace(path, &kept)?;
    }
    files::make_folder_of(path)?;
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    let text = serde_json::to_string(line).map_err(io::Error::other)?;
    file.write_all(format!("{text}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_has_one_line_and_other_trainings_lines_are_kept() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("validation.jsonl");
        let strange = r#"{"run":"a","step":9,"loss":1.0}"#;
        fs::write(&path, format!("{strange}\n")).unwrap();
        let line = |step, validation_loss| Evaluated {
            run: "a".into(),
            step,
            validation_loss,
            sequences: 8,
            evaluation_s: 0.5,
        };
        for (step, loss) in [(2, 3.0), (4, 2.0), (6, 1.0), (4, 2.5)] {
            write(&path, &line(step, loss)).unwrap();
        }
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], strange);
        let ours = lines[1..]
            .iter()
            .map(|text| serde_json::from_str(text).unwrap());
        let ours: Vec<Evaluated> = ours.collect();
        assert_eq!(ours, [line(2, 3.0), line(4, 2.5)]);
    }
}
