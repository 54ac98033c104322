//! Writes text with a trained model: `mingpt generate`.

use crate::command::Generate;
use crate::failure::Failure;
use crate::random::Stream;
use crate::sample::Sampler;
use crate::snapshot::{self, Job};
use ringtree::ddp::checkpoint::{Checkpoint, Checkpoints};
use std::io::{self, ErrorKind, Write};

/// Writes the prompt and the model's continuation to standard output, character by character.
pub(crate) fn generate(wanted: &Generate) -> Result<(), Failure> {
    let checkpoints = snapshot::checkpoints(&wanted.checkpoint, 1);
    let checkpoint = find(&checkpoints, wanted.step)?;
    let job = Job::of(&checkpoint.state)?;
    let model = job.model(&checkpoint)?;
    let prompt = &wanted.prompt;
    let mut sampler = Sampler::new(&model, &job.vocabulary, prompt, wanted.temperature)?;
    let loss = checkpoint.state.loss;
    let loss = loss.map_or(String::new(), |loss| format!(", validation loss {loss:.4}"));
    eprintln!("mingpt: the model of step {}{loss}", checkpoint.state.step);

    let mut stream = Stream::new(wanted.seed, "sample");
    let mut told = tell(prompt.as_bytes());
    for _ in 0..wanted.length {
        if told.is_err() {
            break;
        }
        told = tell(&[sampler.next(stream.unit())?]);
    }
    match told.and_then(|()| tell(b"\n")) {
        // A reader that has closed the output is not an error.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::work(format!("cannot write the text: {error}"))),
        Ok(()) => Ok(()),
    }
}

fn tell(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(bytes)?;
    out.flush()
}

/// Loads the checkpoint of `step`. If that is `None`, loads the best checkpoint or, if none is
/// known, the latest.
fn find(checkpoints: &Checkpoints, step: Option<u64>) -> Result<Checkpoint, Failure> {
    let best = match step {
        Some(step) => Some(step),
        None => checkpoints.best()?.map(|state| state.step),
    };
    if let Some(step) = best {
        return Ok(checkpoints.load(step)?);
    }
    let found = checkpoints.latest()?.ok_or_else(|| {
        Failure::work(format!(
            "there is no checkpoint in {}",
            checkpoints.location()
        ))
    })?;
    for warning in &found.warnings {
        eprintln!("mingpt: {warning}");
    }
    Ok(found.checkpoint)
}
