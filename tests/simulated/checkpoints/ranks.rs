//! Tests checkpoints of several simulated ranks.

use super::{Memory, checkpoint};
use ringtree::ddp::checkpoint::{Checkpoint, Checkpoints, Directory, Found};
use ringtree::sim::World;
use ringtree::{Communicator, Error, ErrorKind, Result, simulate};

const STEP: u64 = 20;

/// Returns the part of the checkpoint that rank `rank` passes. Rank 0 passes the common state and
/// its per-rank state; each other rank passes only its per-rank state.
fn part(rank: usize, step: u64) -> Checkpoint {
    let mut part = match rank {
        0 => checkpoint(step, 1000),
        _ => Checkpoint::default(),
    };
    let error: Vec<f32> = (0..rank * 10).map(|index| index as f32 + 0.5).collect();
    part.insert(format!("rank-{rank}/error"), &[error.len()], &error)
        .unwrap();
    part
}

/// Returns the checkpoint that rank `rank` of `world_size` must load.
fn restored(rank: usize, world_size: usize, step: u64) -> Checkpoint {
    let mut restored = checkpoint(step, 1000);
    restored.state.world_size = world_size;
    let own = format!("rank-{rank}/error");
    let error = part(rank, step).tensors.remove(&own).unwrap();
    restored.tensors.insert(own, error);
    restored
}

fn save(comm: &Communicator, store: &Memory, step: u64) -> Result<()> {
    let checkpoints = Checkpoints::new(store.clone(), 3);
    // A writer must have seen the existing checkpoints before it saves.
    let _ = checkpoints.latest();
    checkpoints.save_from(comm, &part(comm.rank(), step))
}

fn load(comm: &Communicator, store: &Memory) -> Result<Option<Found>> {
    Checkpoints::new(store.clone(), 3).load_and_broadcast(comm)
}

/// Returns a store to which `world_size` ranks have saved `steps`.
fn saved(world_size: usize, steps: &[u64]) -> Memory {
    let store = Memory::default();
    for step in steps {
        let ends = simulate(world_size, |comm| save(comm, &store, *step));
        assert_eq!(ends, vec![Ok(()); world_size]);
    }
    store
}

#[test]
fn every_rank_loads_common_and_own_state() {
    for world_size in 1..=5 {
        let store = saved(world_size, &[STEP]);
        let ends = simulate(world_size, |comm| load(comm, &store));
        for (rank, end) in ends.into_iter().enumerate() {
            let found = end.unwrap().unwrap();
            assert_eq!(found.checkpoint, restored(rank, world_size, STEP));
            assert!(found.warnings.is_empty());
        }
    }
}

#[test]
fn rank_with_newest_checkpoint_sends_it_to_all() {
    for rotation in 0..4 {
        let (newest, older) = (saved(4, &[STEP, STEP + 1]), saved(4, &[STEP]));
        let (empty, broken) = (Memory::default(), Memory::default());
        broken.break_with("the disk is gone");
        // One rank has the newest checkpoint. The others have an older one, an empty store, and a
        // broken store.
        let stores = [&newest, &older, &empty, &broken];
        let ends = simulate(4, |comm| load(comm, stores[(comm.rank() + rotation) % 4]));
        for (rank, end) in ends.into_iter().enumerate() {
            let found = end.unwrap().unwrap();
            assert_eq!(
                found.checkpoint,
                restored(rank, 4, STEP + 1),
                "rotation {rotation}"
            );
            let [warning] = &found.warnings[..] else {
                panic!("{:?}", found.warnings);
            };
            assert!(warning.contains("the disk is gone"), "{warning}");
            let blamed = format!("rank {}", (7 - rotation) % 4);
            assert!(
                warning.contains(&blamed),
                "{warning} does not name {blamed}"
            );
        }
    }
}

#[test]
fn intact_copy_replaces_damaged_copies() {
    let (good, bad) = (saved(3, &[STEP, STEP + 1]), saved(3, &[STEP, STEP + 1]));
    bad.put("step-00000021.safetensors", vec![0; 100]);
    // Only the last rank's copy is intact.
    let ends = simulate(3, |comm| {
        load(comm, if comm.rank() == 2 { &good } else { &bad })
    });
    for (rank, end) in ends.into_iter().enumerate() {
        let found = end.unwrap().unwrap();
        assert_eq!(found.checkpoint, restored(rank, 3, STEP + 1));
        let [warning] = &found.warnings[..] else {
            panic!("{:?}", found.warnings);
        };
        assert!(warning.contains("step-00000021.safetensors"), "{warning}");
    }
    // If no copy is intact, all ranks load the previous checkpoint and report this once.
    let ends = simulate(3, |comm| load(comm, &bad));
    for (rank, end) in ends.into_iter().enumerate() {
        let found = end.unwrap().unwrap();
        assert_eq!(found.checkpoint, restored(rank, 3, STEP));
        assert_eq!(found.warnings.len(), 1);
    }
}

#[test]
fn load_returns_none_if_empty_and_an_error_if_unreadable() {
    let empty = Memory::default();
    let ends = simulate(3, |comm| load(comm, &empty));
    assert_eq!(ends, vec![Ok(None); 3]);
    let broken = Memory::default();
    broken.break_with("the disk is gone");
    let ends = simulate(3, |comm| {
        load(comm, if comm.rank() == 1 { &broken } else { &empty })
    });
    for end in ends {
        let text = end.unwrap_err().to_string();
        assert!(text.contains("the disk is gone"), "{text}");
        assert!(text.contains("rank 1"), "{text}");
    }
}

