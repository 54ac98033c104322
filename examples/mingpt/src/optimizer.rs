//! Configures the optimizer and the schedule of its learning rate.

use ringtree::ddp::AdamW;

/// Final learning rate, as a fraction of the peak.
const FINAL_RATE: f64 = 0.1;

/// Returns the update rule. Biases and norms have no weight decay.
pub(crate) fn rule(weight_decay: f64) -> AdamW {
    AdamW {
        betas: [0.9, 0.99],
        weight_decay,
        decays_vectors: false,
        ..AdamW::default()
    }
}

/// Returns the learning rate of `step`. The learning rate rises linearly to `highest` and then
/// falls to a tenth of it along half a cosine (Loshchilov, Hutter, 2017).
pub(crate) fn learning_rate(highest: f64, step: u64, warmup: u64, steps: u64) -> f64 {
    if step < warmup {
        return highest * (step + 1) as f64 / warmup as f64;
    }
    let rest = steps.saturating_sub(warmup).max(1);
    let gone = ((step - warmup) as f64 / rest as f64).min(1.0);
    let height = (1.0 + (std::f64::consts::PI * gone).cos()) / 2.0;
    highest * (FINAL_RATE + (1.0 - FINAL_RATE) * height)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learning_rate_rises_and_falls() {
        let rate = |step| learning_rate(1.0, step, 10, 110);
        assert!((rate(0) - 0.1).abs() < 1e-12 && (rate(9) - 1.0).abs() < 1e-12);
        assert!((rate(60) - 0.55).abs() < 1e-12 && (rate(110) - 0.1).abs() < 1e-12);
    }
}
