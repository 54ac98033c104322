//! A rank dies at any step of creating and using groups. Every survivor that needs the rank gets
//! the same first error, and groups without it continue.

use ringtree::sim::{World, sleep};
use ringtree::{Communicator, Error, ErrorKind, ReduceOp, Result};
use std::collections::BTreeMap;
use std::time::Duration;

const RANKS: usize = 6;
/// The members of the groups. Neither group lists its members in world order.
const GROUPS: [&[usize]; 2] = [&[3, 0, 5], &[4, 1, 2]];

fn group_of(rank: usize) -> usize {
    usize::from(!GROUPS[0].contains(&rank))
}

/// Runs `program` on links with random delays. Rank `victim` dies at time `at`.
fn with_death<R: Send>(
    victim: usize,
    at: Duration,
    program: impl Fn(&Communicator) -> Result<R> + Sync,
) -> Vec<Result<R>> {
    let mut world = World::new(RANKS);
    world.timeout = Duration::from_secs(20);
    world.network.seed = at.as_nanos() as u64;
    world.network.faults.delay_max = Duration::from_micros(20);
    world.network.faults.deaths = vec![(victim, at)];
    world.run(program)
}

fn use_it(group: &Communicator) -> Result<()> {
    let sum = (0..group.world_size() as u64).sum::<u64>();
    for call in 0..3 {
        let mut data = vec![group.rank() as u64; 10 + 1000 * call];
        group.all_reduce(&mut data, ReduceOp::Sum)?;
        assert!(data.iter().all(|one| *one == sum));
    }
    group.barrier()
}

/// Checks that the errors of a group's survivors are the same. Returns `true` if there are any.
fn check_same_error(ends: &[Result<()>], members: &[usize], victim: usize) -> bool {
    let failed = members.iter().filter(|rank| **rank != victim);
    let failed: Vec<&Error> = failed
        .filter_map(|rank| ends[*rank].as_ref().err())
        .collect();
    for error in &failed {
        let (Some(rank), true) = (error.peer(), error.kind() == ErrorKind::PeerLost) else {
            panic!("{error}");
        };
        let message = error.to_string();
        assert_eq!(members.get(rank), Some(&victim), "{message}");
        let name = if rank == victim {
            format!("rank {rank} is gone")
        } else {
            format!("rank {rank} (world rank {victim}) is gone")
        };
        assert!(message.starts_with(&name), "{message}");
        // If the coordinator and the relay are alive, the texts are identical.
        if rank > 0 && victim > 0 {
            assert_eq!(*error, failed[0]);
        }
    }
    !failed.is_empty()
}

#[test]
fn subgroup_fails_on_all_members_after_death_at_any_step() {
    let mut failures: BTreeMap<usize, usize> = BTreeMap::new();
    for victim in 0..RANKS {
        for step in 0..60 {
            let at = Duration::from_micros(step * 9);
            let ends = with_death(victim, at, |comm| {
                use_it(&comm.subgroup(GROUPS[group_of(comm.rank())])?)
            });
            let (its, other) = (GROUPS[group_of(victim)], GROUPS[1 - group_of(victim)]);
            let has_failed = check_same_error(&ends, its, victim);
            *failures.entry(victim).or_default() += usize::from(has_failed);
            for rank in other {
                match &ends[*rank] {
                    Ok(()) => {}
                    // Rank 0 of the world assigns group IDs, so both groups need it.
                    Err(error) if victim == 0 => {
                        let text = error.to_string();
                        assert!(text.starts_with("rank 0 of the world is gone"), "{text}");
                    }
                    Err(error) => panic!("victim {victim} at {at:?}: rank {rank}: {error}"),
                }
            }
        }
    }
    // Most deaths occur while the group still needs the victim, and some occur later.
    for (victim, failed) in failures {
        assert!((10..60).contains(&failed), "victim {victim}: {failed}");
    }
}

#[test]
fn split_ends_on_all_survivors_after_death_at_any_step() {
    for victim in 0..RANKS {
        for step in 0..60 {
            let at = Duration::from_micros(step * 9);
            let ends = with_death(victim, at, |comm| {
                let color = group_of(comm.rank());
                let key = GROUPS[color].iter().position(|one| *one == comm.rank());
                let group = match comm.split(color, key.unwrap_or(0)) {
                    Ok(group) => group,
                    Err(error) => return Ok((Err(error), Ok(()))),
                };
                Ok((Ok(()), use_it(&group)))
            });
            let survivors = (0..RANKS).filter(|rank| *rank != victim);
            for rank in survivors {
                let (split, used) = ends[rank].clone().unwrap();
                // A split fails either as a collective of all ranks or while its group is created.
                if let Err(error) = split {
                    let text = error.to_string();
                    assert!(text.contains("is gone"), "{text}");
                    let names = [format!("rank {victim}"), format!("rank {victim})")];
                    assert!(names.iter().any(|name| text.contains(name)), "{text}");
                }
                let is_member = GROUPS[group_of(victim)].contains(&rank);
                assert!(
                    used.is_ok() || is_member,
                    "victim {victim} at {at:?}: {used:?}"
                );
            }
            let used = |end: &Result<(Result<()>, Result<()>)>| match end {
                Ok((_, used)) => used.clone(),
                Err(error) => Err(error.clone()),
            };
            let used: Vec<_> = ends.iter().map(used).collect();
            check_same_error(&used, GROUPS[group_of(victim)], victim);
        }
    }
}

#[test]
fn departure_from_group_reports_failure_of_other_group() {
    let mut world = World::new(4);
    world.network.faults.deaths = vec![(3, Duration::from_millis(1))];
    let ends = world.run(|comm| {
        let (row, column) = (comm.rank() / 2, comm.rank() % 2);
        let tensor = comm.split(row, 0)?;
        let data = comm.split(column, 0)?;
        sleep(comm, Duration::from_millis(2));
        match comm.rank() {
            0 => data.barrier(),
            // Then rank 2 drops `data`, while rank 0 waits in it.
            2 => tensor.barrier(),
            _ => Ok(()),
        }
    });
    let gone = ends[2].as_ref().unwrap_err().to_string();
    assert!(gone.starts_with("rank 1 (world rank 3) is gone"), "{gone}");
    let left = ends[0].as_ref().unwrap_err().to_string();
    // The world is one of the groups of this process, and has failed too.
    let said = "another group of its process had failed: rank 3 is gone";
    assert!(
        left.starts_with("rank 1 (world rank 2) left after"),
        "{left}"
    );
    assert!(left.contains(said), "{left}");
}
