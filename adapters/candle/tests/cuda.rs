//! Compares replicas on a GPU with replicas on the CPU. Skipped on hosts without a GPU.

#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used)]

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Module, Optimizer, SGD, VarMap, linear, loss::mse};
use ringtree::Communicator;
use ringtree::ddp::{BucketSize, Options};
use ringtree_candle::{Replica, var_builder};

const WIDTH: usize = 33;

/// Trains a model for a few steps and returns the name and the weights of each variable.
fn trained(comm: &Communicator, device: &Device) -> Result<Vec<(String, Vec<f32>)>> {
    let varmap = VarMap::new();
    let (builder, hooks) = var_builder(&varmap, DType::F32, device);
    let layer = |number: usize| linear(WIDTH, WIDTH, builder.pp(format!("layer{number}")));
    let layers = (0..4).map(layer).collect::<Result<Vec<_>>>()?;
    let variables = hooks.variables();
    for (number, (_, var)) in variables.iter().enumerate() {
        let value = |at: usize| ((at * 37 + number) % 19) as f32 / 19.0 / WIDTH as f32;
        let values: Vec<_> = (0..var.elem_count()).map(value).collect();
        var.set(&Tensor::from_vec(values, var.shape(), device)?)?;
    }
    let options = Options::new().buckets(BucketSize::Bytes(6000));
    let mut replica = Replica::new(comm, hooks, options)?;
    let mut optimizer = SGD::new(varmap.all_vars(), 0.1)?;
    for step in 0..5 {
        let value = |at: usize| ((at + step * 5 + comm.rank() * 3) % 7) as f32 / 7.0;
        let inputs: Vec<_> = (0..WIDTH).map(value).collect();
        let mut hidden = Tensor::from_vec(inputs, (1, WIDTH), device)?;
        for layer in &layers {
            hidden = layer.forward(&hidden)?.tanh()?;
        }
        let loss = mse(&hidden, &hidden.ones_like()?)?;
        // The gradients of the two parts add up to the gradients of the complete loss.
        replica.backward_no_sync(&(&loss * 0.25)?)?;
        let loss = (&loss * 0.75)?;
        replica.backward_step(&mut optimizer, &loss)?;
    }
    let values = |(name, var): (String, candle_core::Var)| {
        Ok((name, var.flatten_all()?.to_device(&Device::Cpu)?.to_vec1()?))
    };
    variables.into_iter().map(values).collect()
}

#[test]
fn training_on_gpu_matches_cpu() {
    if let Err(error) = ringtree::cuda::count() {
        eprintln!("skipped: {error}");
        return;
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let rendezvous = listener.local_addr().unwrap().to_string();
    drop(listener);
    let rank = |rank: usize| {
        let builder = Communicator::builder().rank(rank).world_size(2);
        let comm = builder.rendezvous(&rendezvous).connect().unwrap();
        let weights = trained(&comm, &Device::new_cuda(0).unwrap()).unwrap();
        comm.barrier().unwrap();
        weights
    };
    let on_gpu = std::thread::scope(|scope| {
        let other = scope.spawn(|| rank(1));
        [rank(0), other.join().unwrap()]
    });
    assert_eq!(on_gpu[0], on_gpu[1]);
    let on_cpu = ringtree::simulate(2, |comm| trained(comm, &Device::Cpu).unwrap());
    for ((name, on_cpu), (_, on_gpu)) in on_cpu[0].iter().zip(&on_gpu[0]) {
        for (one, other) in on_cpu.iter().zip(on_gpu) {
            assert!((one - other).abs() < 1e-3, "{name}: {one} {other}");
        }
    }
}
