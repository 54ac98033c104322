//! Tests that an optimizer whose state is sharded over the ranks gives the same bits as a
//! replicated one.

use ringtree::ddp::checkpoint::{Checkpoints, Directory, Parts, Run};
use ringtree::ddp::{AdamW, BucketSize, DataParallel, NonFinite, Optimizer, Options, Parameter};
use ringtree::internal::ddp::{BucketInfo, Exchange, Hook, Next, Values};
use ringtree::{Communicator, Dtype, ErrorKind, ReduceOp, Result};
use std::path::Path;

/// A hook that averages by a reduce-scatter and an all-gather, like sharded training.
struct TwoHalves;

impl Hook for TwoHalves {
    fn name(&self) -> String {
        "two halves".into()
    }

    fn stages(&self) -> usize {
        2
    }

    fn start(&mut self, _: &BucketInfo, gradients: Vec<f32>) -> Exchange {
        Exchange::ReduceScatter(gradients.into(), ReduceOp::Avg)
    }

    fn resume(&mut self, _: &BucketInfo, stage: usize, values: Values) -> Next {
        match stage {
            0 => Next::Exchange(Exchange::AllGather(values)),
            _ => Next::Done(values.try_into().expect("f32 was sent")),
        }
    }
}

const COUNTS: [usize; 5] = [700, 3, 64, 1, 333];

fn parameters() -> Vec<Parameter> {
    let one = |(number, count): (usize, &usize)| {
        let shape = if number % 2 == 0 {
            vec![1, *count]
        } else {
            vec![*count]
        };
        Parameter::new(&format!("p{number}"), &shape, Dtype::F32)
    };
    COUNTS.iter().enumerate().map(one).collect()
}

fn options() -> Options {
    let options = Options::new().buckets(BucketSize::Bytes(1500));
    options.clip_norm(0.5).allow_unused()
}

fn model(comm: &Communicator, is_sharded: bool) -> Result<DataParallel> {
    let options = match is_sharded {
        true => options().sharded(),
        false => options().hook(TwoHalves),
    };
    DataParallel::new(comm, parameters(), options)
}

fn rule() -> AdamW {
    AdamW {
        weight_decay: 0.1,
        decays_vectors: false,
        ..AdamW::default()
    }
}

/// Returns an artificial gradient that depends on the weight.
fn slope(weight: f32, at: usize, rank: usize, step: u64) -> f32 {
    let noise = (at * 37 + rank * 101 + step as usize * 13) % 97;
    0.3 * weight + (noise as f32 - 48.0) / 31.0
}

/// A training run that can be saved and restored.
struct Training {
    model: DataParallel,
    optimizer: Optimizer<AdamW>,
    weights: Vec<Vec<f32>>,
}

impl Training {
    fn new(comm: &Communicator, is_sharded: bool) -> Result<Self> {
        let model = model(comm, is_sharded)?;
        Ok(Self {
            optimizer: Optimizer::new(&model, rule())?,
            model,
            weights: COUNTS.iter().map(|count| vec![0.5; *count]).collect(),
        })
    }

    /// Trains for `steps`. Backward visits the parameters in a fixed order that differs from that
    /// of their registration, and skips one in every third step.
    fn train(&mut self, comm: &Communicator, steps: std::ops::Range<u64>) -> Result<()> {
        for step in steps {
            for number in [2, 4, 0, 3, 1] {
                if number == 3 && step % 3 == 1 {
                    continue;
                }
                let weights = self.weights[number].iter().enumerate();
                let slopes = weights.map(|(at, one)| slope(*one, at, comm.rank(), step));
                let gradient: Vec<f32> = slopes.collect();
                self.model.report(number, &gradient)?;
            }
            self.model.wait()?;
            let weights = &mut self.weights[..];
            self.optimizer.step(&mut self.model, weights, 0.01)?;
        }
        Ok(())
    }
}

/// Trains for seven steps. Returns each rank's weights, bytes of optimizer state and gradient norm.
fn trained(ranks: usize, is_sharded: bool) -> Vec<(Vec<Vec<f32>>, usize, Option<f64>)> {
    let ends = ringtree::simulate(ranks, move |comm| {
        let mut training = Training::new(comm, is_sharded)?;
        training.train(comm, 0..7)?;
        let bytes = training.optimizer.state_bytes();
        Ok::<_, ringtree::Error>((training.weights, bytes, training.model.gradient_norm()))
    });
    ends.into_iter().map(|end| end.unwrap()).collect()
}

#[test]
fn sharded_run_has_the_bits_of_a_replicated_run() {
    for ranks in [1, 2, 3, 4, 7] {
        let (replicated, sharded) = (trained(ranks, false), trained(ranks, true));
        let all: usize = 2 * 4 * COUNTS.iter().sum::<usize>();
        let mut kept = 0;
        for (rank, (weights, bytes, norm)) in sharded.iter().enumerate() {
            assert_eq!(*weights, replicated[0].0, "rank {rank} of {ranks}");
            assert_eq!(*norm, replicated[0].2, "rank {rank} of {ranks}");
            assert!(
                norm.is_some_and(|norm| norm > 0.5),
                "the norm must be clipped: {norm:?}"
            );
            kept += bytes;
        }
        assert_eq!(kept, all, "{ranks} ranks");
        assert!(replicated.iter().all(|(_, bytes, _)| *bytes == all));
    }
}

