//! Tests the table of link speeds: ranks measure it, agree on it, save it in a file, and use it.

use crate::long::short_or_long;
use crate::ranks::reserved_address;
use ringtree::internal::sim::Network;
use ringtree::internal::sim::Uplinks;
use ringtree::plan::internal::calibration::{LinkClass, probes};
use ringtree::plan::internal::topology::{in_sites_of, of_sizes};
use ringtree::plan::{Collective, Hosts, Topology, TuningTable};
use ringtree::sim::World;
use ringtree::tuning::TuningRecord;
use ringtree::{Communicator, Dtype, ErrorKind, Result};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Measures the links of a simulated world. Returns the table, the time that this took, and the
/// bytes that rank 0 sent.
fn measured(world: &World) -> (TuningTable, Duration, u64) {
    let network = Network::new(world.network.clone(), world.world_size);
    let network = Arc::new(Mutex::new(network));
    let ends = ringtree::internal::sim::run_on(world, &network, |comm| {
        let start = comm.clock();
        let table = ringtree::internal::calls::measure(comm)?;
        Ok::<_, ringtree::Error>((table, comm.clock() - start))
    });
    let (first, took) = ends[0].clone().unwrap();
    for end in &ends {
        assert_eq!(end.as_ref().unwrap().0, first);
    }
    let sent = network.lock().unwrap().bytes_sent(0);
    (first, took, sent)
}

const OVERHEAD_US: f64 = 7.0;

#[test]
fn measured_costs_match_network() {
    for world_size in [2, 3, 8] {
        let mut world = World::new(world_size);
        world.network.latency = Duration::from_micros(100);
        world.network.overhead = Duration::from_micros(OVERHEAD_US as u64);
        world.network.quantum_bytes = 4 << 20;
        world.network.window_bytes = 4 << 20;
        world.network.bandwidth_bytes_per_s = 1e9;
        let (table, ..) = measured(&world);
        let (alpha_s, overhead_s) = (table.tcp.alpha_s, table.tcp.overhead_s);
        let beta_s_per_byte = table.tcp.beta_s_per_byte;
        // Between two ranks, latency and overhead cannot be distinguished.
        let hop_s = if world_size == 2 {
            alpha_s + 2.0 * overhead_s
        } else {
            alpha_s
        };
        assert!((0.9e-4..1.2e-4).contains(&hop_s), "{world_size}: {table}");
        let found_us = (overhead_s * 1e6).round();
        assert!(
            world_size == 2 || found_us == OVERHEAD_US,
            "{world_size}: {table}"
        );
        assert!(
            (0.9e-9..1.1e-9).contains(&beta_s_per_byte),
            "{world_size}: {table}"
        );
        assert_eq!(table.shm, TuningTable::default().shm);
    }
}

#[test]
fn measured_costs_match_links_and_uplinks_of_sites() {
    let mut world = World::new(8);
    world.hosts = in_sites_of(Hosts::APART, &[4, 4]);
    world.network.latency = Duration::from_micros(100);
    world.network.overhead = Duration::from_micros(OVERHEAD_US as u64);
    world.network.quantum_bytes = 4 << 20;
    world.network.window_bytes = 4 << 20;
    world.network.bandwidth_bytes_per_s = 1e9;
    let topology = Topology {
        world_size: 8,
        hosts: world.hosts.clone(),
    };
    world.network.uplinks = Some(Uplinks::of(&topology, Duration::from_millis(1), 1e8));
    let (table, ..) = measured(&world);
    let uplink = table.uplink.unwrap();
    let is_near = |found: f64, truth: f64| (0.9..1.1).contains(&(found / truth));
    assert!(is_near(table.tcp.alpha_s, 1e-4), "{table}");
    assert!(is_near(table.tcp.overhead_s, OVERHEAD_US * 1e-6), "{table}");
    assert!(is_near(table.tcp.beta_s_per_byte, 1e-9), "{table}");
    assert!(is_near(uplink.alpha_s, 1e-3), "{table}");
    assert!(is_near(uplink.beta_s_per_byte, 1e-8), "{table}");
}

#[test]
fn all_ranks_measure_same_table_for_any_host_sizes() {
    let some: [&[usize]; 4] = [&[1], &[3], &[2, 2], &[2, 1, 4]];
    let all: [&[usize]; 6] = [&[1], &[3], &[2, 2], &[1, 3], &[3, 3], &[2, 1, 4]];
    for sizes in short_or_long(&some[..], &all) {
        let topology = Topology {
            world_size: sizes.iter().sum(),
            hosts: of_sizes(sizes),
        };
        let mut world = World::new(topology.world_size);
        world.hosts = topology.hosts.clone();
        let (table, ..) = measured(&world);
        let built_in = TuningTable::default();
        let has = |class| probes(&topology).iter().any(|probe| probe.class == class);
        let is_new = table.tcp != built_in.tcp;
        assert_eq!(is_new, has(LinkClass::Tcp), "{topology:?}: {table}");
        // The time that a simulated link takes may be implausible for shared memory.
        let is_new = table.shm != built_in.shm;
        assert!(!is_new || has(LinkClass::Shm), "{topology:?}: {table}");
    }
}

