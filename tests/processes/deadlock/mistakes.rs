//! The usual mistakes in a training loop on several ranks.

use ringtree::ddp::checkpoint::{Checkpoint, Checkpoints, Directory, State};
use ringtree::ddp::{DataParallel, Options, Parameter};
use ringtree::{Communicator, Dtype, ReduceOp, Result};
use std::path::Path;

/// A mistake that only one rank makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// `if rank == 0 { all_reduce(loss) }`.
    LossOnOneRank,
    /// `if rank == 0 { save }`.
    SaveOnOneRank,
    SkippedStep,
    WaitTwice,
    /// Data of unequal length, without `join`.
    OutOfData,
}

pub(crate) const MISTAKES: [(&str, Mistake); 5] = [
    ("loss-on-one-rank", Mistake::LossOnOneRank),
    ("save-on-one-rank", Mistake::SaveOnOneRank),
    ("skipped-step", Mistake::SkippedStep),
    ("wait-twice", Mistake::WaitTwice),
    ("out-of-data", Mistake::OutOfData),
];

/// Runs steps with an all-reduce of the gradients and an all-reduce of the loss. In the third step,
/// one rank makes the mistake.
pub(crate) fn train(comm: &Communicator, mistake: Mistake, folder: &Path) -> Result<()> {
    let parameters = vec![
        Parameter::new("weight", &[64, 4], Dtype::F32),
        Parameter::new("bias", &[4], Dtype::F32),
    ];
    let losses = comm.duplicate()?.with_name("losses");
    let mut model = DataParallel::new(comm, parameters, Options::new())?;
    let checkpoints = Checkpoints::new(Directory::new(folder), 2);
    let is_wrong_one = comm.rank() == 0;
    for step in 0..5 {
        let goes_wrong = step == 2 && is_wrong_one;
        match mistake {
            Mistake::SkippedStep if goes_wrong => continue,
            Mistake::OutOfData if step >= 2 && is_wrong_one => break,
            _ => {}
        }
        for times in 0..2 {
            model.report(1, &[1.0f32; 4])?;
            model.report(0, &[1.0f32; 256])?;
            model.wait()?;
            if times == 0 && !(goes_wrong && mistake == Mistake::WaitTwice) {
                break;
            }
        }
        if mistake != Mistake::LossOnOneRank || step < 2 || is_wrong_one {
            losses.all_reduce(&mut [0.5f32], ReduceOp::Avg)?;
        }
        if mistake == Mistake::SaveOnOneRank && (step < 2 || is_wrong_one) {
            checkpoints.save_from(comm, &checkpoint(comm, step)?)?;
        }
    }
    losses.all_reduce(&mut [0.5f32], ReduceOp::Avg)
}

fn checkpoint(comm: &Communicator, step: u64) -> Result<Checkpoint> {
    let mut checkpoint = Checkpoint::new(State {
        step,
        ..State::default()
    });
    let own = format!("rank-{}/error", comm.rank());
    checkpoint.insert(&own, &[1], &[comm.rank() as f32])?;
    Ok(checkpoint)
}

/// Returns texts that the error of each rank contains in addition to `CIRCLE`.
pub(crate) fn expected_parts(mistake: Mistake) -> &'static [&'static str] {
    match mistake {
        Mistake::SaveOnOneRank => &[r#"on "gradients""#],
        _ => &[r#"on "losses""#, r#"on "gradients""#],
    }
}
