//! A rank leaves cleanly, the first of the world or another. Then a rank dies between any two
//! steps, leaves too early, or fails: every rank that waits for it gets an error that names it.

use super::run_timed;
use crate::long::short_or_long;
use ringtree::sim::{World, sleep};
use ringtree::{Communicator, Error, ErrorKind, ReduceOp, Result};
use std::time::Duration;

const RANKS: usize = 4;
/// Longer than any notice of a death, a departure or a cause takes, and far below the timeout.
const SOON: Duration = Duration::from_secs(4);

/// The communicator and the form of the calls that the remaining ranks issue.
#[derive(Clone, Copy, Debug)]
struct Calls {
    /// In a group of the ranks that go on; else in a duplicate of all ranks.
    in_group: bool,
    is_patient: bool,
    is_async: bool,
}

/// Every way to make calls.
fn all_calls() -> impl Iterator<Item = Calls> {
    (0..8).map(|bits| Calls {
        in_group: bits & 1 == 1,
        is_patient: bits & 2 == 2,
        is_async: bits & 4 == 4,
    })
}

impl Calls {
    /// Receives a byte from `peer`.
    fn recv(self, comm: &Communicator, peer: usize) -> Result<()> {
        match self.is_async {
            false => comm.recv(&mut [0u8], peer),
            true => {
                comm.start_recv(vec![0u8], peer)?.wait()?;
                Ok(())
            }
        }
    }
}

/// Runs `code` on the ranks other than `left`, after that has left. It gets the communicator of
/// the calls.
fn after<R>(
    comm: &Communicator,
    (calls, left): (Calls, usize),
    code: impl Fn(&Communicator) -> Result<R>,
) -> Result<Option<R>> {
    let has_left = comm.rank() == left;
    let others: Vec<_> = (0..RANKS).filter(|rank| *rank != left).collect();
    let made = match calls.in_group {
        false => Some(comm.duplicate()?),
        true if has_left => None,
        true => Some(comm.subgroup(&others)?),
    };
    comm.barrier()?;
    let Some(made) = made.filter(|_| !has_left) else {
        return Ok(None);
    };
    sleep(comm, Duration::from_millis(10));
    match calls.is_patient {
        true => code(&made.without_timeout()),
        false => code(&made),
    }
    .map(Some)
}

/// The other ranks pass a byte around three times; in a group of theirs they also sum.
fn pass_around(comm: &Communicator, (calls, left): (Calls, usize)) -> Result<()> {
    let count = comm.world_size();
    let is_there = |rank: &usize| calls.in_group || *rank != left;
    let ring: Vec<_> = (0..count).filter(is_there).collect();
    let place = ring.iter().position(|rank| *rank == comm.rank()).unwrap();
    for _ in 0..3 {
        comm.send(&[1u8], ring[(place + 1) % ring.len()])?;
        calls.recv(comm, ring[(place + ring.len() - 1) % ring.len()])?;
        if calls.in_group {
            comm.all_reduce(&mut [1u32; 100], ReduceOp::Sum)?;
        }
    }
    Ok(())
}

/// Whether the error names `rank` of the world in front of `what`.
fn names(error: &Error, rank: usize, what: &str) -> bool {
    let text = error.to_string();
    text.contains(&format!("rank {rank} {what}"))
        || text.contains(&format!("(world rank {rank}) {what}"))
}

#[test]
fn after_a_departure_a_death_at_any_step_is_named_by_all_that_need_the_rank() {
    for (calls, left) in all_calls().flat_map(|calls| [(calls, 0), (calls, 1)]) {
        let program = |comm: &Communicator| {
            let end = after(comm, (calls, left), |comm| pass_around(comm, (calls, left)));
            (end, comm.clock())
        };
        let mut world = World::new(RANKS);
        assert!(world.run(program).iter().all(|(end, _)| end.is_ok()));
        let times: Vec<_> = world.event_times(program).into_iter().collect();
        // The lowest rank that stays, which is the coordinator then, and the highest.
        for victim in [1 - left, RANKS - 1] {
            for at in times.iter().step_by(short_or_long(9, 1)) {
                world.network.faults.deaths = vec![(victim, *at)];
                let ends = world.run(program).into_iter().enumerate();
                for (rank, (end, ended)) in ends.filter(|(rank, _)| *rank != victim) {
                    let is_told = |error: &Error| names(error, victim, "is gone");
                    assert!(
                        end.as_ref().err().is_none_or(is_told) && ended < *at + SOON,
                        "{calls:?}, {left} left, {victim} died at {at:?}: rank {rank} at \
                         {ended:?}: {end:?}"
                    );
                }
            }
        }
    }
}

/// The end of the rank that the others wait for.
#[derive(Clone, Copy, Debug)]
enum End {
    Leaves,
    Fails,
    RunsOutOfTime,
    Mismatches,
}

#[test]
fn after_a_departure_every_rank_that_waits_learns_how_another_ends() {
    for (calls, left) in all_calls().flat_map(|calls| [(calls, 0), (calls, 1)]) {
        for end in [End::Leaves, End::Fails, End::RunsOutOfTime, End::Mismatches] {
            for ending in [1 - left, RANKS - 1] {
                let (ends, took) = run_timed(&World::new(RANKS), |comm| {
                    after(comm, (calls, left), |made| {
                        let others: Vec<_> = (0..RANKS).filter(|rank| *rank != left).collect();
                        let number = |rank: usize| match calls.in_group {
                            true => others.iter().position(|one| *one == rank).unwrap(),
                            false => rank,
                        };
                        if comm.rank() != ending {
                            return calls.recv(made, number(ending));
                        }
                        sleep(comm, Duration::from_millis(1500));
                        let another = others.iter().find(|rank| **rank != ending).unwrap();
                        match end {
                            End::Leaves => {}
                            End::Fails => {
                                made.abort(&Error::new(ErrorKind::System, "no room on the disk"))
                            }
                            End::RunsOutOfTime => {
                                let timeout = Duration::from_millis(100);
                                return made
                                    .with_timeout(timeout)
                                    .recv(&mut [0u8], number(*another));
                            }
                            End::Mismatches => {
                                made.send(&[1u8; 3], number(*another))?;
                                return made.recv(&mut [0u8], number(*another));
                            }
                        }
                        Ok(())
                    })
                });
                let case = format!("{calls:?}, {left} left, {ending} {end:?}");
                assert!(took < 2 * SOON, "{case}: {took:?}");
                let waits = |rank: &usize| ![left, ending].contains(rank);
                let told: Vec<_> = (0..RANKS).filter(waits).map(|rank| &ends[rank]).collect();
                for end_of_rank in told {
                    let error = end_of_rank.as_ref().expect_err(&case);
                    let is_right = match end {
                        End::Leaves => names(error, ending, "left after call #"),
                        End::Fails => error.to_string().contains("no room on the disk"),
                        End::RunsOutOfTime => names(error, ending, "timed out in"),
                        End::Mismatches => names(error, ending, "sends 3 u8"),
                    };
                    assert!(is_right, "{case}: {error}");
                }
            }
        }
    }
}
