//! More programs in which ranks wait for each other, in addition to the usual mistakes.

use ringtree::{Communicator, ReduceOp, Result};

/// Uses groups of two in a circle of four ranks. Each rank waits in one group for the next rank,
/// which waits in another group.
pub(crate) fn grid(comm: &Communicator) -> Result<()> {
    let (rank, count) = (comm.rank(), comm.world_size());
    let (before, after) = ((rank + count - 1) % count, (rank + 1) % count);
    let mut pairs = [[before, rank], [rank, after]];
    pairs.iter_mut().for_each(|pair| pair.sort_unstable());
    pairs.sort_unstable();
    let mut groups = Vec::new();
    for pair in pairs {
        let name = format!("{}-{}", pair[0], pair[1]);
        let group = comm.subgroup(&pair)?.with_name(&name);
        group.barrier()?;
        groups.push((pair, group));
    }
    let (_, group) = groups
        .iter()
        .find(|(pair, _)| *pair == sorted(rank, after))
        .expect("the rank shares a group with the next rank");
    group.barrier()
}

fn sorted(one: usize, other: usize) -> [usize; 2] {
    [one.min(other), one.max(other)]
}

/// Rank 0 receives a message on one communicator. Rank 1 sends it only after a call on another
/// communicator, which rank 0 issues after the receive.
pub(crate) fn message(comm: &Communicator) -> Result<()> {
    let other = comm.duplicate()?.with_name("sums");
    other.barrier()?;
    let mut own = [1.0f32; 8];
    if comm.rank() == 0 {
        comm.recv(&mut own, 1)?;
        return other.all_reduce(&mut own, ReduceOp::Sum);
    }
    other.scope(|scope| scope.all_reduce(&mut own, ReduceOp::Sum)?.wait().map(drop))?;
    comm.send(&own, 0)
}

/// Rank 1 makes a call on a communicator on which no rank has made a call before.
pub(crate) fn first_call(comm: &Communicator) -> Result<()> {
    let evaluation = comm.duplicate()?.with_name("evaluation");
    match comm.rank() {
        1 => evaluation.barrier(),
        _ => comm.barrier(),
    }
}

/// Each rank sends the next rank more bytes than the links can hold.
pub(crate) fn sends(comm: &Communicator) -> Result<()> {
    let next = (comm.rank() + 1) % comm.world_size();
    comm.send(&vec![0u8; 32 << 20], next)
}

/// A program that deadlocks: its name, its code, its number of ranks, and the texts that the error
/// of each rank contains in addition to `CIRCLE`.
pub(crate) type Deadlock = (&'static str, Program, usize, &'static [&'static str]);
type Program = fn(&Communicator) -> Result<()>;

pub(crate) const DEADLOCKS: [Deadlock; 4] = [
    (
        "grid",
        grid,
        4,
        &[r#"on "0-1""#, r#"on "1-2""#, r#"on "2-3""#, r#"on "0-3""#],
    ),
    ("message", message, 2, &[" #1 of 8 f32", r#"on "sums""#]),
    ("first-call", first_call, 3, &[r#"on "evaluation""#]),
    ("sends", sends, 3, &["waits for rank "]),
];