/// Resumes from the newest checkpoint in `directory`, trains until step `until`, and saves a
/// checkpoint.
fn resumed(directory: &Path, ranks: usize, is_sharded: bool, until: u64) -> Vec<Vec<f32>> {
    let ends = ringtree::simulate(ranks, move |comm| {
        let mut run = Run::open(comm, Checkpoints::new(Directory::new(directory), 9))?;
        let mut training = Training::new(run.comm(), is_sharded)?;
        let Training {
            model,
            optimizer,
            weights,
        } = &mut training;
        let from = run.resume(model, None, |all| parts(all, optimizer, weights))?;
        assert_eq!(optimizer.steps(), from);
        training.train(comm, from..until)?;
        let Training {
            model,
            optimizer,
            weights,
        } = &mut training;
        run.save(model, None, None, |all| parts(all, optimizer, weights))?;
        run.finish()?;
        Ok::<_, ringtree::Error>(training.weights)
    });
    let mut ends = ends.into_iter().map(|end| end.unwrap());
    let first = ends.next().unwrap();
    assert!(
        ends.all(|end| end == first),
        "all ranks have the same weights"
    );
    first
}

fn parts(
    parts: &mut Parts<'_>,
    optimizer: &mut Optimizer<AdamW>,
    weights: &mut [Vec<f32>],
) -> Result<()> {
    for (parameter, weights) in parameters().iter().zip(weights) {
        parts.tensor(
            &format!("model/{}", parameter.name),
            &parameter.shape,
            weights,
        )?;
    }
    optimizer.parts(parts)
}

#[test]
fn checkpoint_resumes_on_any_number_of_ranks_sharded_or_not() {
    let undisturbed = tempfile::tempdir().unwrap();
    let undisturbed = resumed(undisturbed.path(), 3, true, 7);
    for (ranks, is_sharded) in [(3, true), (2, true), (5, true), (2, false)] {
        let directory = tempfile::tempdir().unwrap();
        resumed(directory.path(), 3, true, 3);
        let there = resumed(directory.path(), ranks, is_sharded, 3);
        let back = resumed(directory.path(), 3, true, 3);
        assert_eq!(there, back, "resuming on {ranks} ranks loses nothing");
        let end = resumed(directory.path(), 3, true, 7);
        assert_eq!(
            end, undisturbed,
            "resumed on {ranks} ranks, sharded: {is_sharded}"
        );
        resumed(directory.path(), ranks, is_sharded, 9);
    }
}

#[test]
fn skipped_step_changes_neither_weights_nor_state() {
    let ends = ringtree::simulate(2, |comm| {
        let options = options().sharded().non_finite(NonFinite::Skip);
        let mut model = DataParallel::new(comm, parameters(), options)?;
        let mut optimizer = Optimizer::new(&model, rule())?;
        let mut weights: Vec<_> = COUNTS.iter().map(|count| vec![1.0; *count]).collect();
        let value = if comm.rank() == 0 { f32::NAN } else { 1.0 };
        model.report(0, &vec![value; COUNTS[0]])?;
        model.wait()?;
        optimizer.step(&mut model, &mut weights[..], 0.1)?;
        assert_eq!(optimizer.steps(), 0);
        Ok::<_, ringtree::Error>(weights.iter().flatten().all(|one| *one == 1.0))
    });
    assert_eq!(ends, [Ok(true), Ok(true)]);
}

#[test]
fn second_step_after_one_wait_is_rejected_and_has_no_effect() {
    for is_sharded in [false, true] {
        let ends = ringtree::simulate(2, |comm| {
            let mut training = Training::new(comm, is_sharded)?;
            for step in 0..=7 {
                let weights = &mut training.weights[..];
                let refused = training.optimizer.step(&mut training.model, weights, 0.01);
                let refused = refused.unwrap_err();
                assert!(refused.kind() == ErrorKind::Usage, "{refused:?}");
                training.train(comm, step..7.min(step + 1))?;
            }
            Ok::<_, ringtree::Error>((training.weights, training.optimizer.steps()))
        });
        for (end, (weights, ..)) in ends.into_iter().zip(trained(2, is_sharded)) {
            assert_eq!(end, Ok((weights, 7)), "sharded: {is_sharded}");
        }
    }
}

#[test]
fn misuse_errors_name_the_cause() {
    let lines = ringtree::simulate(2, |comm| {
        let mut training = Training::new(comm, true)?;
        training.train(comm, 0..1)?;
        let Training {
            mut model,
            mut optimizer,
            ..
        } = training;
        let read = model.gradient::<f32>(0).unwrap_err().to_string();
        let hook = options().sharded().hook(TwoHalves);
        let hook = DataParallel::new(comm, parameters(), hook).unwrap_err();
        let clip = Options::new().clip_norm(f64::NAN);
        let clip = DataParallel::new(comm, parameters(), clip).unwrap_err();
        let rule = AdamW {
            epsilon: 1e-3 * (1 + comm.rank()) as f64,
            ..rule()
        };
        let rules = Optimizer::new(&model, rule).unwrap_err().to_string();
        model.report(0, &vec![1.0f32; COUNTS[0]])?;
        let early = optimizer.step(&mut model, &mut [[0.0f32; 1]][..], 0.1);
        let early = early.unwrap_err().to_string();
        model.wait()?;
        let short = optimizer.step(&mut model, &mut [[0.0f32; 1]][..], 0.1);
        let short = short.unwrap_err().to_string();
        Ok::<_, ringtree::Error>([
            read,
            hook.to_string(),
            clip.to_string(),
            rules,
            early,
            short,
        ])
    });
    for lines in lines {
        let lines = lines.unwrap();
        let parts = [
            "ddp::Optimizer",
            "two halves",
            "NaN",
            "epsilon",
            "`wait`",
            "weights",
        ];
        for (line, part) in lines.iter().zip(parts) {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
}
