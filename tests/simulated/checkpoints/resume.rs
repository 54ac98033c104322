//! Tests the promises of `Run` on training runs that are interrupted and resumed.

use super::Memory;
use ringtree::ddp::checkpoint::{Checkpoints, Directory, Parts, Run, Store};
use ringtree::ddp::{DataParallel, DistributedSampler, Options, Parameter, PowerSgd};
use ringtree::internal::ddp::{BucketInfo, Exchange, Hook, Next, Values, hook_state, restore_hook};
use ringtree::sim::World;
use ringtree::tuning::TuningOrigin;
use ringtree::{Communicator, Dtype, ErrorKind, ReduceOp, Result, simulate};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Weights, momentum, per-rank state, the sampler's position, and the value `best`.
type Bits = (Vec<u32>, Vec<u32>, u64, u64, u64);

const ROWS: usize = 8;
const SAMPLES: usize = 50;

/// A model of one matrix, with a lossy hook, momentum and shuffled data.
struct Trainer {
    model: DataParallel,
    sampler: DistributedSampler,
    weights: Vec<f32>,
    momentum: Vec<f32>,
    /// Per-rank state.
    noise: [u64; 1],
    best: f64,
}

impl Trainer {
    fn new(comm: &Communicator) -> Result<Self> {
        let parameters = vec![Parameter::new("weight", &[ROWS, ROWS], Dtype::F32)];
        let options = Options::new().hook(PowerSgd::new(1));
        Ok(Self {
            model: DataParallel::new(comm, parameters, options)?,
            sampler: DistributedSampler::new(SAMPLES, 3, comm.rank(), comm.world_size())?,
            weights: vec![0.5; ROWS * ROWS],
            momentum: vec![0.0; ROWS * ROWS],
            noise: [comm.rank() as u64 + 1],
            best: 1.0,
        })
    }

    fn resume(&mut self, run: &mut Run) -> Result<u64> {
        run.resume(&mut self.model, &mut self.sampler, |all| {
            parts(
                all,
                &mut self.weights,
                &mut self.momentum,
                &mut self.noise,
                &mut self.best,
            )
        })
    }

    fn save(&mut self, run: &mut Run, loss: Option<f64>) -> Result<()> {
        run.save(&self.model, &self.sampler, loss, |all| {
            parts(
                all,
                &mut self.weights,
                &mut self.momentum,
                &mut self.noise,
                &mut self.best,
            )
        })
    }

    fn step(&mut self) -> Result<()> {
        if self.sampler.len() == 0 {
            self.sampler.set_epoch(self.sampler.epoch() + 1);
        }
        let sample = self.sampler.next().unwrap() as f32;
        self.noise[0] = self.noise[0].wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 1;
        let noise = (self.noise[0] >> 60) as f32;
        let slopes = self.weights.iter().enumerate();
        let slopes: Vec<f32> = slopes
            .map(|(at, weight)| weight * sample * 0.01 + (at as f32).sin() * noise)
            .collect();
        self.model.report(0, &slopes)?;
        self.model.wait()?;
        let slopes = self.model.gradient::<f32>(0)?.unwrap();
        for ((weight, momentum), slope) in
            self.weights.iter_mut().zip(&mut self.momentum).zip(slopes)
        {
            *momentum = 0.9 * *momentum + slope;
            *weight -= 0.001 * *momentum;
        }
        self.best = self.best.min(f64::from(self.weights[0]));
        Ok(())
    }

    /// Returns all state that must equal that of an undisturbed run.
    fn bits(&self) -> Bits {
        let bits = |values: &[f32]| values.iter().map(|one| one.to_bits()).collect();
        let position = self.sampler.position() + (self.sampler.epoch() << 32);
        let (weights, momentum) = (bits(&self.weights), bits(&self.momentum));
        (
            weights,
            momentum,
            self.noise[0],
            position,
            self.best.to_bits(),
        )
    }
}

fn parts(
    all: &mut Parts<'_>,
    weights: &mut [f32],
    momentum: &mut [f32],
    noise: &mut [u64],
    best: &mut f64,
) -> Result<()> {
    all.tensor("model/weight", &[ROWS, ROWS], weights)?;
    all.tensor("optimizer/momentum", &[ROWS, ROWS], momentum)?;
    all.own("noise", &[1], noise)?;
    all.value("best", best)
}

