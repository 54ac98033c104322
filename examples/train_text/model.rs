//! Implements a character-level language model with a hand-written backward pass.
//!
//! A table of learned vectors embeds the last `context` tokens. The concatenated vectors pass
//! through layers of tanh units. The last layer computes a score (logit) for each possible next
//! token. All parameters are in one flat vector, and their gradients in another with the same
//! layout, so that one all-reduce averages them.

use super::matrix::{Matrix, add_product};
use super::random::Random;
use std::ops::Range;

/// The sizes of a model.
pub(crate) struct Shape {
    /// Number of tokens that the model sees at a time.
    pub(crate) context: usize,
    /// Number of different tokens.
    pub(crate) vocabulary: usize,
    /// Length of the learned vector of a token.
    pub(crate) embedding: usize,
    /// Size of each hidden layer.
    pub(crate) hidden: Vec<usize>,
}

/// Positions of a fully connected layer's parameters in the flat vector.
struct Layer {
    /// The matrix, which has one row per input.
    weights: Range<usize>,
    /// The bias, which has one value per output.
    bias: Range<usize>,
}

/// A model: the layout of its parameters, and the functions that compute with them.
pub(crate) struct Model {
    shape: Shape,
    /// The table of token vectors, which has one row per token.
    table: Range<usize>,
    layers: Vec<Layer>,
}

impl Model {
    /// Creates the model with these sizes.
    pub(crate) fn new(shape: Shape) -> Self {
        let mut end = 0;
        let mut take = |count: usize| {
            end += count;
            end - count..end
        };
        let table = take(shape.vocabulary * shape.embedding);
        let mut inputs = shape.context * shape.embedding;
        let mut layers = Vec::new();
        for &outputs in shape.hidden.iter().chain([&shape.vocabulary]) {
            layers.push(Layer {
                weights: take(inputs * outputs),
                bias: take(outputs),
            });
            inputs = outputs;
        }
        Model {
            shape,
            table,
            layers,
        }
    }

    /// Returns the length of the flat vector of parameters.
    pub(crate) fn parameter_count(&self) -> usize {
        let last = self.layers.last().expect("invariant: the output layer");
        last.bias.end
    }

    /// Draws initial parameters that keep the signals equally strong in all layers.
    pub(crate) fn initial_parameters(&self, seed: u64) -> Vec<f32> {
        let mut random = Random::new(seed);
        let mut parameters = vec![0.0; self.parameter_count()];
        parameters[self.table.clone()].fill_with(|| random.within(1.0));
        for layer in &self.layers {
            let inputs = layer.weights.len() / layer.bias.len();
            let bound = (3.0 / inputs as f32).sqrt();
            parameters[layer.weights.clone()].fill_with(|| random.within(bound));
        }
        parameters
    }

    /// Adds `weight` times the gradient of a micro-batch's summed loss to `gradients`. Returns
    /// `weight` times the summed loss. If `weight` is 1/n for n samples in total, the results of
    /// any number of micro-batches add up to the mean loss and its gradient.
    ///
    /// `contexts` contains the samples' contexts, concatenated, and `targets` the token that
    /// follows each context.
    pub(crate) fn accumulate_gradients(
        &self,
        parameters: &[f32],
        contexts: &[u8],
        targets: &[u8],
        weight: f32,
        gradients: &mut [f32],
    ) -> f32 {
        let activations = self.forward(parameters, contexts);
        let (inputs, logits) = activations.split_at(self.layers.len());
        let (loss, mut delta) = cross_entropy(&logits[0], targets, weight);
        for (layer, input) in self.layers.iter().zip(inputs).rev() {
            let outputs = layer.bias.len();
            let samples = targets.len();
            let input_matrix = Matrix::new(input, input.len() / samples);
            let delta_matrix = Matrix::new(&delta, outputs);
            let weight_gradients = &mut gradients[layer.weights.clone()];
            add_product(weight_gradients, input_matrix.transposed(), delta_matrix);
            for row in delta.chunks_exact(outputs) {
                add(&mut gradients[layer.bias.clone()], row);
            }
            let weights = Matrix::new(&parameters[layer.weights.clone()], outputs);
            let mut input_delta = vec![0.0; input.len()];
            add_product(&mut input_delta, delta_matrix, weights.transposed());
            delta = input_delta;
            if layer.weights.start > self.layers[0].weights.start {
                through_tanh(&mut delta, input);
            }
        }
        let table = &mut gradients[self.table.clone()];
        for (token, row) in contexts
            .iter()
            .zip(delta.chunks_exact(self.shape.embedding))
        {
            let start = usize::from(*token) * self.shape.embedding;
            add(&mut table[start..start + self.shape.embedding], row);
        }
        loss
    }

    /// Returns, for each token, the probability that it follows `context`. A lower `temperature`
    /// makes the likeliest tokens even more probable.
    pub(crate) fn predict(&self, parameters: &[f32], context: &[u8], temperature: f32) -> Vec<f32> {
        let mut activations = self.forward(parameters, context);
        let mut logits = activations.pop().expect("invariant: the output layer");
        logits.iter_mut().for_each(|score| *score /= temperature);
        softmax(&mut logits);
        logits
    }

