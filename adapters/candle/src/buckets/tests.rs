//! Replicas whose gradients are averaged on a pretended device. Their tensors are the CPU's: what
//! is taken from them lies on the device, and comes back from it.

use super::*;
use crate::elements::with_slice;
use crate::{Hooks, Replica, var_builder};
use candle_core::Var;
use candle_nn::{Module, Optimizer, SGD, VarBuilder, VarMap, linear, loss::mse};
use ringtree::bootstrap::TransportChoice;
use ringtree::ddp::{BucketSize, HalfHook, Options};
use ringtree::device::fake::{self, Fake};
use ringtree::device::{Stream, Unheld};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::time::Duration;

/// Long enough for a slow machine, short enough for a test that hangs.
const TIMEOUT: Duration = Duration::from_secs(60);

type Pretended = Arc<dyn ringtree::device::Device>;

struct FakeLane {
    device: Pretended,
    stream: Arc<dyn Stream>,
}

impl FakeLane {
    fn boxed(device: &Pretended) -> Box<dyn Lane> {
        Box::new(Self {
            stream: Arc::new(Unheld::new(device.stream().unwrap())),
            device: Arc::clone(device),
        })
    }
}

impl Lane for FakeLane {
    fn device(&self) -> &Pretended {
        &self.device
    }

    fn stream(&self) -> &Arc<dyn Stream> {
        &self.stream
    }

    fn take(&self, flat: &Tensor) -> Result<Memory> {
        for_element!(flat.dtype(), T => {
            let values = with_slice(flat, <[T]>::to_vec)?;
            // What was taken is no longer there.
            flat.slice_set(&(flat.ones_like()? * -7.0)?, 0, 0)?;
            let buffer = DeviceBuffer::new(&self.device, &self.stream, &values);
            Ok(buffer.map_err(candle_core::Error::wrap)?.into_memory())
        })
    }

    fn give_back(&self, flat: &Tensor, memory: Memory) -> Result<()> {
        for_element!(flat.dtype(), T => {
            let buffer = DeviceBuffer::<T>::from_memory(&self.device, &self.stream, memory);
            let values = buffer.read().map_err(candle_core::Error::wrap)?;
            flat.slice_set(&Tensor::from_vec(values, flat.shape(), &Device::Cpu)?, 0, 0)
        })
    }
}

/// The ranks' devices.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// One for all, which pauses.
    Shared,
    /// Each its own, which pauses: gradients go through the hosts.
    Own,
    /// As `Shared`, without streams that wait for words.
    Wordless,
}

