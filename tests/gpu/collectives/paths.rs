//! Tests the path that device buffers use: the setting, and what the ranks report if a path is
//! unavailable.

use super::world::{Act, Rank, World, ok};
use ringtree::ErrorKind;
use ringtree::{ReduceOp, Result};

/// Number of elements of a buffer too large for any rank to pin.
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

/// A new buffer is zeroed on the device, without using host memory.
#[test]
fn zeroed_buffer_pins_no_host_memory() {
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

/// Checks that the output of every rank starts with `expected`.
fn assert_all_report(world: &World, expected: &str) {
    for result in world.run("path") {
        assert!(result.starts_with(expected), "{result}");
    }
}

#[test]
fn staged_setting_of_one_rank_applies_to_all() {
    let world = World::new(3, "mapped").expecting("shm");
    assert_all_report(
        &world.of_rank(2, SETTING, "staged"),
        "staged: through pinned host memory, over shm: rank 2: RINGTREE_DEVICE_PATH=staged",
    );
}

#[test]
fn mapped_path_can_be_required() {
    assert_all_report(&World::new(2, "mapped").with(SETTING, "mapped"), "mapped: ");
}

/// The communicator remains usable.
#[test]
fn required_mapped_path_fails_on_all_ranks_if_unavailable() {
    let demanded = |path| World::new(2, path).of_rank(1, SETTING, "mapped");
    let line = |why: &str| format!("RINGTREE_DEVICE_PATH=mapped on rank 1 is not possible: {why}");
    assert_all_report(&demanded("shm"), &line("rank 0: cuMemExport"));
    assert_all_report(
        &demanded("tcp"),
        &line("rank 0: not all ranks share memory"),
    );
    let staged = demanded("mapped").of_rank(0, SETTING, "staged");
    assert_all_report(&staged, &line("rank 0: RINGTREE_DEVICE_PATH=staged"));
}
