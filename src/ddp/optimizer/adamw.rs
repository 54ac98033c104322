//! Implements the AdamW update rule.

use super::{Part, UpdateRule};

/// Adam with decoupled weight decay (Loshchilov and Hutter 2019, "Decoupled Weight Decay
/// Regularization", algorithm 2). The defaults are the same as in PyTorch.
///
/// ```
/// use ringtree::ddp::AdamW;
/// let rule = AdamW { weight_decay: 0.1, decays_vectors: false, ..AdamW::default() };
/// assert_eq!(rule.betas, [0.9, 0.999]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Decay rates for the running mean of the gradients and the running mean of their squares.
    pub betas: [f64; 2],
    /// Small term that is added to divisors to keep them above zero.
    pub epsilon: f64,
    /// Fraction of each weight that would be removed in a step with a learning rate of 1.
    pub weight_decay: f64,
    /// `true` if weight decay also applies to parameters with fewer than two dimensions, such as
    /// biases and the weights of normalization layers.
    pub decays_vectors: bool,
}

impl Default for AdamW {
    fn default() -> Self {
        Self {
            betas: [0.9, 0.999],
            epsilon: 1e-8,
            weight_decay: 0.01,
            decays_vectors: true,
        }
    }
}

impl UpdateRule for AdamW {
    fn name(&self) -> String {
        format!("{self:?}")
    }

    fn state(&self) -> &'static [&'static str] {
        &["mean", "square"]
    }

    fn update(&self, part: Part<'_>) {
        let Part {
            parameter,
            step,
            learning_rate,
            weights,
            gradient,
            mut state,
        } = part;
        let [means, squares] = &mut state[..] else {
            return;
        };
        // The running means start at zero, which biases them toward zero. Dividing them by these
        // factors corrects the bias.
        let shares = self.betas.map(|beta| 1.0 - beta.powf(step as f64));
        let decays = self.decays_vectors || parameter.shape.len() >= 2;
        let decay = if decays { self.weight_decay } else { 0.0 };
        let keep = (1.0 - learning_rate * decay) as f32;
        let length = (learning_rate / shares[0]) as f32;
        let square_share = shares[1] as f32;
        let [beta, square_beta] = self.betas.map(|beta| beta as f32);
        let epsilon = self.epsilon as f32;
        let memories = means.iter_mut().zip(squares.iter_mut());
        for ((weight, gradient), (mean, square)) in weights.iter_mut().zip(gradient).zip(memories) {
            *mean = beta * *mean + (1.0 - beta) * gradient;
            *square = square_beta * *square + (1.0 - square_beta) * gradient * gradient;
            let spread = (*square / square_share).sqrt() + epsilon;
            *weight = keep * *weight - length * *mean / spread;
        }
    }
}

#[cfg(test)]
mod tests;
