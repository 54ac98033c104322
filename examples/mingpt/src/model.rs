//! Implements a small GPT (Radford et al., 2018): pre-norm blocks of causal self-attention and a
//! perceptron.
//!
//! All activations are matrices with one row per character. Parameters are right operands, so that
//! backward computes their gradients as early as possible.

use crate::options::Config;
use crate::random::Stream;
use candle_core::{D, Result, Tensor};
use candle_nn::{Init, VarBuilder, VarMap};

/// Constant that keeps the square root of a variance above zero.
const EPSILON: f32 = 1e-5;
/// Standard deviation of initial weights, as in GPT-2.
const SPREAD: f64 = 0.02;
/// Width of a block's perceptron, as a multiple of the model's width.
const EXPANSION: usize = 4;

/// The sizes of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Number of different characters.
    pub(crate) vocabulary: usize,
    /// Maximum number of characters that the model sees.
    pub(crate) block: usize,
    /// Length of a character's vector.
    pub(crate) width: usize,
    /// Number of blocks.
    pub(crate) layers: usize,
    /// Number of attention heads per block.
    pub(crate) heads: usize,
}

impl Shape {
    /// Returns the sizes for a training with the settings `config` on a text with this vocabulary.
    pub(crate) fn of(config: &Config, vocabulary: &[u8]) -> Self {
        Self {
            vocabulary: vocabulary.len(),
            block: config.block,
            width: config.width,
            layers: config.layers,
            heads: config.heads,
        }
    }
}

/// Dropout (Srivastava et al., 2014) of the embedding's activations and of the output of each half
/// of a block. The choice of dropped activations depends only on the seed, the step and the
/// sequence, not on the rank or on the other sequences in the batch.
pub(crate) struct Dropout {
    share: f64,
    /// A random stream for each sequence.
    streams: Vec<Stream>,
}

impl Dropout {
    /// Creates the dropout of a fraction `share` of the activations for the sequences with the
    /// indices `numbers` in `step`. Returns `None` if `share` is 0.
    pub(crate) fn new(share: f64, seed: u64, step: u64, numbers: &[usize]) -> Option<Self> {
        let stream = Stream::new(seed, "dropout").of(step);
        (share > 0.0).then(|| Self {
            share,
            streams: numbers.iter().map(|one| stream.of(*one as u64)).collect(),
        })
    }

    /// Drops activations in `hidden`, which is the output at the point `place` in the model. Scales
    /// the remaining ones to keep the mean.
    fn apply(this: Option<&Self>, place: usize, hidden: Tensor) -> Result<Tensor> {
        let Some(Self { share, streams }) = this else {
            return Ok(hidden);
        };
        let count = hidden.elem_count() / streams.len();
        let kept = (1.0 / (1.0 - share)) as f32;
        let mut factors = Vec::with_capacity(hidden.elem_count());
        for stream in streams {
            let mut stream = stream.of(place as u64);
            factors.extend((0..count).map(|_| match stream.unit() < *share {
                true => 0.0,
                false => kept,
            }));
        }
        hidden.mul(&Tensor::from_vec(factors, hidden.shape(), hidden.device())?)
    }
}

/// The model.
pub(crate) struct Gpt {
    tokens: Tensor,
    positions: Tensor,
    blocks: Vec<Block>,
    norm: Norm,
    head: Tensor,
    /// 0 for each character and the characters before it, minus infinity for the characters after
    /// it.
    mask: Tensor,
    shape: Shape,
}

struct Block {
    attention_norm: Norm,
    attention: Linear,
    attention_out: Linear,
    perceptron_norm: Norm,
    perceptron: Linear,
    perceptron_out: Linear,
}

struct Linear {
    weight: Tensor,
    bias: Tensor,
}

struct Norm {
    weight: Tensor,
    bias: Tensor,
}