    /// Returns the inputs of each layer and the logits, each as a matrix with one row per sample.
    fn forward(&self, parameters: &[f32], contexts: &[u8]) -> Vec<Vec<f32>> {
        let samples = contexts.len() / self.shape.context;
        let width = self.shape.embedding;
        let table = &parameters[self.table.clone()];
        let look_up = |token: &u8| &table[usize::from(*token) * width..][..width];
        let mut activations = vec![contexts.iter().flat_map(look_up).copied().collect()];
        for (place, layer) in self.layers.iter().enumerate() {
            let input: &Vec<f32> = &activations[place];
            let mut output = parameters[layer.bias.clone()].repeat(samples);
            add_product(
                &mut output,
                Matrix::new(input, input.len() / samples),
                Matrix::new(&parameters[layer.weights.clone()], layer.bias.len()),
            );
            if place + 1 < self.layers.len() {
                output.iter_mut().for_each(|value| *value = value.tanh());
            }
            activations.push(output);
        }
        activations
    }
}

/// Returns `weight` times the summed cross-entropy, and its derivative with respect to the logits.
fn cross_entropy(logits: &[f32], targets: &[u8], weight: f32) -> (f32, Vec<f32>) {
    let mut delta = logits.to_vec();
    let mut loss = 0.0;
    let vocabulary = logits.len() / targets.len();
    for (row, target) in delta.chunks_exact_mut(vocabulary).zip(targets) {
        softmax(row);
        let probability = &mut row[usize::from(*target)];
        loss -= f64::from(probability.max(f32::MIN_POSITIVE).ln());
        *probability -= 1.0;
        row.iter_mut().for_each(|value| *value *= weight);
    }
    ((loss * f64::from(weight)) as f32, delta)
}

/// Converts scores to probabilities.
fn softmax(scores: &mut [f32]) {
    let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        *score = (*score - highest).exp();
        sum += *score;
    }
    scores.iter_mut().for_each(|score| *score /= sum);
}

/// Converts derivatives with respect to the outputs of tanh to derivatives with respect to its
/// inputs.
fn through_tanh(delta: &mut [f32], outputs: &[f32]) {
    for (value, output) in delta.iter_mut().zip(outputs) {
        *value *= 1.0 - output * output;
    }
}

fn add(sum: &mut [f32], addends: &[f32]) {
    for (value, addend) in sum.iter_mut().zip(addends) {
        *value += addend;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXTS: &[u8] = &[0, 1, 2, 3, 4, 4, 1, 1, 0, 2, 3, 0];
    const TARGETS: &[u8] = &[3, 0, 2, 4];

    fn small_model() -> Model {
        Model::new(Shape {
            context: 3,
            vocabulary: 5,
            embedding: 4,
            hidden: vec![7, 6],
        })
    }

    /// Compares every gradient with the slope between two nearby losses.
    #[test]
    fn gradients_match_slopes_of_loss() {
        let model = small_model();
        let mut parameters = model.initial_parameters(1);
        let weight = 1.0 / TARGETS.len() as f32;
        let mut gradients = vec![0.0; parameters.len()];
        model.accumulate_gradients(&parameters, CONTEXTS, TARGETS, weight, &mut gradients);
        let loss = |parameters: &[f32]| -> f64 {
            let contexts = CONTEXTS.chunks_exact(3).zip(TARGETS);
            let losses = contexts.map(|(context, target)| {
                let probability = model.predict(parameters, context, 1.0)[usize::from(*target)];
                -f64::from(probability).ln()
            });
            losses.sum::<f64>() / TARGETS.len() as f64
        };
        for place in 0..parameters.len() {
            let before = parameters[place];
            parameters[place] = before + 5e-3;
            let above = loss(&parameters);
            parameters[place] = before - 5e-3;
            let slope = (above - loss(&parameters)) / 1e-2;
            parameters[place] = before;
            let error = (slope - f64::from(gradients[place])).abs();
            assert!(
                error < 1e-4 + 1e-3 * slope.abs(),
                "parameter {place}: slope {slope}, gradient {}",
                gradients[place]
            );
        }
        assert!(gradients.iter().filter(|value| value.abs() > 1e-4).count() > 100);
    }

    #[test]
    fn micro_batches_add_up_to_complete_batch() {
        let model = small_model();
        let parameters = model.initial_parameters(2);
        let mut whole = vec![0.0; parameters.len()];
        let mut parts = whole.clone();
        let loss = model.accumulate_gradients(&parameters, CONTEXTS, TARGETS, 0.25, &mut whole);
        let mut loss_of_parts = 0.0;
        for (contexts, targets) in CONTEXTS.chunks(6).zip(TARGETS.chunks(2)) {
            loss_of_parts +=
                model.accumulate_gradients(&parameters, contexts, targets, 0.25, &mut parts);
        }
        assert!((loss - loss_of_parts).abs() < 1e-6);
        for (whole, parts) in whole.iter().zip(&parts) {
            assert!((whole - parts).abs() < 1e-6, "{whole} and {parts}");
        }
    }

    #[test]
    fn probabilities_add_up_to_one_for_high_scores() {
        let mut scores = [1e30, -1e30, 1e30, 0.0];
        softmax(&mut scores);
        assert_eq!(scores, [0.5, 0.0, 0.5, 0.0]);
    }
}
