use super::*;
use crate::ddp::Parameter;
use crate::dtype::Dtype;

/// Returns the value of a weight after two updates by `rule`, with gradients 1.5 and 0.5. The
/// weight starts at `start`, and its parameter has the shape `shape`.
fn updated(rule: AdamW, shape: &[usize], start: f32) -> f32 {
    let parameter = Parameter::new("weight", shape, Dtype::F32);
    let (mut weights, mut mean, mut square) = ([start], [0.0], [0.0]);
    for (step, gradient) in [(1, 1.5), (2, 0.5)] {
        rule.update(Part {
            parameter: &parameter,
            step,
            learning_rate: 0.1,
            weights: &mut weights,
            gradient: &[gradient],
            state: vec![&mut mean, &mut square],
        });
    }
    weights[0]
}

#[test]
fn updates_match_the_paper() {
    let rule = AdamW {
        betas: [0.9, 0.99],
        weight_decay: 0.5,
        decays_vectors: false,
        ..AdamW::default()
    };
    for (shape, decay) in [(&[1, 1][..], 0.5), (&[1], 0.0)] {
        let (mut weight, mut mean, mut square) = (-2.0f64, 0.0, 0.0);
        for (taken, gradient) in [(1, 1.5), (2, 0.5)] {
            mean = 0.9 * mean + 0.1 * gradient;
            square = 0.99 * square + 0.01 * gradient * gradient;
            let mean = mean / (1.0 - 0.9f64.powi(taken));
            let spread = (square / (1.0 - 0.99f64.powi(taken))).sqrt() + 1e-8;
            weight -= 0.1 * (mean / spread + decay * weight);
        }
        let got = updated(rule, shape, -2.0);
        assert!((f64::from(got) - weight).abs() < 1e-6, "{got} {weight}");
    }
}
