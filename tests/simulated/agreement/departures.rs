//! Tests failures after a rank, such as rank 0, has left cleanly. Then another rank dies between
//! any two steps, leaves too early, or fails. Every rank that waits for this rank must get an error
//! that names it.

use super::run_timed;
use crate::long::short_or_long;
use ringtree::sim::{World, sleep};
use ringtree::{Communicator, Error, ErrorKind, ReduceOp, Result};
use std::time::Duration;

const RANKS: usize = 4;
/// A duration longer than ranks take to learn of a death, a departure or a failure, and much
/// shorter than the timeout.
const SOON: Duration = Duration::from_secs(4);

/// The communicator and the form of the calls that the remaining ranks issue.
#[derive(Clone, Copy, Debug)]
struct Calls {
    /// `true` for a group of the remaining ranks, `false` for a duplicate of the world.
    in_group: bool,
    /// `true` for calls without a timeout.
    without_timeout: bool,
    is_async: bool,
}

/// Returns every way to issue calls.
fn all_calls() -> impl Iterator<Item = Calls> {
    (0..8).map(|bits| Calls {
        in_group: bits & 1 == 1,
        without_timeout: bits & 2 == 2,
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

/// Lets rank `left` leave. Then runs `code` on the other ranks, with the communicator of the calls.
fn after_departure<R>(
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
    match calls.without_timeout {
        true => code(&made.without_timeout()),
        false => code(&made),
    }
    .map(Some)
}

/// Passes a byte around the remaining ranks three times. In a group, the ranks also run an
/// all-reduce each time.
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

/// Returns `true` if the error names world rank `rank` directly before `what`.
fn names(error: &Error, rank: usize, what: &str) -> bool {
    let text = error.to_string();
    text.contains(&format!("rank {rank} {what}"))
        || text.contains(&format!("(world rank {rank}) {what}"))
}

#[test]
fn death_at_any_step_after_a_departure_is_named() {
    for (calls, left) in all_calls().flat_map(|calls| [(calls, 0), (calls, 1)]) {
        let program = |comm: &Communicator| {
            let end = after_departure(comm, (calls, left), |comm| pass_around(comm, (calls, left)));
            (end, comm.clock())
        };
        let mut world = World::new(RANKS);
        assert!(world.run(program).iter().all(|(end, _)| end.is_ok()));
        let times: Vec<_> = world.event_times(program).into_iter().collect();
        // The victims are the lowest remaining rank, which is the coordinator, and the highest.
        for victim in [1 - left, RANKS - 1] {
            for at in times.iter().step_by(short_or_long(9, 1)) {
                world.network.faults.deaths = vec![(victim, *at)];
                let ends = world.run(program).into_iter().enumerate();
                for (rank, (end, ended)) in ends.filter(|(rank, _)| *rank != victim) {
                    let names_victim = |error: &Error| names(error, victim, "is gone");
                    assert!(
                        end.as_ref().err().is_none_or(names_victim) && ended < *at + SOON,
                        "{calls:?}, {left} left, {victim} died at {at:?}: rank {rank} at \
                         {ended:?}: {end:?}"
                    );
                }
            }
        }
    }
}

/// The fate of the rank that the others wait for.
#[derive(Clone, Copy, Debug)]
enum End {
    Leaves,
    Fails,
    RunsOutOfTime,
    Mismatches,
}

#[test]
fn waiting_ranks_learn_how_another_rank_ended_after_a_departure() {
    for (calls, left) in all_calls().flat_map(|calls| [(calls, 0), (calls, 1)]) {
        for end in [End::Leaves, End::Fails, End::RunsOutOfTime, End::Mismatches] {
            for ending in [1 - left, RANKS - 1] {
                let (ends, took) = run_timed(&World::new(RANKS), |comm| {
                    after_departure(comm, (calls, left), |comm_of_calls| {
                        let others: Vec<_> = (0..RANKS).filter(|rank| *rank != left).collect();
                        let number = |rank: usize| match calls.in_group {
                            true => others.iter().position(|one| *one == rank).unwrap(),
                            false => rank,
                        };
                        if comm.rank() != ending {
                            return calls.recv(comm_of_calls, number(ending));
                        }
                        sleep(comm, Duration::from_millis(1500));
                        let another = others.iter().find(|rank| **rank != ending).unwrap();
                        match end {
                            End::Leaves => {}
                            End::Fails => comm_of_calls
                                .abort(&Error::new(ErrorKind::System, "the disk is full")),
                            End::RunsOutOfTime => {
                                let timeout = Duration::from_millis(100);
                                return comm_of_calls
                                    .with_timeout(timeout)
                                    .recv(&mut [0u8], number(*another));
                            }
                            End::Mismatches => {
                                comm_of_calls.send(&[1u8; 3], number(*another))?;
                                return comm_of_calls.recv(&mut [0u8], number(*another));
                            }
                        }
                        Ok(())
                    })
                });
                let case = format!("{calls:?}, {left} left, {ending} {end:?}");
                assert!(took < 2 * SOON, "{case}: {took:?}");
                let waits = |rank: &usize| ![left, ending].contains(rank);
                let waiting: Vec<_> = (0..RANKS).filter(waits).map(|rank| &ends[rank]).collect();
                for end_of_rank in waiting {
                    let error = end_of_rank.as_ref().expect_err(&case);
                    let is_right = match end {
                        End::Leaves => names(error, ending, "left after call #"),
                        End::Fails => error.to_string().contains("the disk is full"),
                        End::RunsOutOfTime => names(error, ending, "timed out in"),
                        End::Mismatches => names(error, ending, "sends 3 u8"),
                    };
                    assert!(is_right, "{case}: {error}");
                }
            }
        }
    }
}
