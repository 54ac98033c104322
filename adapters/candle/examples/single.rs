//! Fits a curve with one process. Compare it with `distributed.rs`.

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

/// Returns a rank's share of a batch of points on the curve x².
fn batch(number: usize, rank: usize, ranks: usize) -> candle_core::Result<(Tensor, Tensor)> {
    let places = (rank..BATCH).step_by(ranks);
    let x = |place: usize| ((number * BATCH + place) as f32 * 0.37).sin();
    let inputs: Vec<f32> = places.map(x).collect();
    let inputs = Tensor::from_vec(inputs, (BATCH / ranks, 1), &Device::Cpu)?;
    Ok((inputs.clone(), inputs.sqr()?))
}

/// Sets the same initial weights in every run, instead of candle's random ones.
fn seed(varmap: &VarMap) -> candle_core::Result<()> {
    for (name, var) in varmap.data().lock().expect("the lock is intact").iter() {
        let start: usize = name.bytes().map(usize::from).sum();
        let wave = |at: usize| ((at + start) as f32 * 7.3).sin() * 0.5;
        let values: Vec<f32> = (0..var.elem_count()).map(wave).collect();
        var.set(&Tensor::from_vec(values, var.shape(), var.device())?)?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let varmap = VarMap::new();
    let builder = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let model = Model::new(builder)?;
    seed(&varmap)?;
    let mut optimizer = AdamW::new(varmap.all_vars(), ParamsAdamW::default())?;
    for step in 0..STEPS {
        let (inputs, targets) = batch(step, 0, 1)?;
        let loss = mse(&model.forward(&inputs)?, &targets)?;
        optimizer.backward_step(&loss)?;
    }
    let (inputs, targets) = batch(0, 0, 1)?;
    let loss = mse(&model.forward(&inputs)?, &targets)?;
    println!(
        "after {STEPS} steps the loss is {:.3e}",
        loss.to_scalar::<f32>()?
    );
    Ok(())
}
