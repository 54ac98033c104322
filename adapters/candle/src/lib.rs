//! Data-parallel training of [candle](candle_core) models with [ringtree].
//!
//! Every process trains its own replica of the model on its own part of the data. ringtree averages
//! the gradients across all processes while the backward pass computes the remaining gradients. You
//! only need to change five lines to make a candle training loop data-parallel:
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
//! The `examples` directory contains both programs. They print the same loss, to four digits, on 1,
//! 2 and 4 ranks. In the second program, a sixth line is changed so that only rank 0 prints.
//!
//! # How it works and what it costs
//!
//! candle has no callback for complete gradients, but it does call the backward function of a
//! [custom operation](candle_core::CustomOp1). [`var_builder`] therefore gives the model the
//! results of an identity operation instead of the variables themselves. The backward function of
//! this operation reports the gradient to the reducer before candle computes the gradients of the
//! layer below. Such a result is called a *stand-in*. It is created once and remains in the model.
//! It contains a copy of the variable's data, because a tensor cannot both share the storage of a
//! variable and be the result of an operation. This has the following consequences:
//!
//! - The parameters take up twice as much memory.
//! - After the optimizer has updated the variables, the copies must be refreshed. This takes one
//!   pass over the parameters, which is a fraction of what the optimizer itself reads and writes.
//!   [`Replica::backward_step`] refreshes the copies automatically. Otherwise, call
//!   [`Replica::refresh`].
//! - [`Replica::backward`] compares each stand-in with its variable. If you forget to call
//!   `refresh`, you get an error instead of a model that does not learn.
//! - The reducer reads each gradient directly from candle's tensor. The average is copied once,
//!   into the tensor for the optimizer.
//!
//! # Pitfalls of candle
//!
//! Some operations have a fast path that does not implement the backward pass, so they silently
//! stop gradients. Among these operations are `LayerNorm` and `RmsNorm` (when called through
//! `Module::forward` on contiguous input) and `softmax_last_dim`. Use
//! `candle_nn::ops::layer_norm_slow`, `rms_norm_slow`, `softmax` or a custom operation instead.
//! [`Replica::backward`] returns an error that names the parameters that no gradient reached. To
//! allow such parameters, call [`Replica::allow_unused`].
//!
//! Gradients are reported in the order in which candle's backward pass computes them. When candle
//! sorts the graph, it visits the left operand of an operation first, so the backward pass
//! processes the right operand earlier. Write `input.matmul(&weight)` rather than
//! `weight.matmul(&input)`, so that the gradients of parameters are not reported last. candle's own
//! layers follow this rule.
//!
//! # Devices
//!
//! All parameters of a model must be on the same device. Otherwise, [`Replica::new`] returns an
//! error that names two parameters on different devices. On the CPU, gradients are averaged in host
//! memory.
//!
//! With the Cargo feature `cuda`, the gradients of a model on an NVIDIA GPU are averaged on that
//! GPU. Each bucket is a tensor on the GPU. candle's stream copies each gradient into its bucket
//! and then continues to compute. The collective takes over the memory of a full bucket and starts
//! when candle's stream has filled the bucket. At the end of the backward pass, the host waits for
//! the last collective, and the optimizer gets views of the buckets. This crate copies only the
//! initial weights through host memory. Data that is sent between ranks that do not share a GPU
//! passes through their hosts ([`Communicator::attach`](ringtree::Communicator::attach)).
//!
//! - Options that include a [hook](ringtree::ddp::Options::hook) cause an error, because gradients
//!   are sent unchanged.
//! - Each step allocates new buckets on candle's device. These buckets live as long as the
//!   gradients that were given to the optimizer.
//! - A device from `Device::new_cuda` computes on a separate stream for each thread. Either use a
//!   model and its replica on the thread that created the device, or create the device with
//!   `Device::new_cuda_with_stream`.
//! - candle compiles its kernels with `nvcc` and links against the CUDA toolkit. You need both to
//!   build with this feature, and the program does not start without the toolkit's libraries. The
//!   driver bindings are those of CUDA 12.4, regardless of the toolkit version.
//! - **This feature has never run on a GPU.** So far, only two things have been verified: the CUDA
//!   code compiles, and the management of buckets works with a fake driver (see the tests of
//!   `buckets`).
//!
//! Without this feature, and on other devices, gradients are averaged in host memory, which
//! requires a copy in each direction.

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