impl Gpt {
    /// Creates the model from the tensors that `builder` provides.
    pub(crate) fn new(shape: Shape, builder: &VarBuilder) -> Result<Self> {
        let Shape { width, block, .. } = shape;
        let get =
            |extents: (usize, usize), name| builder.get_with_hints(extents, name, Init::Const(0.0));
        let blocks =
            (0..shape.layers).map(|layer| Block::new(width, &builder.pp(format!("block{layer}"))));
        let (tokens, positions) = (
            get((shape.vocabulary, width), "tokens")?,
            get((block, width), "positions")?,
        );
        let ahead = |row: usize, column: usize| match column > row {
            true => f32::NEG_INFINITY,
            false => 0.0,
        };
        let mask: Vec<f32> = (0..block * block)
            .map(|place| ahead(place / block, place % block))
            .collect();
        Ok(Self {
            tokens,
            positions,
            blocks: blocks.collect::<Result<_>>()?,
            norm: Norm::new(width, &builder.pp("norm"))?,
            head: get((width, shape.vocabulary), "head")?,
            mask: Tensor::from_vec(mask, (block, block), builder.device())?,
            shape,
        })
    }

    /// Returns one row of logits, which are the scores of the possible next tokens, for each
    /// character in `sequences`, a matrix of tokens.
    pub(crate) fn forward(&self, sequences: &Tensor, dropout: Option<&Dropout>) -> Result<Tensor> {
        let (count, length) = sequences.dims2()?;
        let width = self.shape.width;
        let positions = self.positions.narrow(0, 0, length)?;
        let mask = self.mask.narrow(0, 0, length)?.narrow(1, 0, length)?;
        let mut hidden = self
            .tokens
            .index_select(&sequences.flatten_all()?, 0)?
            .reshape((count, length, width))?
            .broadcast_add(&positions)?
            .reshape((count * length, width))?;
        hidden = Dropout::apply(dropout, 0, hidden)?;
        for (number, block) in self.blocks.iter().enumerate() {
            let place = 1 + 2 * number;
            let attended = block.attend(&hidden, (count, length, self.shape.heads), &mask)?;
            hidden = hidden.add(&Dropout::apply(dropout, place, attended)?)?;
            let perceived = block.perceive(&hidden)?;
            hidden = hidden.add(&Dropout::apply(dropout, place + 1, perceived)?)?;
        }
        self.norm.forward(&hidden)?.matmul(&self.head)
    }

    /// Returns the mean cross-entropy of the predictions for `targets`.
    pub(crate) fn loss(
        &self,
        sequences: &Tensor,
        targets: &Tensor,
        dropout: Option<&Dropout>,
    ) -> Result<Tensor> {
        let logits = self.forward(sequences, dropout)?;
        candle_nn::loss::cross_entropy(&logits, &targets.flatten_all()?)
    }

    /// Returns the maximum number of characters that the model sees.
    pub(crate) fn block(&self) -> usize {
        self.shape.block
    }
}

impl Block {
    fn new(width: usize, builder: &VarBuilder) -> Result<Self> {
        let linear = |input, output, name| Linear::new(input, output, &builder.pp(name));
        Ok(Self {
            attention_norm: Norm::new(width, &builder.pp("attention-norm"))?,
            attention: linear(width, 3 * width, "attention")?,
            attention_out: linear(width, width, "attention-out")?,
            perceptron_norm: Norm::new(width, &builder.pp("perceptron-norm"))?,
            perceptron: linear(width, EXPANSION * width, "perceptron")?,
            perceptron_out: linear(EXPANSION * width, width, "perceptron-out")?,
        })
    }

    /// Computes causal self-attention.
    fn attend(
        &self,
        hidden: &Tensor,
        (count, length, heads): (usize, usize, usize),
        mask: &Tensor,
    ) -> Result<Tensor> {
        let width = hidden.dim(1)?;
        let all = self
            .attention
            .forward(&self.attention_norm.forward(hidden)?)?;
        let part = |number: usize| {
            all.narrow(1, number * width, width)?
                .reshape((count, length, heads, width / heads))?
                .transpose(1, 2)?
                .contiguous()
        };
        let (query, key, value) = (part(0)?, part(1)?, part(2)?);
        let scale = ((width / heads) as f64).sqrt().recip();
        let scores = (query * scale)?.matmul(&key.t()?)?.broadcast_add(mask)?;
        let attended = softmax(&scores)?
            .matmul(&value)?
            .transpose(1, 2)?
            .reshape((count * length, width))?;
        self.attention_out.forward(&attended)
    }