/// Ranks as threads. (The simulator's clock does not move while a device is waited for.)
fn on_threads<R: Send>(
    world_size: usize,
    kind: Kind,
    script: impl Fn(&Communicator, &Pretended) -> R + Sync,
) -> Vec<R> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let rendezvous = listener.local_addr().unwrap().to_string();
    drop(listener);
    let fake = |rank: usize| -> Pretended {
        Arc::new(Fake::with(fake::Options {
            gpu: if kind == Kind::Own { rank as u8 } else { 0 },
            pauses: (kind != Kind::Wordless).then_some(rank as u64),
            word_operations: kind != Kind::Wordless,
            ..fake::Options::default()
        }))
    };
    let shared = fake(0);
    let rank = |rank: usize| {
        let builder = Communicator::builder().rank(rank).world_size(world_size);
        let builder = builder.rendezvous(&rendezvous).timeout(TIMEOUT);
        let (transport, device) = match kind {
            Kind::Own => (TransportChoice::Tcp, fake(rank)),
            Kind::Shared | Kind::Wordless => (TransportChoice::Shm, Arc::clone(&shared)),
        };
        let comm = builder.transport(transport).connect().unwrap();
        let end = script(&comm, &device);
        let _ = comm.barrier();
        end
    };
    std::thread::scope(|scope| {
        let rank = &rank;
        let ranks: Vec<_> = (0..world_size)
            .map(|number| scope.spawn(move || rank(number)))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn replica_on(comm: &Communicator, hooks: Hooks, device: &Pretended) -> Replica {
    let buckets = Options::new().buckets(BucketSize::Bytes(100));
    let lane = Some((Device::Cpu, FakeLane::boxed(device)));
    Replica::on_lane(comm, hooks, buckets, lane).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    let tensor = tensor.to_dtype(DType::F32).unwrap();
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// Parameters of several types and shapes.
const PARAMETERS: &[(&str, DType, &[usize])] = &[
    ("one", DType::F32, &[1]),
    ("half", DType::F16, &[2, 3]),
    ("long", DType::F32, &[5, 7]),
    ("brief", DType::BF16, &[4]),
    ("double", DType::F64, &[3, 2, 2]),
    ("scalar", DType::F32, &[]),
    ("tail", DType::BF16, &[2, 9]),
];

/// What the gradient of an element is on rank 0; on rank r it is r + 1 times as much.
fn slope(parameter: usize, element: usize) -> f32 {
    ((parameter * 3 + element) % 11) as f32 - 4.0
}

fn slopes(parameter: usize) -> Vec<f32> {
    let count: usize = PARAMETERS[parameter].2.iter().product();
    (0..count)
        .map(|element| slope(parameter, element))
        .collect()
}

/// The model: a sum of all elements of all parameters, each times its slope and `factor`.
fn sum_of(tensors: &[Tensor], factor: f64) -> Tensor {
    let mut sum = Tensor::zeros((), DType::F32, &Device::Cpu).unwrap();
    for (number, tensor) in tensors.iter().enumerate() {
        let slopes = Tensor::from_vec(slopes(number), tensor.shape(), &Device::Cpu).unwrap();
        let slopes = (slopes * factor).unwrap().to_dtype(tensor.dtype()).unwrap();
        let part = (tensor * slopes).unwrap().sum_all().unwrap();
        sum = (sum + part.to_dtype(DType::F32).unwrap()).unwrap();
    }
    sum
}

fn tensors_of(builder: &VarBuilder) -> Vec<Tensor> {
    let tensor = |(name, dtype, shape): &(&str, DType, &[usize])| {
        let builder = builder.to_dtype(*dtype);
        builder.get(*shape, name).unwrap()
    };
    PARAMETERS.iter().map(tensor).collect()
}

/// All gradients, in the order of the parameters.
fn found(varmap: &VarMap, gradients: &candle_core::backprop::GradStore) -> Vec<Option<Vec<f32>>> {
    let variables = varmap.data().lock().unwrap();
    let gradient = |(name, dtype, shape): &(&str, DType, &[usize])| {
        let gradient = gradients.get(&variables[*name])?;
        assert_eq!((gradient.dtype(), gradient.dims()), (*dtype, *shape));
        Some(values(gradient))
    };
    PARAMETERS.iter().map(gradient).collect()
}

#[test]
fn averages_of_all_types_come_back_to_their_places() {
    for world_size in 2..=4 {
        for kind in [Kind::Shared, Kind::Own, Kind::Wordless] {
            let steps = on_threads(world_size, kind, |comm, device| {
                let varmap = VarMap::new();
                let (builder, hooks) = var_builder(&varmap, DType::F32, &Device::Cpu);
                let tensors = tensors_of(&builder);
                let mut replica = replica_on(comm, hooks, device);
                // The buckets are laid out anew after the first.
                let step = |_: usize| {
                    let loss = sum_of(&tensors, comm.rank() as f64 + 1.0);
                    found(&varmap, &replica.backward(&loss).unwrap())
                };
                let steps: Vec<_> = (0..3).map(step).collect();
                assert!(replica.parallel().unwrap().buckets().len() > 4);
                steps
            });
            let mean = |value: f32| value * (world_size as f32 + 1.0) / 2.0;
            let parameters = 0..PARAMETERS.len();
            let expected: Vec<_> = parameters
                .map(|number| Some(slopes(number).into_iter().map(mean).collect::<Vec<_>>()))
                .collect();
            for step in steps.concat() {
                assert_eq!(step, expected, "{world_size} ranks, {kind:?}");
            }
        }
    }
}

#[test]
fn gradients_of_several_batches_add_up_and_the_next_step_begins_from_zero() {
    let steps = on_threads(2, Kind::Shared, |comm, device| {
        let varmap = VarMap::new();
        let (builder, hooks) = var_builder(&varmap, DType::F32, &Device::Cpu);
        let tensors = tensors_of(&builder);
        let mut replica = replica_on(comm, hooks, device);
        let mut step = || {
            let own = comm.rank() as f64 + 1.0;
            replica.backward_no_sync(&sum_of(&tensors, own)).unwrap();
            replica.backward_no_sync(&sum_of(&tensors, 2.0)).unwrap();
            found(&varmap, &replica.backward(&sum_of(&tensors, own)).unwrap())
        };
        [step(), step()]
    });
    let expected: Vec<_> = (0..PARAMETERS.len())
        .map(|number| {
            Some(
                slopes(number)
                    .into_iter()
                    .map(|slope| slope * 5.0)
                    .collect(),
            )
        })
        .collect();
    for step in steps.concat() {
        assert_eq!(step, expected);
    }
}

#[test]
fn where_no_gradient_came_others_count_and_zeros_are_added() {
    let found = on_threads(3, Kind::Shared, |comm, device| {
        let varmap = VarMap::new();
        let (builder, hooks) = var_builder(&varmap, DType::F32, &Device::Cpu);
        let names = ["both", "one", "none"];
        let tensors = names.map(|name| builder.get(2, name).unwrap());
        let mut replica = replica_on(comm, hooks, device).allow_unused();
        let steps: Vec<_> = (0..2)
            .map(|_| {
                let loss = match comm.rank() {
                    0 => (&tensors[0] + (&tensors[1] * 3.0).unwrap()).unwrap(),
                    _ => tensors[0].clone(),
                };
                let gradients = replica.backward(&loss.sum_all().unwrap()).unwrap();
                let variables = varmap.data().lock().unwrap();
                names.map(|name| gradients.get(&variables[name]).map(values))
            })
            .collect();
        steps
    });
    let expected = [Some(vec![1.0; 2]), Some(vec![1.0; 2]), None];
    for step in found.concat() {
        assert_eq!(step, expected);
    }
}

/// Weights after some steps.
fn trained(comm: &Communicator, lane: Option<Box<dyn Lane>>) -> BTreeMap<String, Vec<f32>> {
    let varmap = VarMap::new();
    let (builder, hooks) = var_builder(&varmap, DType::F32, &Device::Cpu);
    let layer = |number| linear(4, 4, builder.pp(format!("layer{number}"))).unwrap();
    let layers: Vec<_> = (0..3).map(layer).collect();
    for (name, var) in varmap.data().lock().unwrap().iter() {
        let letters: usize = name.bytes().map(usize::from).sum();
        let value = |at: usize| (((at + comm.rank()) * 37 + letters) % 19) as f32 / 19.0 - 0.5;
        let weights = (0..var.elem_count()).map(value).collect();
        set(var, weights);
    }
    let lane = lane.map(|lane| (Device::Cpu, lane));
    let options = Options::new().buckets(BucketSize::Bytes(90));
    let mut replica = Replica::on_lane(comm, hooks, options, lane).unwrap();
    let mut optimizer = SGD::new(varmap.all_vars(), 0.2).unwrap();
    for step in 0..4 {
        let inputs = [1.0, step as f32, comm.rank() as f32, -0.5];
        let mut hidden = Tensor::new(&[inputs], &Device::Cpu).unwrap();
        for layer in &layers {
            hidden = layer.forward(&hidden).unwrap().tanh().unwrap();
        }
        let loss = mse(&hidden, &hidden.ones_like().unwrap()).unwrap();
        replica.backward_step(&mut optimizer, &loss).unwrap();
    }
    let variables = varmap.data().lock().unwrap();
    let weights = variables.iter();
    weights
        .map(|(name, var)| (name.clone(), values(var)))
        .collect()
}

fn set(var: &Var, weights: Vec<f32>) {
    var.set(&Tensor::from_vec(weights, var.shape(), &Device::Cpu).unwrap())
        .unwrap();
}

#[test]
fn replicas_train_on_a_device_as_through_host_memory() {
    let host = ringtree::simulate(4, |comm| trained(comm, None));
    let device = on_threads(4, Kind::Shared, |comm, device| {
        trained(comm, Some(FakeLane::boxed(device)))
    });
    assert!(device.iter().all(|rank| *rank == device[0]));
    for (name, weights) in &host[0] {
        for (one, other) in weights.iter().zip(&device[0][name]) {
            assert!((one - other).abs() < 1e-5, "{name}: {one} {other}");
        }
    }
}

#[test]
fn a_rank_without_its_gradients_fails_all() {
    let ends = on_threads(3, Kind::Shared, |comm, device| {
        let varmap = VarMap::new();
        let (builder, hooks) = var_builder(&varmap, DType::F32, &Device::Cpu);
        let tensors = tensors_of(&builder);
        let mut replica = replica_on(comm, hooks, device);
        // A failure is everybody's: nobody is still setting up.
        comm.barrier().unwrap();
        let used = if comm.rank() == 1 { 3 } else { tensors.len() };
        let failed = replica.backward(&sum_of(&tensors[..used], 1.0));
        let again = replica.backward(&sum_of(&tensors, 1.0));
        (failed.unwrap_err().to_string(), again.is_err())
    });
    for (message, fails_again) in ends {
        assert!(message.contains("no gradient reached 4 of 7"), "{message}");
        assert!(fails_again);
    }
}

#[test]
fn a_hook_and_ranks_that_differ_are_named() {
    let device: Pretended = Arc::new(Fake::new());
    let attempt = |comm: &Communicator, options: Options, is_on_device: bool| {
        let varmap = VarMap::new();
        let (builder, hooks) = var_builder(&varmap, DType::F32, &Device::Cpu);
        tensors_of(&builder);
        let lane = || (Device::Cpu, FakeLane::boxed(&device));
        let replica = Replica::on_lane(comm, hooks, options, is_on_device.then(lane));
        replica.err().unwrap().to_string()
    };
    for message in ringtree::simulate(2, |comm| {
        attempt(comm, Options::new().hook(HalfHook::bf16()), true)
    }) {
        assert!(message.contains("choose none"), "{message}");
    }
    for message in ringtree::simulate(2, |comm| attempt(comm, Options::new(), comm.rank() == 0)) {
        assert!(message.contains("gradients in host memory"), "{message}");
    }
}