#[test]
fn checkpoints_of_different_runs_are_never_mixed() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name);
    let run = |name: &str, step| {
        let mut checkpoint = checkpoint(step, 3);
        name.clone_into(&mut checkpoint.state.run_id);
        let checkpoints = Checkpoints::new(Directory::new(place(name)), 3);
        checkpoints.latest().unwrap();
        checkpoints.save(&checkpoint).unwrap();
    };
    let files = || {
        let files = ["now", "before"].map(|name| {
            let entries = std::fs::read_dir(place(name)).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        });
        files.concat()
    };
    run("now", 100);
    for step in [400, 500] {
        run("before", step);
    }
    // Even if the newest checkpoint is damaged, an earlier one identifies the run.
    for (damage, step) in [(None, 500), (Some("step-00000500.json"), 400)] {
        if let Some(name) = damage {
            std::fs::write(place("before").join(name), "garbage").unwrap();
        }
        let present = files();
        // The middle rank's store is empty.
        let ends = simulate(3, |comm| {
            let store = Directory::new(place(["now", "empty", "before"][comm.rank()]));
            let ended = Checkpoints::new(store, 1).load_and_broadcast(comm);
            comm.barrier()?;
            Ok::<_, Error>(ended)
        });
        for end in ends {
            let Ok(Err(error)) = end else {
                panic!("{end:?}");
            };
            assert!(error.kind() == ErrorKind::Configuration, "{error:?}");
            let message = error.to_string();
            for (rank, step, run) in [(0, 100, "now"), (2, step, "before")] {
                let path = place(run);
                let path = path.display();
                let found = format!("rank {rank} finds step {step} of run '{run}' in {path}");
                assert!(message.contains(&found), "{message}");
            }
            assert!(message.contains("a different location"), "{message}");
        }
        assert_eq!(files(), present);
    }
}

#[test]
fn failed_write_is_an_error_on_every_rank_but_next_save_works() {
    for changes in 0..2 {
        let store = saved(3, &[STEP]);
        store.allow_changes(Some(changes));
        let ends = simulate(3, |comm| {
            let failed = save(comm, &store, STEP + 1);
            comm.barrier()?;
            if comm.rank() == 0 {
                store.allow_changes(None);
            }
            comm.barrier()?;
            save(comm, &store, STEP + 2)?;
            Ok::<_, Error>(failed)
        });
        for end in ends {
            let Ok(Err(error)) = end else {
                panic!("{end:?}");
            };
            assert!(error.kind() == ErrorKind::System, "{error:?}");
            let message = error.to_string();
            assert!(message.contains("the disk is full"), "{message}");
        }
        let found = Checkpoints::new(store, 3).latest().unwrap().unwrap();
        assert_eq!(found.checkpoint.state.step, STEP + 2);
    }
}

#[test]
fn every_rank_is_warned_of_files_that_cannot_be_removed() {
    let store = saved(3, &[STEP]);
    for keeps_all in [true, false] {
        store.keep_all(keeps_all);
        let ends = simulate(3, |comm| {
            let checkpoints = Checkpoints::new(store.clone(), 1);
            checkpoints.latest()?;
            checkpoints.save_from(comm, &part(comm.rank(), STEP + 1))?;
            Ok::<_, Error>(checkpoints.warnings())
        });
        for end in ends {
            let warning = end.unwrap().concat();
            let is_named = warning.contains("step-00000020.json");
            assert_eq!(is_named, keeps_all, "{warning}");
        }
    }
    assert_eq!(store.names().len(), 2);
}

#[test]
fn saving_state_of_another_rank_is_an_error_on_every_rank() {
    for wrong in 0..3 {
        let store = Memory::default();
        let ends = simulate(3, |comm| {
            let mut own = part(comm.rank(), STEP);
            if comm.rank() == wrong {
                let other = format!("rank-{}/error", (wrong + 1) % 3);
                own.insert(other, &[1], &[0.5_f32])?;
            }
            Checkpoints::new(store.clone(), 1).save_from(comm, &own)
        });
        for end in ends {
            let Err(error) = end else {
                panic!("{end:?}");
            };
            assert!(error.kind() == ErrorKind::Usage, "{error:?}");
            let message = error.to_string();
            assert!(message.contains(&format!("rank {wrong} ")), "{message}");
        }
        assert!(store.names().is_empty());
    }
}

#[test]
fn common_state_loads_on_a_different_number_of_ranks() {
    let store = saved(4, &[STEP]);
    for (world_size, word) in [
        (2, "dropped"),
        (6, "per-rank state, such as 'rank-0/error'"),
    ] {
        let ends = simulate(world_size, |comm| load(comm, &store));
        for (rank, end) in ends.into_iter().enumerate() {
            let found = end.unwrap().unwrap();
            let mut expected = restored(rank, 4, STEP);
            if rank >= 4 {
                expected.tensors.remove(&format!("rank-{rank}/error"));
            }
            assert_eq!(found.checkpoint, expected);
            let [warning] = &found.warnings[..] else {
                panic!("{:?}", found.warnings);
            };
            assert!(warning.contains(word), "{warning}");
        }
    }
}

#[test]
fn dead_rank_leaves_no_rank_waiting() {
    let store = saved(3, &[STEP]);
    for dead in 0..3 {
        let world = World::new(3);
        let ends = world.run(|comm| {
            if comm.rank() == dead {
                return Ok(());
            }
            save(comm, &store, STEP + 1)
        });
        for (rank, end) in ends.iter().enumerate().filter(|(rank, _)| *rank != dead) {
            assert!(
                matches!(&end, Err(error) if error.kind() == ErrorKind::PeerLost),
                "rank {rank}: {end:?}"
            );
        }
        let found = Checkpoints::new(store.clone(), 3).latest().unwrap();
        assert_eq!(found.unwrap().checkpoint.state.step, STEP);
    }
}