    fn perceive(&self, hidden: &Tensor) -> Result<Tensor> {
        let normed = self.perceptron_norm.forward(hidden)?;
        self.perceptron_out
            .forward(&self.perceptron.forward(&normed)?.gelu()?)
    }
}

impl Linear {
    fn new(input: usize, output: usize, builder: &VarBuilder) -> Result<Self> {
        Ok(Self {
            weight: builder.get_with_hints((input, output), "weight", Init::Const(0.0))?,
            bias: builder.get_with_hints(output, "bias", Init::Const(0.0))?,
        })
    }

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.matmul(&self.weight)?.broadcast_add(&self.bias)
    }
}

impl Norm {
    fn new(width: usize, builder: &VarBuilder) -> Result<Self> {
        Ok(Self {
            weight: builder.get_with_hints(width, "weight", Init::Const(1.0))?,
            bias: builder.get_with_hints(width, "bias", Init::Const(0.0))?,
        })
    }

    /// Calls the variant of candle's function that supports backward.
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        candle_nn::ops::layer_norm_slow(input, &self.weight, &self.bias, EPSILON)
    }
}

/// Returns the softmax of each row. Subtracting the largest element does not change the result, so
/// backward can ignore it.
fn softmax(scores: &Tensor) -> Result<Tensor> {
    let largest = scores.max_keepdim(D::Minus1)?.detach();
    let powers = scores.broadcast_sub(&largest)?.exp()?;
    powers.broadcast_div(&powers.sum_keepdim(D::Minus1)?)
}

