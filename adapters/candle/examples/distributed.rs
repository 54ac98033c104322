//! A curve fitted by many processes; `single.rs` is the same by one.

use candle_core::{DType, Device, Tensor};
use candle_nn::{AdamW, Linear, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap};
use candle_nn::{linear, loss::mse};

const STEPS: usize = 500;
const BATCH: usize = 16;

/// A perceptron.
struct Model {
    hidden: Linear,
    output: Linear,
}

impl Model {
    fn new(builder: VarBuilder) -> candle_core::Result<Self> {
        Ok(Self {
            hidden: linear(1, 32, builder.pp("hidden"))?,
            output: linear(32, 1, builder.pp("output"))?,
        })
    }

    fn forward(&self, inputs: &Tensor) -> candle_core::Result<Tensor> {
        self.output.forward(&self.hidden.forward(inputs)?.tanh()?)
    }
}

/// The points of a batch on the curve x².
fn batch(number: usize) -> candle_core::Result<(Tensor, Tensor)> {
    let x = |place: usize| ((number * BATCH + place) as f32 * 0.37).sin();
    let inputs: Vec<f32> = (0..BATCH).map(x).collect();
    let inputs = Tensor::from_vec(inputs, (BATCH, 1), &Device::Cpu)?;
    Ok((inputs.clone(), inputs.sqr()?))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let comm = ringtree::Communicator::from_env()?;
    let varmap = VarMap::new();
    let (builder, hooks) = ringtree_candle::var_builder(&varmap, DType::F32, &Device::Cpu);
    let model = Model::new(builder)?;
    let mut optimizer = AdamW::new(varmap.all_vars(), ParamsAdamW::default())?;
    let mut replica = ringtree_candle::Replica::new(&comm, hooks, Default::default())?;
    for step in 0..STEPS {
        let (inputs, targets) = batch(step * comm.world_size() + comm.rank())?;
        let loss = mse(&model.forward(&inputs)?, &targets)?;
        replica.backward_step(&mut optimizer, &loss)?;
    }
    let (inputs, targets) = batch(0)?;
    let loss = mse(&model.forward(&inputs)?, &targets)?;
    println!("after {STEPS} steps the loss is {loss}");
    Ok(())
}