fn open(comm: &Communicator, store: &(impl Store + Clone + 'static)) -> Result<Run> {
    Run::open(comm, Checkpoints::new(store.clone(), 3))
}

/// Opens a run on `store` and creates its trainer, which has not resumed yet.
fn set_up(comm: &Communicator, store: &(impl Store + Clone + 'static)) -> Result<(Run, Trainer)> {
    let run = open(comm, store)?;
    let trainer = Trainer::new(run.comm())?;
    Ok((run, trainer))
}

/// Trains on two ranks to `steps`. Returns a store with a checkpoint of every seventh step.
fn trained(steps: u64) -> Memory {
    let store = Memory::default();
    let ends = simulate(2, |comm| train(comm, &store, steps, 7).map(drop));
    assert_eq!(ends, [Ok(()), Ok(())]);
    store
}

/// Resumes from `store` and trains to `steps`, saving every `every` steps. Returns the step at
/// which it resumed, and the final state.
fn train(
    comm: &Communicator,
    store: &(impl Store + Clone + 'static),
    steps: u64,
    every: u64,
) -> Result<(u64, Bits)> {
    let (mut run, mut trainer) = set_up(comm, store)?;
    let began_at = trainer.resume(&mut run)?;
    while trainer.model.steps() < steps {
        trainer.step()?;
        if trainer.model.steps().is_multiple_of(every) {
            trainer.save(&mut run, None)?;
        }
    }
    run.finish()?;
    Ok((began_at, trainer.bits()))
}

#[test]
fn resumed_run_ends_with_the_same_bits() {
    for ranks in [1, 3] {
        let calm = simulate(ranks, |comm| train(comm, &Memory::default(), 40, 7));
        let store = Memory::default();
        let mut began = 0;
        // One of the interruptions is after the start of the second epoch.
        for (until, expected) in [(5, 0), (17, 0), (38, 14), (40, 35)] {
            let ends = simulate(ranks, |comm| train(comm, &store, until, 7));
            for (end, calm) in ends.iter().zip(&calm) {
                let (began_at, bits) = end.as_ref().unwrap();
                began = *began_at;
                assert_eq!(began, expected);
                let (_, undisturbed) = calm.as_ref().unwrap();
                assert_eq!(bits == undisturbed, until == 40, "until {until}");
            }
        }
        assert_eq!(began, 35);
    }
}

#[test]
fn resumed_run_keeps_the_tuning_table_of_its_checkpoint() {
    let store = Memory::default();
    let mut slow = World::new(3);
    slow.tuning.tcp.alpha_s = 1e-3;
    let ends = slow.run(|comm| train(comm, &store, 7, 7).map(|(_, bits)| bits));
    let tables = |ranks: usize| {
        let tables = simulate(ranks, |comm| {
            let run = open(comm, &store)?;
            run.comm().barrier()?;
            Ok::<_, ringtree::Error>((run.comm().tuning().table(), run.comm().info().tuning_origin))
        });
        tables.into_iter().map(Result::unwrap).collect::<Vec<_>>()
    };
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    assert_eq!(tables(3), vec![(slow.tuning, TuningOrigin::Kept); 3]);
    // The table does not apply to a different number of ranks.
    assert!(tables(2).iter().all(|(table, _)| *table != slow.tuning));
}

#[test]
fn save_before_resume_or_during_a_step_is_rejected() {
    let store = Memory::default();
    let ends = simulate(2, |comm| {
        let (mut run, mut trainer) = set_up(comm, &store)?;
        let refused = trainer.save(&mut run, None).unwrap_err();
        assert!(
            refused.kind() == ErrorKind::Usage && refused.to_string().contains("call `resume`")
        );
        trainer.resume(&mut run)?;
        trainer.model.report(0, &vec![1.0f32; ROWS * ROWS])?;
        let refused = trainer.save(&mut run, None).unwrap_err();
        assert!(
            refused.kind() == ErrorKind::Usage && refused.to_string().contains("middle of a step")
        );
        trainer.model.wait()?;
        trainer.save(&mut run, None)
    });
    assert_eq!(ends, [Ok(()), Ok(())]);
}

#[test]
fn checkpoint_of_another_model_is_an_error_and_changes_nothing() {
    let store = trained(7);
    let ends = simulate(2, |comm| {
        let (mut run, mut trainer) = set_up(comm, &store)?;
        let mut weights = vec![4.0f32; 2 * ROWS];
        let error = run.resume(&mut trainer.model, &mut trainer.sampler, |all| {
            all.tensor("model/weight", &[2, ROWS], &mut weights)?;
            all.tensor("model/bias", &[1], &mut [0.0f64])?;
            all.own("noise", &[1], &mut [0u64])?;
            all.value("settings", &mut 3u32)
        });
        let error = error.unwrap_err();
        assert!(error.kind() == ErrorKind::Usage);
        assert_eq!(weights, vec![4.0; 2 * ROWS]);
        assert_eq!(trainer.model.steps(), 0);
        Ok::<_, ringtree::Error>(error.to_string())
    });
    let expected = "the checkpoint of step 7 does not match the program: it lacks model/bias [1] \
                    f64, settings; it has model/weight as [8, 8] f32 instead of [2, 8] f32; it has \
                    parts that the program does not expect: optimizer/momentum, best; name the \
                    same parts as the program that saved it";
    assert_eq!(ends, vec![Ok(expected.to_owned()); 2]);
    // If only one rank has different parts, all ranks get an error that names this rank.
    let ends = simulate(2, |comm| {
        let (mut run, mut trainer) = set_up(comm, &store)?;
        if comm.rank() == 1 {
            trainer.sampler = DistributedSampler::new(SAMPLES + 1, 3, 1, 2)?;
        }
        trainer.resume(&mut run)
    });
    for end in ends {
        let line = end.unwrap_err().to_string();
        assert!(
            line.contains("51 samples") && line.contains("a data set of 50"),
            "{line}"
        );
        assert!(line.ends_with("(seen by rank 1)"), "{line}");
    }
    // The same happens if one rank's code fails while the state is loaded.
    let ends = simulate(2, |comm| {
        let (mut run, mut trainer) = set_up(comm, &store)?;
        let mut passes = 0;
        run.resume(&mut trainer.model, &mut trainer.sampler, |all| {
            passes += 1;
            if passes == 2 && comm.rank() == 1 {
                return Err(ringtree::Error::new(
                    ringtree::ErrorKind::System,
                    "no memory on the device",
                ));
            }
            let (weights, momentum) = (&mut trainer.weights, &mut trainer.momentum);
            parts(
                all,
                weights,
                momentum,
                &mut trainer.noise,
                &mut trainer.best,
            )
        })
    });
    for end in ends {
        let line = end.unwrap_err().to_string();
        let expected = "partly overwritten: no memory on the device (seen by rank 1)";
        assert!(line.ends_with(expected), "{line}");
    }
}

/// A hook with per-rank state, which it may fail to restore.
struct Picky {
    fits: bool,
}

impl Hook for Picky {
    fn name(&self) -> String {
        "picky".to_owned()
    }
    fn start(&mut self, _: &BucketInfo, gradients: Vec<f32>) -> Exchange {
        Exchange::AllReduce(gradients.into(), ReduceOp::Avg, None)
    }
    fn resume(&mut self, _: &BucketInfo, _: usize, averaged: Values) -> Next {
        Next::Done(averaged.try_into().unwrap())
    }
    fn state(&self) -> Vec<(String, Vec<f32>)> {
        vec![("seen".to_owned(), vec![1.0])]
    }
    fn restore(&mut self, _: Vec<(String, Vec<f32>)>) -> Result<()> {
        match self.fits {
            true => Ok(()),
            false => Err(ringtree::Error::new(
                ErrorKind::Usage,
                "it is of another data set",
            )),
        }
    }
}

/// Opens a run on `store` with a model whose hook is [`Picky`]. The model's group contains all
/// ranks, or only this rank if `is_apart` is `true`.
fn set_up_picky(
    comm: &Communicator,
    store: &Memory,
    is_apart: bool,
    fits: bool,
) -> Result<(Run, DataParallel)> {
    let run = open(comm, store)?;
    let color = if is_apart { comm.rank() } else { 0 };
    let group = run.comm().split(color, 0)?;
    let parameters = vec![Parameter::new("weight", &[1], Dtype::F32)];
    let options = Options::new().hook(Picky { fits });
    let model = DataParallel::new(&group, parameters, options)?;
    Ok((run, model))
}

#[test]
fn hook_that_one_rank_cannot_restore_fails_on_every_rank() {
    let resume = |run: &mut Run, model: &mut DataParallel| {
        run.resume(model, None, |all| all.value("best", &mut 1.0))
    };
    let store = Memory::default();
    let ends = simulate(3, |comm| {
        let (mut run, mut model) = set_up_picky(comm, &store, false, true)?;
        resume(&mut run, &mut model)
    });
    assert_eq!(ends, [Ok(0), Ok(0), Ok(0)]);
    // `other` contains the same checkpoint, except that rank 1's hook state has a different type.
    let other = Memory::default();
    let checkpoints = Checkpoints::new(store.clone(), 1);
    let mut checkpoint = checkpoints.load(0).unwrap();
    checkpoint.insert("rank-1/hook/seen", &[1], &[1u8]).unwrap();
    Checkpoints::new(other.clone(), 1)
        .save(&checkpoint)
        .unwrap();

    let other_data = "cannot restore the state of the hook picky: it is of another data set";
    for is_apart in [false, true] {
        let cases = [
            (&store, 1, other_data),
            (&other, 3, "tensor 'rank-1/hook/seen'"),
        ];
        for (store, picky_rank, words) in cases {
            let ends = simulate(3, |comm| {
                let fits = comm.rank() != picky_rank;
                let (mut run, mut model) = set_up_picky(comm, store, is_apart, fits)?;
                let began = comm.clock();
                let error = resume(&mut run, &mut model).unwrap_err();
                assert!(error.kind() == ErrorKind::Usage, "{error}");
                assert!(comm.clock() - began < Duration::from_secs(1));
                // The communicator still works.
                comm.barrier()?;
                Ok::<_, ringtree::Error>(error.to_string())
            });
            let line = ends[0].clone().unwrap();
            assert!(line.contains(words), "{line}");
            assert!(line.ends_with("(seen by rank 1)"), "{line}");
            assert_eq!(ends, vec![Ok(line); 3]);
        }
    }
    // Next, the program saves and restores the hook's state itself.
    let ends = simulate(2, |comm| {
        let (_, mut model) = set_up_picky(comm, &Memory::default(), false, comm.rank() != 1)?;
        let state = hook_state(&model);
        restore_hook(&mut model, state)
    });
    for end in ends {
        let line = end.unwrap_err().to_string();
        assert!(
            line.ends_with("another data set (seen by rank 1)"),
            "{line}"
        );
    }
}

#[test]
fn sharded_state_loads_on_more_or_fewer_ranks() {
    let state = |comm: &Communicator, at: usize| comm.block(10).map(move |one| (one + at) as i64);
    let (store, names) = (Memory::default(), "optimizer/state");
    for (ranks, until) in [(3, 1), (2, 2), (4, 3)] {
        let ends = simulate(ranks, |comm| {
            let (mut run, mut trainer) = set_up(comm, &store)?;
            let start = comm.block(10).start;
            let mut own: Vec<_> = match run.state() {
                None => state(comm, 0).collect(),
                Some(_) => vec![-1; comm.block(10).len()],
            };
            let none: Option<&mut DistributedSampler> = None;
            run.resume(&mut trainer.model, none, |all| {
                all.shard(names, &[2, 5], start, &mut own)
            })?;
            let expected: Vec<_> = state(comm, until - 1).collect();
            assert_eq!(own, expected);
            own.iter_mut().for_each(|one| *one += 1);
            trainer.step()?;
            run.save(&trainer.model, None, None, |all| {
                all.shard(names, &[2, 5], start, &mut own)
            })?;
            // A part that one rank omits is detected.
            let omitted = run.save(&trainer.model, None, None, |all| match comm.rank() {
                0 => Ok(()),
                _ => all.shard(names, &[2, 5], start, &mut own),
            });
            let line = omitted.unwrap_err().to_string();
            assert!(line.contains("no rank passed elements 0.."), "{line}");
            run.finish()
        });
        assert_eq!(ends, vec![Ok(()); ranks]);
    }
}

#[test]
fn overlapping_or_missing_parts_are_an_error_on_every_rank() {
    for (name, parts, words) in [
        (
            "state",
            [0..3, 0..3],
            "rank 0 and rank 1 both passed element 0;",
        ),
        (
            "state",
            [2..6, 0..3],
            "rank 1 and rank 0 both passed element 2;",
        ),
        (
            "state",
            [0..6, 2..3],
            "rank 0 and rank 1 both passed element 2;",
        ),
        (
            "state",
            [0..2, 3..6],
            "tensor 'state': no rank passed elements 2..3 of 6;",
        ),
        ("state", [1..3, 3..6], "elements 0..1 of"),
        ("state", [3..5, 0..3], "elements 5..6 of"),
        ("state", [6..6, 0..0], "elements 0..6 of"),
        ("rank-1/state", [0..3, 3..6], "'rank-' are for `Parts::own`"),
    ] {
        let store = Memory::default();
        let ends = simulate(2, |comm| {
            let (mut run, mut trainer) = set_up(comm, &store)?;
            let part = &parts[comm.rank()];
            let mut own = vec![7.0f32; part.len()];
            run.resume(&mut trainer.model, None, |all| {
                all.shard(name, &[2, 3], part.start, &mut own)
            })
        });
        for end in ends {
            let line = end.unwrap_err().to_string();
            assert!(line.contains(words), "{parts:?}: {line}");
        }
        assert!(store.names().is_empty());
    }
}

#[test]
fn rewinding_replaces_later_checkpoints() {
    let store = trained(21);
    let ends = simulate(2, |comm| {
        let mut run = Run::open_at(comm, Checkpoints::new(store.clone(), 3), 14)?;
        let mut trainer = Trainer::new(run.comm())?;
        assert_eq!(trainer.resume(&mut run)?, 14);
        trainer.step()?;
        trainer.save(&mut run, Some(0.5))?;
        run.finish()
    });
    assert_eq!(ends, [Ok(()), Ok(())]);
    let states = Checkpoints::new(store.clone(), 3).list().unwrap();
    let steps: Vec<_> = states.iter().map(|state| state.step).collect();
    assert_eq!(steps, [7, 14, 15]);
    assert_eq!(states[2].loss, Some(0.5));
    let ends = simulate(2, |comm| {
        Run::open_at(comm, Checkpoints::new(store.clone(), 3), 9).map(drop)
    });
    for end in ends {
        let line = end.unwrap_err().to_string();
        assert!(line.contains("no checkpoint of step 9"), "{line}");
        assert!(line.ends_with("7, 14, 15"), "{line}");
    }
}

#[test]
fn locked_directory_or_file_path_is_an_error_on_every_rank() {
    let scratch = tempfile::tempdir().unwrap();
    let (directory, file) = (scratch.path().join("run"), scratch.path().join("file"));
    std::fs::write(&file, "not a directory").unwrap();
    let writer = Checkpoints::new(Directory::new(&directory), 3);
    writer.save(&super::checkpoint(1, 3)).unwrap();
    for (place, words) in [
        (&directory, "another training run"),
        (&file, "is not a directory"),
    ] {
        let ends = simulate(2, |comm| open(comm, &Directory::new(place)).map(drop));
        for end in ends {
            let line = end.unwrap_err().to_string();
            assert!(line.contains(words), "{line}");
            assert!(line.contains(place.to_str().unwrap()), "{line}");
        }
    }
}

/// A store whose writes block until the test allows them.
#[derive(Clone, Default)]
struct Slow {
    store: Memory,
    may_write: Arc<(Mutex<bool>, Condvar)>,
}

impl Slow {
    fn allow_writes(&self, may: bool) {
        *self.may_write.0.lock().unwrap() = may;
        self.may_write.1.notify_all();
    }
}

impl Store for Slow {
    fn location(&self) -> String {
        self.store.location()
    }
    fn list(&self) -> Result<Vec<String>> {
        self.store.list()
    }
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.store.read(name)
    }
    fn write_atomically(&self, name: &str, parts: &[&[u8]]) -> Result<()> {
        let (may, changed) = &*self.may_write;
        drop(
            changed
                .wait_while(may.lock().unwrap(), |may| !*may)
                .unwrap(),
        );
        self.store.write_atomically(name, parts)
    }
    fn remove(&self, name: &str) -> Result<()> {
        self.store.remove(name)
    }
}

#[test]
fn writes_run_in_background_and_next_save_returns_error() {
    let slow = Slow::default();
    slow.allow_writes(true);
    let ends = simulate(2, |comm| {
        let (mut run, mut trainer) = set_up(comm, &slow)?;
        trainer.resume(&mut run)?;
        slow.allow_writes(false);
        trainer.step()?;
        trainer.save(&mut run, None)?;
        let saved = trainer.weights.clone();
        // If a rank waited for the write, it would wait forever.
        for _ in 0..5 {
            trainer.step()?;
        }
        comm.barrier()?;
        slow.allow_writes(true);
        run.finish()?;
        // The checkpoint contains the weights at the time of the save, not the later ones.
        let found = slow.store.files();
        assert!(found.contains_key("step-00000001.json"));
        let checkpoint = Checkpoints::new(slow.clone(), 3).load(1)?;
        assert_eq!(checkpoint.values::<f32>("model/weight")?, saved);

        comm.barrier()?;
        slow.store.allow_changes(Some(0));
        trainer.save(&mut run, None)?;
        trainer.step()?;
        let error = trainer.save(&mut run, None).unwrap_err();
        assert!(
            error.kind() == ErrorKind::System && error.to_string().contains("the disk is full"),
            "{error}"
        );
        comm.barrier()?;
        slow.store.allow_changes(None);
        comm.barrier()?;
        trainer.save(&mut run, None)?;
        run.finish()
    });
    assert_eq!(ends, [Ok(()), Ok(())]);
    assert_eq!(Checkpoints::new(slow, 3).newest_step(), Ok(Some(7)));
}
