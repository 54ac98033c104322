//! Tests small values. They arrive intact on every rank despite network faults. If a value cannot
//! be sent, all ranks get an error. If a rank dies at any moment, the survivors name it.

use super::run_timed;
use ringtree::sim::World;
use ringtree::{Communicator, ErrorKind, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Metric {
    Loss(f64),
    Histogram(BTreeMap<String, Vec<u64>>),
    Note(Option<String>),
}

/// Returns the values of `rank`. Their length differs on every rank, and on some ranks exceeds the
/// first piece of a transfer.
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

/// Issues every call once and checks the results.
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
fn values_arrive_intact_despite_network_faults() {
    for (world_size, seed) in [(1, 1), (2, 2), (3, 3), (5, 4)] {
        let mut world = World::new(world_size);
        world.network.seed = seed;
        world.network.window_bytes = 1000;
        world.network.faults.short_io = true;
        assert_eq!(world.run(all_calls), vec![Ok(()); world_size]);
    }
}

#[test]
fn survivors_name_a_rank_that_dies_at_any_moment() {
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
                    Err(error) => {
                        error.kind() == ErrorKind::PeerLost && error.peer() == Some(victim)
                    }
                };
                assert!(is_named, "rank {victim} died at {at:?}: {ends:?}");
            }
        }
    }
}

/// A value that no rank can encode.
#[derive(Debug, PartialEq, Deserialize)]
struct Never(u8);

impl Serialize for Never {
    fn serialize<S: Serializer>(&self, _: S) -> std::result::Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("never"))
    }
}

/// A number, followed by more bytes than the first piece of a transfer holds. The number 13 cannot
/// be encoded, and odd numbers cannot be decoded.
#[derive(Clone, Debug, PartialEq)]
struct Picky(u8, Vec<u8>);

impl Picky {
    fn new(number: usize) -> Self {
        Self(number as u8, vec![number as u8; 70_000])
    }
}

impl Serialize for Picky {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        match self.0 {
            13 => Err(serde::ser::Error::custom("it is 13")),
            number => (number, &self.1).serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for Picky {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        match <(u8, Vec<u8>)>::deserialize(from)? {
            (number, _) if number % 2 == 1 => Err(serde::de::Error::custom("it is odd")),
            (number, more) => Ok(Self(number, more)),
        }
    }
}

/// If a rank's value cannot be decoded, or not even sent, the next call must not receive its bytes.
/// The values of the next call have the same length.
#[test]
fn next_call_works_after_a_call_failed_on_some_ranks() {
    type Form = fn(&Communicator, &Picky) -> Result<Vec<Picky>>;
    let forms: [Form; 3] = [
        |comm, own| Ok(vec![comm.broadcast_value(Some(own.clone()), 1)?]),
        |comm, own| comm.all_gather_value(own),
        |comm, own| Ok(comm.gather_value(own, 1)?.unwrap_or_default()),
    ];
    for (form, call) in forms.into_iter().enumerate() {
        for (culprit, wrong) in [(0, 1), (1, 1), (2, 1), (0, 13), (1, 13), (2, 13)] {
            let ends = World::new(3).run(|comm| {
                let rank = comm.rank();
                let first = if rank == culprit { wrong } else { 2 * rank };
                let failed = call(comm, &Picky::new(first));
                (failed, call(comm, &Picky::new(20 + 2 * rank)))
            });
            let of_all: Vec<_> = (0..3).map(|rank| Picky::new(20 + 2 * rank)).collect();
            for (rank, (failed, next)) in ends.into_iter().enumerate() {
                let expected = match form {
                    0 => of_all[1..2].to_vec(),
                    2 if rank != 1 => vec![],
                    _ => of_all.clone(),
                };
                assert_eq!(next, Ok(expected), "form {form}, {culprit} has {wrong}");
                assert!(
                    failed.is_ok() || failed.is_err_and(|error| error.kind() == ErrorKind::Usage)
                );
            }
        }
    }
}

#[test]
fn ranks_that_gather_on_different_roots_all_get_an_error() {
    let gather_on = |comm: &Communicator, root| comm.gather_value(&7, root).map(drop);
    let differing: [fn(&Communicator) -> Result<()>; 2] = [
        |comm| comm.gather_value(&7, comm.rank() / 2).map(drop),
        |comm| match comm.rank() {
            2 => comm.all_gather_value(&7).map(drop),
            _ => comm.gather_value(&7, 0).map(drop),
        },
    ];
    for call in differing {
        let ends = World::new(3).run(|comm| {
            let failed = call(comm);
            (failed, gather_on(comm, 0))
        });
        for (failed, next) in ends {
            let error = failed.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            assert!(error.to_string().contains("the same root"), "{error}");
            assert_eq!(next, Err(error));
        }
    }
}

#[test]
fn value_that_cannot_be_sent_is_an_error_on_every_rank() {
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
            assert!(
                end.as_ref()
                    .is_err_and(|error| error.kind() == ErrorKind::Usage),
                "{end:?}"
            );
        }
        // Rank 0 requests a different type than rank 1 sends.
        let end = match comm.rank() {
            0 => comm.broadcast_value(None::<[u64; 5]>, 1).map(drop),
            _ => comm.broadcast_value(Some("five".to_owned()), 1).map(drop),
        };
        assert_eq!(end.is_err(), comm.rank() == 0, "{end:?}");
        all_calls(comm)
    });
    assert_eq!(ends, vec![Ok(()); 3]);
}
