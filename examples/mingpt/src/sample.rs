//! Text that the model writes.

use crate::model::Gpt;
use crate::random::Stream;
use crate::text::Text;
use candle_core::{Device, IndexOp, Result, Tensor};

/// Characters that it writes.
const LENGTH: usize = 300;
/// Below 1, likely characters are drawn more often than the model would have it.
const TEMPERATURE: f64 = 0.7;

/// Lets the model go on from a line break.
pub(crate) fn write(model: &Gpt, text: &Text, seed: u64) -> Result<String> {
    let mut stream = Stream::new(seed, "sample");
    let start = text.vocabulary().iter().position(|byte| *byte == b'\n');
    let mut tokens = vec![start.unwrap_or(0) as u32];
    for _ in 0..LENGTH {
        let seen = &tokens[tokens.len().saturating_sub(model.block())..];
        let sequence = Tensor::from_slice(seen, (1, seen.len()), &Device::Cpu)?;
        let logits = model
            .forward(&sequence)?
            .i(seen.len() - 1)?
            .to_vec1::<f32>()?;
        tokens.push(draw(&logits, stream.unit()));
    }
    let bytes: Vec<u8> = tokens[1..].iter().map(|token| text.byte(*token)).collect();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The token at the share `unit` of all probability.
fn draw(logits: &[f32], unit: f64) -> u32 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let power = |logit: &f32| (f64::from(logit - largest) / TEMPERATURE).exp();
    let mut left = unit * logits.iter().map(power).sum::<f64>();
    for (token, logit) in (0..).zip(logits) {
        left -= power(logit);
        if left < 0.0 {
            return token;
        }
    }
    // Rounding may leave a little.
    logits.len() as u32 - 1
}
