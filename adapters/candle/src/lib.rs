//! Data-parallel training of [candle](candle_core) models with [ringtree].
//!
//! Every process trains its own replica on its own part of the data; the gradients are averaged
//! over all of them, and travel while backward is still computing the others. A candle training
//! loop becomes such a program by five lines:
//!
//! ```diff
//! +let comm = ringtree::Communicator::from_env()?;
//!  let varmap = VarMap::new();
//! -let builder = VarBuilder::from_varmap(&varmap, DType::F32, &device);
//! +let (builder, hooks) = ringtree_candle::var_builder(&varmap, DType::F32, &device);
//!  let model = Model::new(builder)?;
//!  let mut optimizer = AdamW::new(varmap.all_vars(), ParamsAdamW::default())?;
//! +let mut replica = ringtree_candle::Replica::new(&comm, hooks, Default::default())?;
//!  for step in 0..steps {
//! -    let (inputs, targets) = batch(step)?;
//! +    let (inputs, targets) = batch(step * comm.world_size() + comm.rank())?;
//!      let loss = mse(&model.forward(&inputs)?, &targets)?;
//! -    optimizer.backward_step(&loss)?;
//! +    replica.backward_step(&mut optimizer, &loss)?;
//!  }
//! ```
//!
//! The directory `examples` holds the two programs, before and after.
//!
//! # How it works, and what it costs
//!
//! candle calls nobody when a gradient is complete, but it does call the backward of a
//! [custom operation](candle_core::CustomOp1). [`var_builder`] hands the model not the variables
//! themselves but the results of an identity operation on them, whose backward reports the
//! gradient to the reducer before candle goes on with the layer below. Such a *stand-in* is made
//! once and stays in the model. It has a copy of the variable's data, for no tensor can share the
//! storage of a variable and be the result of an operation. So:
//!
//! - The memory of the parameters is needed once more.
//! - After the optimizer has written the variables, the copies are renewed
//!   ([`Replica::refresh`], part of [`Replica::backward_step`]): one pass over the parameters,
//!   a fraction of what the optimizer itself reads and writes.
//! - [`Replica::backward`] compares each stand-in with its variable, so that a forgotten
//!   `refresh` is an error rather than a model that does not learn.
//! - A gradient is read where candle has put it; the average is copied once, into the tensor
//!   that the optimizer gets.
//!
//! # Traps of candle, and what is said about them
//!
//! candle's `LayerNorm` and `RmsNorm` (through `Module::forward`, on contiguous input),
//! `softmax_last_dim`, and other operations with a fast path of their own, have no backward: no
//! gradient comes out of them, without a word. Use `candle_nn::ops::layer_norm_slow`,
//! `rms_norm_slow`, `softmax`, or your own. [`Replica::backward`] fails and names the
//! parameters that no gradient has reached, unless [`Replica::allow_unused`] says that this is
//! meant.
//!
//! Gradients are reported in the order in which candle's backward comes by them. It visits the
//! left operand of an operation first when it sorts the graph, so that what is on the right is
//! done earlier in backward: write `input.matmul(&weight)`, not `weight.matmul(&input)`, to keep
//! parameters from being reported last. candle's own layers do.
//!
//! # Devices
//!
//! Gradients in the memory of another device travel through host memory, with a copy each way.
//! The CPU is what is tested.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod buckets;
mod builder;
#[cfg(feature = "cuda")]
mod cuda;
mod elements;
mod error;
mod lane;
mod replica;
mod report;

pub use builder::{Hooks, var_builder};
pub use error::{Error, Result};
pub use replica::Replica;
