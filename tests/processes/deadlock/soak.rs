//! Correct programs that use several communicators concurrently, from several threads, with pauses
//! of all lengths up to a few seconds.

use super::long_waits;
use ringtree::{Communicator, Error, ReduceOp, Result};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const SECONDS: &str = "RINGTREE_TEST_SECONDS";

/// Random numbers, either the same on all ranks or separate for this rank.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        (self.0 >> 33) % bound
    }
}

/// Pauses, usually briefly. One pause in eight may be so long that the ranks report their positions
/// to each other.
fn pause(own: &mut Chance) {
    let most_ms = if own.below(8) == 0 { 3500 } else { 60 };
    thread::sleep(Duration::from_millis(own.below(most_ms)));
}

pub(crate) fn run(comm: &Communicator) -> Result<()> {
    let seconds = std::env::var(SECONDS).ok().and_then(|one| one.parse().ok());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(5));
    let side = [
        comm.duplicate()?.with_name("side 0"),
        comm.duplicate()?.with_name("side 1"),
    ];
    let main = [
        comm.duplicate()?.with_name("main 0"),
        comm.duplicate()?.with_name("main 1"),
    ];
    thread::scope(|scope| {
        let others = side.iter().enumerate().map(|(number, comm)| {
            scope.spawn(move || rounds(comm, end, 50 + number as u64, |_, _| Ok(())))
        });
        let others: Vec<_> = others.collect();
        let own = rounds(comm, end, 7, |kind, own| crossed(comm, &main, kind, own));
        let ends = others.into_iter().map(|one| one.join().expect("no panic"));
        ends.fold(own, Result::and)
    })
}

/// Runs rounds on one communicator until all ranks agree that the time is up.
fn rounds(
    comm: &Communicator,
    end: Instant,
    seed: u64,
    more: impl Fn(u64, &mut Chance) -> Result<()>,
) -> Result<()> {
    let (mut common, mut own) = (Chance(seed), Chance(seed * 1000 + comm.rank() as u64));
    loop {
        pause(&mut own);
        let is_over = u8::from(Instant::now() >= end);
        let mut over = [is_over];
        comm.all_reduce(&mut over, ReduceOp::Max)?;
        if over[0] == 1 {
            return Ok(());
        }
        let root = common.below(comm.world_size() as u64) as usize;
        comm.broadcast(&mut [0u32; 5], root)?;
        let next = (comm.rank() + 1) % comm.world_size();
        let before = (comm.rank() + comm.world_size() - 1) % comm.world_size();
        comm.sendrecv(&[1u8], next, &mut [0u8], before)?;
        more(common.below(4), &mut own)?;
    }
}

/// Uses two communicators in an order that differs between ranks, to the extent that this is
/// correct.
fn crossed(
    comm: &Communicator,
    [x, y]: &[Communicator; 2],
    kind: u64,
    own: &mut Chance,
) -> Result<()> {
    let (first, second) = if comm.rank().is_multiple_of(2) {
        (x, y)
    } else {
        (y, x)
    };
    match kind {
        0 => {
            let begun = first.start_all_reduce(vec![1.0f32; 3], ReduceOp::Sum)?;
            pause(own);
            second.all_reduce(&mut [1.0f32; 3], ReduceOp::Sum)?;
            begun.wait().map(drop).map_err(Error::from)
        }
        1 => {
            let mut numbers = [1u64; 4];
            first.scope(|scope| {
                let begun = scope.all_reduce(&mut numbers, ReduceOp::Sum)?;
                second.all_reduce(&mut [1u64; 4], ReduceOp::Sum)?;
                pause(own);
                begun.wait().map(drop)
            })
        }
        2 => long_waits::second_thread(comm, &|_, _| thread::sleep(Duration::from_millis(1500))),
        _ => {
            pause(own);
            x.barrier()?;
            y.barrier()
        }
    }
}