/// Draws initial weights as GPT-2 does: matrices have a small standard deviation. It is even
/// smaller for the matrices at the end of each half of a block, because their results are added up
/// over all blocks.
pub(crate) fn initialize(varmap: &VarMap, shape: Shape, seed: u64) -> Result<()> {
    let variables = varmap
        .data()
        .lock()
        .expect("invariant: nothing panics with it");
    for (name, variable) in variables.iter() {
        if variable.rank() < 2 {
            continue;
        }
        let spread = match name.contains("-out.") {
            true => SPREAD / (2.0 * shape.layers as f64).sqrt(),
            false => SPREAD,
        };
        let mut stream = Stream::new(seed, name);
        let weights: Vec<f32> = (0..variable.elem_count())
            .map(|_| (spread * stream.normal()) as f32)
            .collect();
        variable.set(&Tensor::from_vec(
            weights,
            variable.shape(),
            variable.device(),
        )?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device, Var};
    use ringtree::ddp::Options;
    use ringtree_candle::{Replica, var_builder};

    const SHAPE: Shape = Shape {
        vocabulary: 7,
        block: 5,
        width: 8,
        layers: 2,
        heads: 2,
    };

    fn model(builder: &VarBuilder, varmap: &VarMap) -> Gpt {
        let model = Gpt::new(SHAPE, builder).unwrap();
        // Use larger weights than a new model has, so that every gradient matters.
        for (name, variable) in varmap.data().lock().unwrap().iter() {
            let mut stream = Stream::new(0, name);
            let weight = |_| (0.4 * stream.normal()) as f32;
            let values: Vec<f32> = (0..variable.elem_count()).map(weight).collect();
            let values = Tensor::from_vec(values, variable.shape(), &Device::Cpu).unwrap();
            variable.set(&values).unwrap();
        }
        model
    }

    fn loss(model: &Gpt) -> Tensor {
        let sequences = |start: u32| {
            let tokens: Vec<u32> = (0..10).map(|place| (start + place * place) % 7).collect();
            Tensor::from_vec(tokens, (2, 5), &Device::Cpu).unwrap()
        };
        model.loss(&sequences(0), &sequences(3), None).unwrap()
    }

    /// In the direction of a parameter's gradient, the slope of the loss is the length of the
    /// gradient.
    #[test]
    fn gradients_match_slopes_of_loss() {
        let varmap = VarMap::new();
        let builder = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        let model = model(&builder, &varmap);
        let gradients = loss(&model).backward().unwrap();
        for (name, variable) in varmap.data().lock().unwrap().iter() {
            let gradient = gradients.get(variable).unwrap();
            let squares = gradient.sqr().unwrap().sum_all().unwrap();
            let length = f64::from(squares.to_scalar::<f32>().unwrap()).sqrt();
            let before = variable.copy().unwrap();
            let loss_at = |distance: f64| {
                let way = (gradient * (distance / length)).unwrap();
                variable.set(&(&before + way).unwrap()).unwrap();
                f64::from(loss(&model).to_scalar::<f32>().unwrap())
            };
            let slope = (loss_at(0.01) - loss_at(-0.01)) / 0.02;
            variable.set(&before).unwrap();
            assert!(
                (slope / length - 1.0).abs() < 0.02,
                "{name}: {slope} {length}"
            );
        }
    }

    #[test]
    fn backward_reports_parameters_from_head_to_embedding() {
        let order = ringtree::simulate(1, |comm| {
            let varmap = VarMap::new();
            let (builder, hooks) = var_builder(&varmap, DType::F32, &Device::Cpu);
            let model = model(&builder, &varmap);
            let count = hooks.names().len();
            let mut replica = Replica::new(comm, hooks, Options::new()).unwrap();
            replica.backward(&loss(&model)).unwrap();
            let order: Vec<_> = replica.reports().map(|(name, _)| name.to_owned()).collect();
            assert_eq!(order.len(), count);
            order
        })
        .remove(0);
        let place = |start: &str| {
            let places = (0..order.len()).filter(|place| order[*place].starts_with(start));
            places.clone().min().unwrap()..=places.max().unwrap()
        };
        let parts = ["head", "norm", "block1", "block0", "positions", "tokens"].map(place);
        let follow = |pair: &[std::ops::RangeInclusive<usize>]| pair[0].end() < pair[1].start();
        assert!(parts.windows(2).all(follow), "{order:?}");
    }

    #[test]
    fn characters_do_not_see_later_ones() {
        let varmap = VarMap::new();
        let builder = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        let model = model(&builder, &varmap);
        let rows = |tokens: [u32; 5]| {
            let sequence = Tensor::new(&[tokens], &Device::Cpu).unwrap();
            model
                .forward(&sequence, None)
                .unwrap()
                .to_vec2::<f32>()
                .unwrap()
        };
        let (one, other) = (rows([1, 2, 3, 4, 5]), rows([1, 2, 3, 6, 0]));
        assert_eq!(one[..3], other[..3]);
        assert_ne!(one[3..], other[3..]);
    }

    #[test]
    fn dropout_depends_only_on_sequence_and_step() {
        let factors = |step, numbers: &[usize], place| {
            let rows = Tensor::ones((numbers.len() * 25, 40), DType::F32, &Device::Cpu).unwrap();
            let dropout = Dropout::new(0.2, 1, step, numbers);
            let rows = Dropout::apply(dropout.as_ref(), place, rows).unwrap();
            let rows = rows.reshape((numbers.len(), 1000)).unwrap();
            rows.to_vec2::<f32>().unwrap()
        };
        let together = factors(7, &[4, 9], 3);
        assert_eq!(together[1], factors(7, &[9], 3)[0]);
        let others = [
            factors(8, &[9], 3),
            factors(7, &[5], 3),
            factors(7, &[9], 2),
        ];
        assert!(others.iter().all(|other| other[0] != together[1]));
        let dropped = together.concat().iter().filter(|one| **one == 0.0).count();
        assert!((300..500).contains(&dropped), "{dropped} of 2000");
        assert!(
            together
                .concat()
                .iter()
                .all(|one| [0.0, 1.25].contains(one))
        );
        assert!(Dropout::new(0.0, 1, 7, &[4]).is_none());
    }

    #[test]
    fn initial_weights_depend_on_seed() {
        let weights = |seed: u64| {
            let varmap = VarMap::new();
            let builder = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
            Gpt::new(SHAPE, &builder).unwrap();
            initialize(&varmap, SHAPE, seed).unwrap();
            let tokens: Var = varmap.data().lock().unwrap()["tokens"].clone();
            tokens.flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        assert_eq!(weights(1), weights(1));
        assert_ne!(weights(1), weights(2));
    }
}
