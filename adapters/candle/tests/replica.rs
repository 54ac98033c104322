//! Compares replicas of small models on simulated ranks with candle without ringtree.

#![allow(clippy::unwrap_used)]

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::{
    Embedding, Linear, Module, Optimizer, SGD, VarBuilder, VarMap, embedding, linear, loss::mse,
};
use ringtree::Communicator;
use ringtree::ddp::{BucketSize, Options};
use ringtree_candle::{Replica, var_builder};
use std::collections::BTreeMap;

const DEVICE: Device = Device::Cpu;
const WORDS: usize = 7;
const WIDTH: usize = 5;

struct Net {
    words: Embedding,
    layers: Vec<Linear>,
}

impl Net {
    fn new(builder: VarBuilder) -> Result<Self> {
        let layer = |number: usize| linear(WIDTH, WIDTH, builder.pp(format!("layer{number}")));
        Ok(Self {
            words: embedding(WORDS, WIDTH, builder.pp("words"))?,
            layers: (0..3).map(layer).collect::<Result<_>>()?,
        })
    }

    /// Returns the loss of predicting zeros from the words. The embedding is the first and the last
    /// layer.
    fn loss(&self, words: &[u32]) -> Result<Tensor> {
        let words = Tensor::from_slice(words, words.len(), &DEVICE)?;
        let mut hidden = self.words.forward(&words)?;
        for layer in &self.layers {
            hidden = (&hidden + layer.forward(&hidden)?.tanh()?)?;
        }
        let scores = hidden.matmul(&self.words.embeddings().t()?)?;
        mse(&scores, &scores.zeros_like()?)
    }
}

