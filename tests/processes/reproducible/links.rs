//! Tests that sums have the same bits over TCP, through shared memory, and over both, from 10
//! elements to 10 million.

use super::{SUITE, every_call};
use crate::ranks::{ALL_LINKS, Links, concurrently};
use half::bf16;
use ringtree::{Communicator, ReduceOp, Result};

/// Checks sums of several lengths, from one element upward.
pub(super) fn every_sum() -> Result<String> {
    let comm = Communicator::from_env()?;
    for count in [1, 10, 4_000, 5_000, 40_000, 300_000] {
        let wrong = match every_call::<f32>(&comm, count, ReduceOp::Sum)? {
            None => every_call::<bf16>(&comm, count, ReduceOp::Avg)?,
            wrong => wrong,
        };
        if let Some(wrong) = wrong {
            return Ok(format!("wrong: {wrong}"));
        }
    }
    Ok("the same bits".into())
}

/// Compares the sum of ten elements with the sum of ten million elements that begin with them.
pub(super) fn largest() -> Result<String> {
    let comm = Communicator::from_env()?;
    let [mut few, mut many] = [10, 10_000_000].map(|count| super::operands(comm.rank(), count));
    comm.all_reduce(&mut few, ReduceOp::Sum)?;
    comm.all_reduce(&mut many, ReduceOp::Sum)?;
    let sums = super::sums::<f32>(comm.world_size(), ReduceOp::Sum);
    let is_same = few == many[..10] && super::wrong(&many, 0, &sums).is_none();
    Ok(if is_same {
        "the same bits"
    } else {
        "other bits"
    }
    .into())
}

fn check_same_bits(links: Links, role: &str, world_size: usize) {
    let ranks = SUITE.start(links, role, world_size, &[("RINGTREE_REPRODUCIBLE", "1")]);
    let (said, _) = ranks.next_reports(&(0..world_size).collect::<Vec<_>>());
    assert_eq!(said, vec!["the same bits"; world_size], "{links:?}");
}

#[test]
fn three_processes_get_same_sums_over_all_links() {
    concurrently(ALL_LINKS, |links| check_same_bits(links, "sums", 3));
}

#[test]
fn six_processes_get_same_sums_over_all_links() {
    concurrently(ALL_LINKS, |links| check_same_bits(links, "sums", 6));
}

#[test]
fn buffer_length_does_not_change_sums_over_all_links() {
    concurrently(ALL_LINKS, |links| check_same_bits(links, "largest", 4));
}

#[test]
fn different_settings_are_reported_on_all_ranks() {
    let ranks = SUITE.start_each(Links::Tcp, "sums", 3, |rank, command| {
        command.env("RINGTREE_REPRODUCIBLE", ["0", "1"][usize::from(rank == 1)]);
    });
    let (said, _) = ranks.next_reports(&[0, 1, 2]);
    for text in said {
        let differs = "RINGTREE_REPRODUCIBLE differs: it is \"0\" on rank 0";
        assert!(text.contains(differs), "{text}");
    }
}
