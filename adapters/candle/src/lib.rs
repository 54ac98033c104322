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
//! -    let (inputs, targets) = batch(step, 0, 1)?;
//! +    let (inputs, targets) = batch(step, comm.rank(), comm.world_size())?;
//!      let loss = mse(&model.forward(&inputs)?, &targets)?;
//! -    optimizer.backward_step(&loss)?;
//! +    replica.backward_step(&mut optimizer, &loss)?;
//!  }
//! ```
//!
//! The directory `examples` holds the two programs, before and after. Each prints one loss (in the
//! second, a sixth line lets rank 0 alone print), the same to four digits on 1, 2 and 4 ranks.
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
//! A model lies on one device; [`Replica::new`] names two parameters that do not. On the CPU
//! gradients are averaged in host memory.
//!
//! With the cargo feature `cuda`, those of a model on a GPU of NVIDIA's are averaged on that GPU.
//! candle's stream copies each gradient into its bucket, which is one tensor there, and computes
//! on. The collective gets the memory of a bucket that is full and begins when candle's stream has
//! filled it. At the end of backward the host waits for the last, and the optimizer gets views of
//! the buckets. This crate moves nothing through host memory but the initial weights; what ranks
//! that share no GPU send each other goes through their hosts
//! ([`Communicator::attach`](ringtree::Communicator::attach)).
//!
//! - Gradients travel as they are: a [hook](ringtree::ddp::Hook) of the options is refused.
//! - The buckets are allocated in each step, from candle's device, and live as long as the
//!   gradients that the optimizer got.
//! - `Device::new_cuda` computes on a stream that each thread has for itself: use a model and its
//!   replica on the thread that made the device, or make it by `Device::new_cuda_with_stream`.
//! - candle compiles its kernels with `nvcc` and links the CUDA toolkit, so the feature needs both
//!   to build, and such a program does not start without the libraries. The driver's bindings are
//!   those of CUDA 12.4, whatever the toolkit is.
//! - **It has never run on a GPU.** What was seen: the bookkeeping on a device that ringtree
//!   pretends (the tests of `buckets`), and that the code for CUDA compiles.
//!
//! Without the feature, and on devices of other kinds, gradients travel through host memory with a
//! copy each way.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod buckets;
mod builder;
mod checkpoint;
#[cfg(feature = "cuda")]
mod cuda;
mod elements;
mod error;
mod lane;
mod replica;
mod report;
mod weights;

pub use builder::{Hooks, var_builder};
pub use checkpoint::part;
pub use elements::with_slice;
pub use error::{Error, Result};
pub use replica::Replica;
pub use weights::Weights;