#[test]
fn slow_network_gets_few_measuring_calls() {
    let mut world = World::new(8);
    world.network.latency = Duration::from_millis(5);
    world.network.bandwidth_bytes_per_s = 1e8;
    let (table, took, sent) = measured(&world);
    assert!(
        (4.9e-3..6e-3).contains(&table.tcp.alpha_s),
        "{}",
        table.tcp.alpha_s
    );
    // In virtual time, this duration counts messages: agreeing on a time takes three rounds of 5
    // ms.
    assert!(took < Duration::from_millis(600), "{took:?}");
    // Messages of up to 4 MiB open the TCP window. The longest of them is sent twice.
    assert!(sent < 12 << 20, "{sent}");
}

/// Runs `code` on ranks that are threads of this process.
fn ranks<R: Send>(world_size: usize, code: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    let rendezvous = reserved_address();
    let rank = |rank| {
        let builder = Communicator::builder().rank(rank).world_size(world_size);
        code(builder.rendezvous(&rendezvous).connect().unwrap())
    };
    std::thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> = (0..world_size)
            .map(|number| scope.spawn(move || rank(number)))
            .collect();
        threads.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

#[test]
fn real_ranks_agree_on_table_and_choices() {
    let ends = ranks(3, |comm| -> Result<_> {
        let choice = comm.plan_for(Collective::AllReduce, 1 << 20, Dtype::F32, 0)?;
        let duplicate = comm.duplicate()?;
        Ok((comm.tuning(), duplicate.tuning(), choice))
    });
    let first = ends[0].clone().unwrap();
    assert_eq!(first.0, first.1);
    assert!(
        ends.iter().all(|end| end.as_ref() == Ok(&first)),
        "{ends:?}"
    );
}

#[test]
fn saved_table_is_adopted_for_same_size_and_placement() {
    let saved = |world: &World| world.run(|comm| comm.tuning()).remove(0);
    let mut slow = World::new(5);
    slow.hosts = of_sizes(&[3, 2]);
    slow.tuning.tcp.alpha_s = 1e-2;
    let record = saved(&slow);
    let adopted = |world: &World, record: &TuningRecord| {
        let ends = world.run(|comm| {
            let new = match comm.duplicate_with(record)? {
                Ok(new) => new,
                Err(why) => return Ok(Err(format!("{why:?}"))),
            };
            let mut sum = [1u64];
            new.all_reduce(&mut sum, ringtree::ReduceOp::Sum)?;
            // Groups of the new communicator also use the table. The old communicator does not.
            let part = new.split(0, 0)?;
            assert_ne!(comm.tuning(), new.tuning());
            let tables = (new.tuning().table(), part.tuning().table());
            Ok::<_, ringtree::Error>(Ok((tables.0, tables.1, sum[0])))
        });
        assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
        ends[0].clone().unwrap()
    };
    let mut plain = World::new(5);
    plain.hosts = of_sizes(&[3, 2]);
    assert_eq!(adopted(&plain, &record), Ok((slow.tuning, slow.tuning, 5)));
    plain.hosts = of_sizes(&[2, 3]);
    let why = adopted(&plain, &record).unwrap_err();
    assert!(why.contains("Placement { kept: 2, own: 2 }"), "{why}");
    let why = adopted(&World::new(4), &record).unwrap_err();
    assert!(why.contains("Ranks { kept: 5, own: 4 }"), "{why}");
}

#[test]
fn adopting_different_tables_is_reported_on_all_ranks() {
    let mut slow = World::new(2);
    slow.tuning.tcp.alpha_s = 1e-2;
    let other = slow.run(|comm| comm.tuning()).remove(0);
    let ends = World::new(2).run(|comm| {
        let own = comm.tuning();
        let record = if comm.rank() == 0 { &own } else { &other };
        comm.duplicate_with(record).map(|_| ())
    });
    for end in ends {
        let error = end.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Usage && error.to_string().contains("rank 1"),
            "{error}"
        );
    }
}

#[test]
fn setting_takes_precedence_over_saved_table() {
    let mut slow = World::new(2);
    slow.hosts = Hosts::each(2);
    slow.tuning.tcp.alpha_s = 1e-2;
    let kept = slow.run(|comm| comm.tuning()).remove(0);
    let rendezvous = reserved_address();
    let rank = |rank| {
        let builder = Communicator::builder().rank(rank).world_size(2);
        let builder = builder.tuning(&TuningTable::default());
        let comm = builder.rendezvous(&rendezvous).connect().unwrap();
        let refused = comm.duplicate_with(&kept).unwrap();
        let same = comm.duplicate_with(&comm.tuning()).unwrap();
        (format!("{refused:?}"), same.is_ok())
    };
    let end = std::thread::scope(|scope| {
        let other = scope.spawn(|| rank(1));
        (rank(0), other.join().unwrap())
    });
    assert_eq!(end.0, ("Err(Setting)".to_owned(), true));
    assert_eq!(end.0, end.1);
}
