//! Computes the validation loss.

use crate::model::Gpt;
use crate::text::Text;
use candle_core::Result as CandleResult;
use ringtree::{Communicator, ReduceOp};

/// Number of sequences in a forward pass.
const SEQUENCES_AT_ONCE: usize = 16;

/// Splits `count` validation sequences into `ranks` parts. Returns the sum of the losses of all
/// characters in part `rank`, and the number of these characters.
pub(crate) fn loss_of_part(
    model: &Gpt,
    text: &Text,
    count: usize,
    rank: usize,
    ranks: usize,
) -> CandleResult<[f64; 2]> {
    let share = |rank: usize, count: usize| rank * count / ranks;
    let part = |count| share(rank, count)..share(rank + 1, count);
    let mut sum = [0.0, 0.0];
    let Some((sequences, targets)) = text.validation(count, part)? else {
        return Ok(sum);
    };
    let all = sequences.dim(0)?;
    for start in (0..all).step_by(SEQUENCES_AT_ONCE) {
        let rows = SEQUENCES_AT_ONCE.min(all - start);
        let (shown, next) = (
            sequences.narrow(0, start, rows)?,
            targets.narrow(0, start, rows)?,
        );
        let characters = shown.elem_count() as f64;
        let loss = model.loss(&shown, &next, None)?.to_scalar::<f32>()?;
        sum[0] += f64::from(loss) * characters;
        sum[1] += characters;
    }
    Ok(sum)
}

/// Returns the mean loss on `count` validation sequences, which are divided among the ranks.
pub(crate) fn loss(
    comm: &Communicator,
    model: &Gpt,
    text: &Text,
    count: usize,
) -> Result<f64, crate::failure::Failure> {
    let mut sum = loss_of_part(model, text, count, comm.rank(), comm.world_size())?;
    comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    Ok(sum[0] / sum[1])
}
