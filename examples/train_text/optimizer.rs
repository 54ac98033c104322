//! Implements Adam (Kingma, Ba, 2015) for one flat vector of parameters.
//!
//! The implementation uses only additions, products, quotients and square roots, which all machines
//! round in the same way. If the ranks have equal gradients, they therefore take the same step, to
//! the bit.

const FIRST_DECAY: f32 = 0.9;
const SECOND_DECAY: f32 = 0.99;
const FLOOR: f32 = 1e-8;
/// Fraction of the steps during which the learning rate rises to its peak.
const WARM_UP_SHARE: f32 = 0.05;

/// Running means of the gradients and of their squares.
pub(crate) struct Adam {
    first: Vec<f32>,
    second: Vec<f32>,
    /// Weight that the running means lack because they start at zero. It approaches 0.
    first_missing: f32,
    second_missing: f32,
}

impl Adam {
    /// Creates the state for `parameter_count` parameters before the first step.
    pub(crate) fn new(parameter_count: usize) -> Self {
        Adam {
            first: vec![0.0; parameter_count],
            second: vec![0.0; parameter_count],
            first_missing: 1.0,
            second_missing: 1.0,
        }
    }

    /// Moves `parameters` one step against `gradients`.
    pub(crate) fn step(&mut self, parameters: &mut [f32], gradients: &[f32], learning_rate: f32) {
        self.first_missing *= FIRST_DECAY;
        self.second_missing *= SECOND_DECAY;
        let rate = learning_rate / (1.0 - self.first_missing);
        let second_share = 1.0 / (1.0 - self.second_missing);
        let means = self.first.iter_mut().zip(&mut self.second);
        for ((parameter, gradient), (first, second)) in
            parameters.iter_mut().zip(gradients).zip(means)
        {
            *first += (1.0 - FIRST_DECAY) * (gradient - *first);
            *second += (1.0 - SECOND_DECAY) * (gradient * gradient - *second);
            *parameter -= rate * *first / ((*second * second_share).sqrt() + FLOOR);
        }
    }
}

/// Returns the learning rate of `step`. The learning rate rises linearly to `peak` and then falls
/// linearly.
pub(crate) fn learning_rate(peak: f32, step: usize, step_count: usize) -> f32 {
    let done = (step as f32 + 0.5) / step_count as f32;
    if done < WARM_UP_SHARE {
        peak * done / WARM_UP_SHARE
    } else {
        peak * (1.0 - done) / (1.0 - WARM_UP_SHARE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the first step, the bias correction makes the update as large as the learning rate.
    #[test]
    fn first_step_has_length_of_learning_rate() {
        let mut parameters = [1.0, 2.0, 3.0];
        Adam::new(3).step(&mut parameters, &[4.0, -0.01, 0.0], 0.1);
        for (parameter, expected) in parameters.iter().zip([0.9, 2.1, 3.0]) {
            assert!((parameter - expected).abs() < 1e-5, "{parameters:?}");
        }
    }

    #[test]
    fn optimizer_converges_to_minimum_of_quadratic() {
        let bottom = [3.0, -2.0];
        let mut parameters = [0.0, 0.0];
        let mut adam = Adam::new(2);
        for step in 0..500 {
            let gradients = [
                8.0 * (parameters[0] - bottom[0]),
                0.5 * (parameters[1] - bottom[1]),
            ];
            adam.step(&mut parameters, &gradients, learning_rate(0.2, step, 500));
        }
        for (parameter, bottom) in parameters.iter().zip(bottom) {
            assert!((parameter - bottom).abs() < 1e-2, "{parameters:?}");
        }
    }

    #[test]
    fn learning_rate_rises_then_falls_to_zero() {
        let rates: Vec<f32> = (0..100).map(|step| learning_rate(1.0, step, 100)).collect();
        assert!(rates[0] < 0.2 && rates[99] < 0.01);
        assert!(rates[..5].is_sorted());
        assert!(rates[5..].is_sorted_by(|before, after| before > after));
        assert!(
            learning_rate(1.0, 0, 1) > 0.0,
            "the learning rate of a single step must be positive"
        );
    }
}
