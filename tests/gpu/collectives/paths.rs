//! Which path device buffers take: the setting, and what all ranks say where it cannot be had.

use super::world::{Act, Rank, World, ok};
use ringtree::ErrorKind;
use ringtree::{ReduceOp, Result};

/// Elements of a buffer for which no rank could pin as much.
const COUNT: usize = 1 << 25;
const PINNED_MAX: &str = "8388608";
const SETTING: &str = "RINGTREE_DEVICE_PATH";

pub(crate) fn act(role: &str) -> Option<Act> {
    match role {
        "path" => Some(|rank| {
            Ok(ringtree::internal::calls::device_path_line(
                &rank.comm.info(),
            ))
        }),
        "zeros" => Some(zeros),
        _ => None,
    }
}

/// A new buffer is made of zeros on the device itself, and no memory of the host is taken for it.
#[test]
fn a_new_buffer_of_zeros_pins_nothing() {
    let world = World::new(2, "mapped").with("PINNED_MAX", PINNED_MAX);
    world.expect("zeros", ok(2));
}

fn zeros(rank: &Rank) -> Result<String> {
    let large = rank.comm.alloc_on_device::<f32>(&rank.stream, COUNT)?;
    assert_eq!(large.len(), COUNT);
    let mut small = rank.comm.alloc_on_device::<u8>(&rank.stream, 1001)?;
    rank.comm.all_reduce(&mut small, ReduceOp::Sum)?;
    rank.comm.synchronize()?;
    assert_eq!(small.read()?, [0; 1001]);
    let none = rank.comm.alloc_on_device::<u8>(&rank.stream, 0)?;
    assert!(none.read()?.is_empty());
    let too_many = rank
        .comm
        .alloc_on_device::<f64>(&rank.stream, usize::MAX / 4);
    assert!(too_many.is_err_and(|error| error.kind() == ErrorKind::Usage));
    rank.comm.barrier()?;
    Ok("ok".into())
}

/// All ranks say the same: this.
fn all_say(world: &World, expected: &str) {
    for said in world.run("path") {
        assert!(said.starts_with(expected), "{said}");
    }
}

#[test]
fn where_one_rank_is_told_to_stage_all_ranks_do_and_say_so() {
    let world = World::new(3, "mapped").expecting("shm");
    all_say(
        &world.of_rank(2, SETTING, "staged"),
        "staged: through pinned host memory, over shm: rank 2: RINGTREE_DEVICE_PATH=staged",
    );
}

#[test]
fn the_mapped_path_can_be_demanded() {
    all_say(&World::new(2, "mapped").with(SETTING, "mapped"), "mapped: ");
}

/// And the communicator is as it was.
#[test]
fn where_a_rank_demands_the_mapped_path_and_it_cannot_be_had_all_ranks_say_why() {
    let demanded = |path| World::new(2, path).of_rank(1, SETTING, "mapped");
    let line = |why: &str| format!("RINGTREE_DEVICE_PATH=mapped on rank 1 is not possible: {why}");
    all_say(&demanded("shm"), &line("rank 0: cuMemExport"));
    all_say(
        &demanded("tcp"),
        &line("rank 0: not all ranks share memory"),
    );
    let staged = demanded("mapped").of_rank(0, SETTING, "staged");
    all_say(&staged, &line("rank 0: RINGTREE_DEVICE_PATH=staged"));
}
