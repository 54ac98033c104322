//! Small values: the same on every rank, whatever the network does; one that cannot be sent is told
//! to all; a death at any moment is named.

use super::run_timed;
use ringtree::sim::simulate::World;
use ringtree::{Communicator, Result};
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Metric {
    Loss(f64),
    Histogram(BTreeMap<String, Vec<u64>>),
    Note(Option<String>),
}

/// What `rank` has to say: of another length on every rank, on some longer than a first piece.
fn metrics(rank: usize) -> Vec<Metric> {
    let buckets = (0..rank as u64 * 9_000).map(|each| each.wrapping_mul(0x9e37_79b9_7f4a));
    vec![
        Metric::Loss(1.0 / (rank as f64 + 3.0)),
        Metric::Loss(if rank == 1 { f64::NEG_INFINITY } else { -0.0 }),
        Metric::Histogram(BTreeMap::from([(
            format!("layer {rank}"),
            buckets.collect(),
        )])),
        Metric::Note((rank > 0).then(|| "ä".repeat(rank))),
    ]
}

/// Every call once; what came of it.
fn all_calls(comm: &Communicator) -> Result<()> {
    let everything: Vec<_> = (0..comm.world_size()).map(metrics).collect();
    let own = metrics(comm.rank());
    let root = comm.world_size() - 1;
    let passed = (comm.rank() == root).then(|| own.clone());
    assert_eq!(comm.broadcast_value(passed, root)?, everything[root]);
    assert_eq!(comm.all_gather_value(&own)?, everything);
    let expected = (comm.rank() == root).then_some(everything);
    assert_eq!(comm.gather_value(&own, root)?, expected);
    comm.broadcast_value(Some(()), 0)?;
    Ok(())
}

#[test]
fn values_arrive_whole_whatever_the_network_does() {
    for (world_size, seed) in [(1, 1), (2, 2), (3, 3), (5, 4)] {
        let mut world = World::new(world_size);
        world.network.seed = seed;
        world.network.window_bytes = 1000;
        world.network.faults.short_io = true;
        assert_eq!(world.run(all_calls), vec![Ok(()); world_size]);
    }
}

#[test]
fn a_death_at_any_moment_is_named_by_all_who_are_left() {
    let world = World::new(3);
    let (ends, took) = run_timed(&world, all_calls);
    assert_eq!(ends, vec![Ok(()); 3]);
    for victim in 0..3 {
        for part in 0..40 {
            let mut world = World::new(3);
            let at: Duration = took * part / 40;
            world.network.faults.deaths = vec![(victim, at)];
            let ends = world.run(all_calls);
            for rank in (0..3).filter(|rank| *rank != victim) {
                let is_named = match &ends[rank] {
                    Ok(()) => true,
                    Err(error) => error.is_peer_lost() && error.peer() == Some(victim),
                };
                assert!(is_named, "rank {victim} died at {at:?}: {ends:?}");
            }
        }
    }
}

/// A value that can be encoded on no rank.
#[derive(Debug, PartialEq, Deserialize)]
struct Never(u8);

impl Serialize for Never {
    fn serialize<S: Serializer>(&self, _: S) -> std::result::Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("never"))
    }
}

#[test]
fn what_cannot_be_sent_is_told_to_all_and_the_communicator_goes_on() {
    let ends = World::new(3).run(|comm| {
        let of_rank_1 = |comm: &Communicator| (comm.rank() == 1).then_some(Never(0));
        let usage = [
            comm.broadcast_value(of_rank_1(comm), 1).map(drop),
            comm.broadcast_value(None::<u64>, 2).map(drop),
            comm.broadcast_value(Some(1), 3).map(drop),
            comm.all_gather_value(&Never(0)).map(drop),
            comm.gather_value(&Never(0), 0).map(drop),
            comm.broadcast_value(Some(vec![0u8; 100_000_001]), 0)
                .map(drop),
        ];
        for end in usage {
            assert!(end.as_ref().is_err_and(|error| error.is_usage()), "{end:?}");
        }
        // Rank 0 asks for another type than rank 1 sends.
        let end = match comm.rank() {
            0 => comm.broadcast_value(None::<[u64; 5]>, 1).map(drop),
            _ => comm.broadcast_value(Some("five".to_owned()), 1).map(drop),
        };
        assert_eq!(end.is_err(), comm.rank() == 0, "{end:?}");
        all_calls(comm)
    });
    assert_eq!(ends, vec![Ok(()); 3]);
}
