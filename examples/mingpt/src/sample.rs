//! Writes text with the model.

use crate::failure::Failure;
use crate::model::Gpt;
use crate::random::Stream;
use candle_core::{Device, IndexOp, Result, Tensor};

/// A model that continues a text.
pub(crate) struct Sampler<'a> {
    model: &'a Gpt,
    vocabulary: &'a [u8],
    /// The text so far.
    tokens: Vec<u32>,
    /// Values below 1 increase the probability of likely characters. 0 always selects the likeliest
    /// character.
    temperature: f64,
}

impl<'a> Sampler<'a> {
    /// Creates a sampler that continues `prompt`, or a line break if `prompt` is empty. The model's
    /// tokens are indices into `vocabulary`.
    pub(crate) fn new(
        model: &'a Gpt,
        vocabulary: &'a [u8],
        prompt: &str,
        temperature: f64,
    ) -> std::result::Result<Self, Failure> {
        let token = |byte: &u8| vocabulary.binary_search(byte).ok();
        let tokens = prompt.as_bytes().iter().filter_map(token);
        let mut tokens: Vec<_> = tokens.map(|at| at as u32).collect();
        if tokens.len() < prompt.len() {
            return Err(Failure::usage(unknown(prompt, vocabulary)));
        }
        if tokens.is_empty() {
            tokens.push(token(&b'\n').unwrap_or_default() as u32);
        }
        Ok(Self {
            model,
            vocabulary,
            tokens,
            temperature,
        })
    }

    /// Writes the next byte, which is selected by `unit`, a number from 0 (inclusive) to 1
    /// (exclusive).
    pub(crate) fn next(&mut self, unit: f64) -> Result<u8> {
        let seen = self.tokens.len().saturating_sub(self.model.block());
        let seen = &self.tokens[seen..];
        let sequence = Tensor::from_slice(seen, (1, seen.len()), &Device::Cpu)?;
        let logits = self.model.forward(&sequence, None)?.i(seen.len() - 1)?;
        let token = draw(&logits.to_vec1::<f32>()?, self.temperature, unit);
        self.tokens.push(token as u32);
        Ok(self.vocabulary[token])
    }

    /// Writes the next `length` characters.
    pub(crate) fn write(&mut self, length: usize, seed: u64) -> Result<String> {
        let mut stream = Stream::new(seed, "sample");
        let bytes = (0..length).map(|_| self.next(stream.unit()));
        let bytes = bytes.collect::<Result<Vec<u8>>>()?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Returns a message that lists the characters in `prompt` that the model does not know.
fn unknown(prompt: &str, vocabulary: &[u8]) -> String {
    let is_unknown = |character: &char| {
        let mut bytes = [0; 4];
        let bytes = character.encode_utf8(&mut bytes).as_bytes();
        !bytes.iter().all(|byte| vocabulary.contains(byte))
    };
    let mut characters: Vec<_> = prompt.chars().filter(is_unknown).collect();
    characters.sort_unstable();
    characters.dedup();
    let characters: Vec<_> = characters.iter().map(|one| format!("{one:?}")).collect();
    format!(
        "--prompt has {}, which the training text does not contain; use only characters of that \
         text",
        characters.join(", ")
    )
}

/// Returns the token at which the cumulative probability exceeds `unit`.
fn draw(logits: &[f32], temperature: f64, unit: f64) -> usize {
    let order = |one: &usize, other: &usize| logits[*one].total_cmp(&logits[*other]);
    let likeliest = (0..logits.len()).max_by(order).unwrap_or_default();
    if temperature == 0.0 {
        return likeliest;
    }
    let power = |logit: &f32| (f64::from(logit - logits[likeliest]) / temperature).exp();
    let mut left = unit * logits.iter().map(power).sum::<f64>();
    for (token, logit) in logits.iter().enumerate() {
        left -= power(logit);
        if left < 0.0 {
            return token;
        }
    }
    // Because of rounding, the probabilities may add up to slightly less than `unit`.
    likeliest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_temperature_favors_likely_tokens() {
        let logits = [1.0, 3.0, 2.0];
        let count = |temperature| {
            let drawn = (0..1000).map(|at| draw(&logits, temperature, f64::from(at) / 1000.0));
            drawn.filter(|token| *token == 1).count()
        };
        assert_eq!(count(0.0), 1000);
        assert!(
            count(0.5) > 850 && (600..700).contains(&count(1.0)),
            "{}",
            count(1.0)
        );
    }

    #[test]
    fn unknown_characters_are_named_once() {
        let message = unknown("né à né", b"\n n");
        assert!(message.contains("has 'à', 'é', which"), "{message}");
    }
}
