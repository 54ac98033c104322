//! Tests replicas whose gradients are averaged on a device, with processes on a fake driver. Their
//! tensors are in host memory: `StagedLane` copies the gradients to the device and the averages
//! back.

#[path = "../../../../tests/gpu/device/driver.rs"]
mod driver;

use super::*;
use crate::elements::with_slice;
use crate::{Hooks, Replica, var_builder};
use candle_core::Var;
use candle_nn::{Module, Optimizer, SGD, VarBuilder, VarMap, linear, loss::mse};
use ringtree::cuda::Stream;
use ringtree::ddp::{BucketSize, HalfHook, Options};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::TcpListener;
use std::process::{Command, Stdio};

type Gpu = ringtree::cuda::Device;

/// Name of the environment variable that makes a process a rank. Its value identifies the test and
/// the world.
const ROLE: &str = "RINGTREE_TEST_ROLE";
/// Prefix of the line on which a rank prints its result.
const MARK: &str = "rank result: ";

struct StagedLane {
    device: Gpu,
    stream: Stream,
}

impl StagedLane {
    fn boxed(device: &Gpu) -> Box<dyn Lane> {
        Box::new(Self {
            stream: device.stream().unwrap(),
            device: device.clone(),
        })
    }
}

impl Lane for StagedLane {
    fn device(&self) -> &Gpu {
        &self.device
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn take(&self, flat: &Tensor) -> Result<Memory> {
        for_element!(flat.dtype(), T => {
            let values = with_slice(flat, <[T]>::to_vec)?;
            // The tensor must not be read while the collective has its memory.
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

/// Runs `script` on ranks that are processes running the same test of this binary. Returns the
/// `Debug` text of each rank's result.
fn on_processes<R: Debug>(
    test: &str,
    world_size: usize,
    transport: &str,
    script: impl Fn(&Communicator, &Gpu) -> R,
) -> Vec<String> {
    // A test may start several worlds, so the role also identifies the world.
    let role = format!("{test}, {world_size} by {transport}");
    if let Ok(own) = std::env::var(ROLE) {
        if own != role {
            return Vec::new();
        }
        let comm = Communicator::from_env().unwrap();
        let end = script(&comm, &Gpu::open(0).unwrap());
        let _ = comm.barrier();
        eprintln!("{MARK}{end:?}");
        std::process::exit(0);
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let rendezvous = listener.local_addr().unwrap().to_string();
    drop(listener);
    let start = |rank: usize| {
        let (rank, ranks) = (rank.to_string(), world_size.to_string());
        Command::new(std::env::current_exe().unwrap())
            .args([&format!("buckets::tests::{test}"), "--exact", "--nocapture"])
            .env("LD_LIBRARY_PATH", driver::folder())
            .env("STRICT", "1")
            .env(ROLE, &role)
            .envs([("RANK", &rank), ("LOCAL_RANK", &rank)])
            .envs([("WORLD_SIZE", &ranks), ("LOCAL_WORLD_SIZE", &ranks)])
            .env("RINGTREE_RENDEZVOUS", &rendezvous)
            .env("RINGTREE_TRANSPORT", transport)
            .env("RINGTREE_TIMEOUT_MS", "60000")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<_> = (0..world_size).map(start).collect();
    let result = |child: std::process::Child| {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let result = text.lines().find_map(|line| line.strip_prefix(MARK));
        result.unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    children.into_iter().map(result).collect()
}

fn replica_on(comm: &Communicator, hooks: Hooks, device: &Gpu) -> Replica {
    let buckets = Options::new().buckets(BucketSize::Bytes(100));
    let lane = Some((Device::Cpu, StagedLane::boxed(device)));
    Replica::with_lane(comm, hooks, buckets, lane).unwrap()
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

/// Returns the gradient of an element on rank 0. On rank r, it is r + 1 times as large.
fn slope(parameter: usize, element: usize) -> f32 {
    ((parameter * 3 + element) % 11) as f32 - 4.0
}

fn slopes(parameter: usize) -> Vec<f32> {
    let count: usize = PARAMETERS[parameter].2.iter().product();
    (0..count)
        .map(|element| slope(parameter, element))
        .collect()
}

/// Returns the loss of the model: the sum of all elements of all parameters, each multiplied by
/// its slope and `factor`.
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

/// Returns all gradients in the order of [`PARAMETERS`].
fn ordered_gradients(
    varmap: &VarMap,
    gradients: &candle_core::backprop::GradStore,
) -> Vec<Option<Vec<f32>>> {
    let variables = varmap.data().lock().unwrap();
    let gradient = |(name, dtype, shape): &(&str, DType, &[usize])| {
        let gradient = gradients.get(&variables[*name])?;
        assert_eq!((gradient.dtype(), gradient.dims()), (*dtype, *shape));
        Some(values(gradient))
    };
    PARAMETERS.iter().map(gradient).collect()
}

#[test]
fn averages_of_all_types_return_to_their_parameters() {
    for world_size in 2..=4 {
        for transport in ["shm", "tcp"] {
            let test = "averages_of_all_types_return_to_their_parameters";
            let ends = on_processes(test, world_size, transport, |comm, device| {
                let varmap = VarMap::new();
                let (builder, hooks) = var_builder(&varmap, DType::F32, &Device::Cpu);
                let tensors = tensors_of(&builder);
                let mut replica = replica_on(comm, hooks, device);
                // After the first step, the buckets get a new layout.
                let step = |_: usize| {
                    let loss = sum_of(&tensors, comm.rank() as f64 + 1.0);
                    ordered_gradients(&varmap, &replica.backward(&loss).unwrap())
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
            let expected = format!("{:?}", vec![expected; 3]);
            for end in ends {
                assert_eq!(end, expected, "{world_size} ranks, {transport}");
            }
        }
    }
}

#[test]
fn batches_accumulate_and_next_step_starts_from_zero() {
    let test = "batches_accumulate_and_next_step_starts_from_zero";
    let ends = on_processes(test, 2, "shm", |comm, device| {
        let varmap = VarMap::new();
        let (builder, hooks) = var_builder(&varmap, DType::F32, &Device::Cpu);
        let tensors = tensors_of(&builder);
        let mut replica = replica_on(comm, hooks, device);
        let mut step = || {
            let own = comm.rank() as f64 + 1.0;
            replica.backward_no_sync(&sum_of(&tensors, own)).unwrap();
            replica.backward_no_sync(&sum_of(&tensors, 2.0)).unwrap();
            ordered_gradients(&varmap, &replica.backward(&sum_of(&tensors, own)).unwrap())
        };
        [step(), step()]
    });
    let expected: Vec<_> = (0..PARAMETERS.len())
        .map(|number| {
            Some(
                slopes(number)
                    .into_iter()
                    .map(|slope| slope * 5.0)
                    .collect::<Vec<_>>(),
            )
        })
        .collect();
    for end in ends {
        assert_eq!(end, format!("{:?}", [&expected, &expected]));
    }
}

#[test]
fn gradients_missing_on_some_ranks_count_as_zero() {
    let test = "gradients_missing_on_some_ranks_count_as_zero";
    let ends = on_processes(test, 3, "shm", |comm, device| {
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
    let expected = [Some(vec![1.0f32; 2]), Some(vec![1.0; 2]), None];
    for end in ends {
        assert_eq!(end, format!("{:?}", [&expected, &expected]));
    }
}

/// Trains a model for a few steps and returns the weights.
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
    let mut replica = Replica::with_lane(comm, hooks, options, lane).unwrap();
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
fn training_on_device_matches_host_memory() {
    let host = ringtree::simulate(4, |comm| trained(comm, None));
    let test = "training_on_device_matches_host_memory";
    let ends = on_processes(test, 4, "shm", |comm, device| {
        let weights = trained(comm, Some(StagedLane::boxed(device)));
        for (name, on_host) in &host[0] {
            for (one, other) in on_host.iter().zip(&weights[name]) {
                assert!((one - other).abs() < 1e-5, "{name}: {one} {other}");
            }
        }
        weights
    });
    assert!(ends.iter().all(|end| *end == ends[0]));
}

#[test]
fn missing_gradients_on_one_rank_fail_all_ranks() {
    let test = "missing_gradients_on_one_rank_fail_all_ranks";
    let ends = on_processes(test, 3, "shm", |comm, device| {
        let varmap = VarMap::new();
        let (builder, hooks) = var_builder(&varmap, DType::F32, &Device::Cpu);
        let tensors = tensors_of(&builder);
        let mut replica = replica_on(comm, hooks, device);
        // A failure affects all ranks, so wait until no rank is still setting up.
        comm.barrier().unwrap();
        let used = if comm.rank() == 1 { 3 } else { tensors.len() };
        let failed = replica.backward(&sum_of(&tensors[..used], 1.0));
        let again = replica.backward(&sum_of(&tensors, 1.0));
        (failed.unwrap_err().to_string(), again.is_err())
    });
    for end in ends {
        assert!(end.contains("no gradient reached 4 of 7"), "{end}");
        assert!(end.ends_with("true)"), "{end}");
    }
}

#[test]
fn hooks_and_mixed_devices_are_errors() {
    let attempt = |comm: &Communicator, options: Options, device: Option<&Gpu>| {
        let varmap = VarMap::new();
        let (builder, hooks) = var_builder(&varmap, DType::F32, &Device::Cpu);
        tensors_of(&builder);
        let lane = device.map(|device| (Device::Cpu, StagedLane::boxed(device)));
        let replica = Replica::with_lane(comm, hooks, options, lane);
        replica.err().unwrap().to_string()
    };
    let test = "hooks_and_mixed_devices_are_errors";
    for message in on_processes(test, 2, "shm", |comm, device| {
        attempt(comm, Options::new().hook(HalfHook::bf16()), Some(device))
    }) {
        assert!(message.contains("remove the hook"), "{message}");
    }
    for message in on_processes(test, 2, "tcp", |comm, device| {
        let device = (comm.rank() == 0).then_some(device);
        attempt(comm, Options::new(), device)
    }) {
        assert!(message.contains("gradients in host memory"), "{message}");
    }
}