/// Replaces candle's random weights with values that depend only on the parameter's name and
/// `seed`.
fn set_weights(varmap: &VarMap, seed: usize) {
    for (name, var) in varmap.data().lock().unwrap().iter() {
        let letters: usize = name.bytes().map(usize::from).sum();
        let value = |at: usize| (((at + seed) * 37 + letters) % 19) as f32 / 19.0 - 0.5;
        let values: Vec<f32> = (0..var.elem_count()).map(value).collect();
        var.set(&Tensor::from_vec(values, var.shape(), &DEVICE).unwrap())
            .unwrap();
    }
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn weights(varmap: &VarMap) -> BTreeMap<String, Vec<f32>> {
    let variables = varmap.data().lock().unwrap();
    variables
        .iter()
        .map(|(name, var)| (name.clone(), values(var)))
        .collect()
}

/// Returns the gradients that candle computes without ringtree, by name.
fn candle_gradients(words: &[u32]) -> BTreeMap<String, Vec<f32>> {
    let varmap = VarMap::new();
    let net = Net::new(VarBuilder::from_varmap(&varmap, DType::F32, &DEVICE)).unwrap();
    set_weights(&varmap, 0);
    let gradients = net.loss(words).unwrap().backward().unwrap();
    let variables = varmap.data().lock().unwrap();
    let gradient = |var: &Var| values(gradients.get(var).unwrap());
    variables
        .iter()
        .map(|(name, var)| (name.clone(), gradient(var)))
        .collect()
}

/// Creates a model and its replica, which start from the weights of seed 0.
fn started(comm: &Communicator) -> (VarMap, Net, Replica) {
    let varmap = VarMap::new();
    let (builder, hooks) = var_builder(&varmap, DType::F32, &DEVICE);
    let net = Net::new(builder).unwrap();
    // Only rank 0 has these weights. `Replica::new` must broadcast them.
    set_weights(&varmap, comm.rank());
    let options = Options::new().buckets(BucketSize::Bytes(100));
    let replica = Replica::new(comm, hooks, options).unwrap();
    (varmap, net, replica)
}

/// Returns the averaged gradients of one step, by name.
fn averaged(varmap: &VarMap, replica: &mut Replica, loss: &Tensor) -> BTreeMap<String, Vec<f32>> {
    let gradients = replica.backward(loss).unwrap();
    let variables = varmap.data().lock().unwrap();
    let gradient = |var: &Var| values(gradients.get(var).unwrap());
    variables
        .iter()
        .map(|(name, var)| (name.clone(), gradient(var)))
        .collect()
}

fn assert_close(one: &BTreeMap<String, Vec<f32>>, other: &BTreeMap<String, Vec<f32>>) {
    assert!(one.keys().eq(other.keys()));
    for (name, values) in one {
        for (one, other) in values.iter().zip(&other[name]) {
            assert!((one - other).abs() < 1e-6, "{name}: {one} {other}");
        }
    }
}

/// Runs `body` in a world of one rank and returns its error message.
fn error_message(body: impl Fn(&Communicator) -> ringtree_candle::Result<()> + Sync) -> String {
    let ends = ringtree::simulate(1, |comm| body(comm).unwrap_err().to_string());
    ends.into_iter().next().unwrap()
}

#[test]
fn gradients_are_reported_once_and_match_candle() {
    let words = [1, 4, 4, 0];
    let (found, order) = ringtree::simulate(1, |comm| {
        let (varmap, net, mut replica) = started(comm);
        let found = averaged(&varmap, &mut replica, &net.loss(&words).unwrap());
        let order: Vec<_> = replica.reports().map(|(name, _)| name.to_owned()).collect();
        (found, order)
    })
    .remove(0);
    assert_eq!(found, candle_gradients(&words));
    // Backward begins with the last layer. The embedding is last, because its gradient is complete
    // only after both uses.
    let layers = |name: &str| [2, 1, 0].map(|layer| format!("layer{layer}.{name}"));
    let (weights, biases) = (layers("weight"), layers("bias"));
    let place = |name: &String| order.iter().position(|each| each == name).unwrap();
    assert!(weights.map(|name| place(&name)).is_sorted());
    assert!(biases.map(|name| place(&name)).is_sorted());
    assert_eq!(
        (order.len(), order.last().unwrap().as_str()),
        (7, "words.weight")
    );
}

#[test]
fn ranks_average_gradients_at_weights_of_rank_0() {
    let words = |rank: usize| [rank as u32, 5, rank as u32 + 2];
    let found = ringtree::simulate(3, |comm| {
        let (varmap, net, mut replica) = started(comm);
        averaged(
            &varmap,
            &mut replica,
            &net.loss(&words(comm.rank())).unwrap(),
        )
    });
    let all: Vec<_> = (0..3).map(|rank| candle_gradients(&words(rank))).collect();
    let mut mean = all[0].clone();
    for (name, values) in &mut mean {
        for (at, value) in values.iter_mut().enumerate() {
            *value = all.iter().map(|each| each[name][at]).sum::<f32>() / 3.0;
        }
    }
    assert_close(&found[0], &mean);
    assert!(found.iter().all(|each| *each == found[0]));
}

#[test]
fn accumulated_batches_equal_one_larger_batch() {
    let (one, other) = ([1, 2], [3, 6]);
    let found = ringtree::simulate(2, |comm| {
        let (varmap, net, mut replica) = started(comm);
        replica
            .backward_no_sync(&(net.loss(&one).unwrap() / 2.0).unwrap())
            .unwrap();
        averaged(
            &varmap,
            &mut replica,
            &(net.loss(&other).unwrap() / 2.0).unwrap(),
        )
    });
    assert_close(&found[0], &candle_gradients(&[one, other].concat()));
}

#[test]
fn replicas_stay_identical_and_match_candle_on_all_data() {
    let words = |step: u32, rank: usize| [step % 7, (step + rank as u32) % 7];
    let trained = ringtree::simulate(2, |comm| {
        let (varmap, net, mut replica) = started(comm);
        let mut optimizer = SGD::new(varmap.all_vars(), 0.3).unwrap();
        for step in 0..5 {
            let loss = net.loss(&words(step, comm.rank())).unwrap();
            replica.backward_step(&mut optimizer, &loss).unwrap();
        }
        weights(&varmap)
    });
    let varmap = VarMap::new();
    let net = Net::new(VarBuilder::from_varmap(&varmap, DType::F32, &DEVICE)).unwrap();
    set_weights(&varmap, 0);
    let mut optimizer = SGD::new(varmap.all_vars(), 0.3).unwrap();
    for step in 0..5 {
        let all = [words(step, 0), words(step, 1)].concat();
        optimizer.backward_step(&net.loss(&all).unwrap()).unwrap();
    }
    assert_eq!(trained[0], trained[1]);
    assert_close(&trained[0], &weights(&varmap));
}

#[test]
fn gradients_of_other_element_types_are_averaged() {
    for dtype in [DType::F64, DType::BF16, DType::F16] {
        let slopes = ringtree::simulate(2, |comm| {
            let varmap = VarMap::new();
            let (builder, hooks) = var_builder(&varmap, dtype, &DEVICE);
            let weight = builder.get(3, "weight").unwrap();
            let mut replica = Replica::new(comm, hooks, Options::new()).unwrap();
            let rank = comm.rank() as f64 + 1.0;
            let loss = ((weight * rank).unwrap()).sum_all().unwrap();
            let gradients = replica.backward(&loss).unwrap();
            let var = &varmap.all_vars()[0];
            let gradient = gradients.get(var).unwrap();
            assert_eq!(gradient.dtype(), dtype);
            values(&gradient.to_dtype(DType::F32).unwrap())
        });
        assert_eq!(slopes, [[1.5; 3]; 2]);
    }
}

#[test]
fn missing_refresh_is_an_error() {
    let message = error_message(|comm| {
        let (varmap, net, mut replica) = started(comm);
        let gradients = replica.backward(&net.loss(&[1])?)?;
        SGD::new(varmap.all_vars(), 0.1)?.step(&gradients)?;
        replica.backward(&net.loss(&[1])?).map(drop)
    });
    assert!(message.contains("old copy of words.weight"), "{message}");
    assert!(message.contains("refresh"), "{message}");
}

#[test]
fn layer_that_stops_gradients_is_an_error() {
    let message = error_message(|comm| {
        let varmap = VarMap::new();
        let (builder, hooks) = var_builder(&varmap, DType::F32, &DEVICE);
        let below = linear(WIDTH, WIDTH, builder.pp("below"))?;
        let norm = candle_nn::layer_norm(WIDTH, 1e-5, builder.pp("norm"))?;
        let above = linear(WIDTH, 1, builder.pp("above"))?;
        let mut replica = Replica::new(comm, hooks, Options::new())?;
        let inputs = Tensor::ones((2, WIDTH), DType::F32, &DEVICE)?;
        let outputs = above.forward(&norm.forward(&below.forward(&inputs)?)?)?;
        replica.backward(&outputs.sum_all()?).map(drop)
    });
    assert!(message.contains("no gradient reached 4 of 6"), "{message}");
    assert!(
        message.contains("below.weight, below.bias, norm.weight, norm.bias"),
        "{message}"
    );
    assert!(message.contains("layer_norm_slow"), "{message}");
}

#[test]
fn allow_unused_accepts_parameters_used_on_some_ranks() {
    let gradients = ringtree::simulate(2, |comm| {
        let varmap = VarMap::new();
        let (builder, hooks) = var_builder(&varmap, DType::F32, &DEVICE);
        let names = ["both", "one", "none"];
        let tensors = names.map(|name| builder.get(1, name).unwrap());
        let replica = Replica::new(comm, hooks, Options::new()).unwrap();
        let mut replica = replica.allow_unused();
        let loss = match comm.rank() {
            0 => (&tensors[0] + &tensors[1]).unwrap(),
            _ => tensors[0].clone(),
        };
        let gradients = replica.backward(&loss.sum_all().unwrap()).unwrap();
        let variables = varmap.data().lock().unwrap();
        let gradient = |name| gradients.get(&variables[name]).map(values);
        (names.map(gradient), replica.unused().join(" "))
    });
    let expected = [Some(vec![1.0]), Some(vec![0.5]), None];
    assert_eq!(gradients[0], (expected.clone(), "none".into()));
    assert_eq!(gradients[1], (expected, "one none".into()));
}

#[test]
fn variables_without_hooks_are_an_error() {
    let message = error_message(|comm| {
        let varmap = VarMap::new();
        let (builder, hooks) = var_builder(&varmap, DType::F32, &DEVICE);
        linear(2, 2, builder.pp("hooked"))?;
        let builder = VarBuilder::from_varmap(&varmap, DType::F32, &DEVICE);
        linear(2, 2, builder.pp("other"))?;
        Replica::new(comm, hooks, Options::new()).map(drop)
    });
    assert!(message.contains("other.bias, other.weight"), "{message}");
}

#[test]
fn loss_that_bypasses_hooks_is_an_error() {
    let message = error_message(|comm| {
        let (varmap, _, mut replica) = started(comm);
        let var = varmap.data().lock().unwrap()["words.weight"].clone();
        replica.backward(&var.sum_all()?).map(drop)
    });
    assert!(
        message.contains("depends on the variable words.weight directly"),
        "{message}"
    );
}

#[test]
fn backward_without_replica_is_an_error() {
    let message = error_message(|comm| {
        let (_, net, _replica) = started(comm);
        net.loss(&[1])?.backward()?;
        Ok(())
    });
    assert!(message.contains("Replica::backward"), "{message}");
}

#[test]
fn model_mismatch_names_first_differing_parameter() {
    let ends = ringtree::simulate(2, |comm| {
        let varmap = VarMap::new();
        let (builder, hooks) = var_builder(&varmap, DType::F32, &DEVICE);
        linear(2 + comm.rank(), 2, builder.pp("layer")).unwrap();
        Replica::new(comm, hooks, Options::new())
            .err()
            .unwrap()
            .to_string()
    });
    for message in ends {
        assert!(
            message.contains("parameter layer.weight [2, 3]"),
            "{message}"
        );
    }
}
