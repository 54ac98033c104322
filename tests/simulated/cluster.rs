//! Runs up to thousands of scripted ranks in one thread, and checks results, times, failures and
//! repeatability.

use crate::long::short_or_long;
use ringtree::ErrorKind;
use ringtree::internal::sim::SplitMix64;
use ringtree::internal::sim::Uplinks;
use ringtree::plan::internal::algorithms::{self, entry, plan};
use ringtree::plan::internal::cost::longest_path_between_sites_s;
use ringtree::plan::internal::spec::whole_count;
use ringtree::plan::internal::topology::{at_sites, in_sites_of};
use ringtree::plan::{
    Algorithm, Collective, Hosts, LinkCost, Plan, Request, Topology, TuningTable, UplinkCost,
};
use ringtree::sim::{Faults, World};
use ringtree_kit::checkers::{agreement, exact, no_hang, order, same_error};
use ringtree_kit::cluster::{Cluster, Moment, Outcome};
use ringtree_kit::script::{Call, Script, Step};
use std::time::Duration;

/// Size of the frame header that every message has.
const HEADER_BYTES: f64 = 32.0;
/// A duration longer than any of these runs takes without a fault.
const LONG: Duration = Duration::from_secs(60);

fn run(world: &World, steps: Vec<Step>) -> Outcome {
    let script = Script::same(world.world_size, steps);
    let outcome = Cluster::new(world.clone()).run(&script).unwrap();
    assert_eq!(exact::check(&outcome), Ok(()));
    assert_eq!(order::check(&outcome), Ok(()));
    assert_eq!(no_hang::check(&outcome, LONG), Ok(()));
    for record in &outcome.records {
        assert_eq!(record.result, Some(Ok(())), "{record:?}");
    }
    outcome
}

fn log2_ceil(ranks: usize) -> u32 {
    ranks.next_power_of_two().trailing_zeros()
}

/// Runs `call` and returns the number of its rounds. Because bandwidth is unlimited, each round
/// takes exactly the latency.
fn rounds_taken(world_size: usize, call: Call) -> u32 {
    let world = World::new(world_size);
    let end = run(&world, vec![Step::Call(call)]).end();
    let latency_ns = world.network.latency.as_nanos();
    assert_eq!(end.as_nanos() % latency_ns, 0, "{end:?}");
    (end.as_nanos() / latency_ns) as u32
}

#[test]
fn barrier_of_thousands_takes_logarithmic_rounds() {
    for ranks in [2048, 2049] {
        let call = Call::new(Collective::Barrier, 1).by(Algorithm::Dissemination);
        assert_eq!(rounds_taken(ranks, call), log2_ceil(ranks));
    }
}

/// Returns the duration of a broadcast, in transfer times of one message. The root's sends share
/// its port, but do not wait for each other's latency. So this network has no latency, and a
/// message occupies its ports for 10 µs and arrives when it has passed through them.
fn sends_taken(world_size: usize) -> u32 {
    let mut world = World::new(world_size);
    world.network.latency = Duration::ZERO;
    world.network.bandwidth_bytes_per_s = 1e8;
    let call = Call::new(Collective::Broadcast, 242).by(Algorithm::Binomial);
    let end = run(&world, vec![Step::Call(call)]).end();
    assert_eq!(end.as_nanos() % 10_000, 0, "{end:?}");
    (end.as_nanos() / 10_000) as u32
}

#[test]
fn time_grows_with_ranks_as_the_algorithm_predicts() {
    for ranks in (2usize..=20).chain([31, 64, 100, 256]) {
        let rounds =
            |collective, algorithm| rounds_taken(ranks, Call::new(collective, 300).by(algorithm));
        let logarithm = log2_ceil(ranks);
        assert_eq!(sends_taken(ranks), logarithm);
        // Between powers of two, some chains of dependent messages skip a round.
        let circulant = rounds(Collective::AllReduce, Algorithm::Circulant);
        assert!(circulant <= 2 * logarithm, "{circulant} for {ranks}");
        assert_eq!(
            rounds(Collective::AllReduce, Algorithm::Ring),
            2 * (ranks as u32 - 1)
        );
        if ranks.is_power_of_two() {
            let doubling = rounds(Collective::AllReduce, Algorithm::RecursiveDoubling);
            assert_eq!(doubling, logarithm);
            assert_eq!(circulant, 2 * logarithm);
        }
    }
}

/// Returns the predicted time of all ranks' plans, in a model whose overhead `o` includes the
/// bytes of a header.
fn predicted_s(world: &World, call: &Call, algorithm: Algorithm) -> f64 {
    let bytes = call.count * call.dtype.size();
    longest_path_between_sites_s(&plans(world, call, algorithm), bytes, &table_of(world))
}

fn plans(world: &World, call: &Call, algorithm: Algorithm) -> Vec<Plan> {
    (0..world.world_size)
        .map(|rank| plan(&request(world, call, algorithm, rank)).unwrap())
        .collect()
}

/// Returns the network's parameters as a tuning table whose o includes the bytes of a header.
fn table_of(world: &World) -> TuningTable {
    let beta_s_per_byte = 1.0 / world.network.bandwidth_bytes_per_s;
    let tcp = LinkCost {
        alpha_s: world.network.latency.as_secs_f64(),
        overhead_s: world.network.overhead.as_secs_f64() + HEADER_BYTES * beta_s_per_byte,
        beta_s_per_byte,
        gamma_s_per_byte: 0.0,
    };
    let uplink = world.network.uplinks.as_ref().map(|uplinks| UplinkCost {
        alpha_s: uplinks.latency.as_secs_f64(),
        beta_s_per_byte: 1.0 / uplinks.bandwidth_bytes_per_s,
    });
    TuningTable {
        tcp,
        uplink,
        ..TuningTable::default()
    }
}

fn request(world: &World, call: &Call, algorithm: Algorithm, rank: usize) -> Request {
    Request {
        collective: call.collective().unwrap(),
        algorithm,
        world_size: world.world_size,
        rank,
        root: call.root,
        pieces: 1,
        hosts: world.hosts.clone(),
    }
}

/// Returns a world in which every message is a single packet, and whose tuning table makes every
/// call use a single piece.
fn one_packet_per_message(world_size: usize) -> World {
    let mut world = World::new(world_size);
    world.network.bandwidth_bytes_per_s = 1e9;
    world.network.overhead = Duration::from_micros(3);
    world.network.quantum_bytes = 1 << 30;
    world.network.window_bytes = 1 << 30;
    world.tuning.tcp.overhead_s = 1.0;
    world
}

#[test]
fn ranks_take_the_time_of_the_longest_path() {
    let mut off = Vec::new();
    for (collective, algorithm) in algorithms::pairs(&[2, 3, 5, 8]) {
        for world_size in (2..=17).chain([23, 31, 32, 33, 48, 63, 64]) {
            let world = one_packet_per_message(world_size);
            let call = Call::new(collective, 1);
            let entry = entry(collective, algorithm).unwrap();
            let chunks = (entry.chunks)(&request(&world, &call, algorithm, 0));
            let call = Call::new(collective, 256 * chunks).by(algorithm);
            let taken_s = run(&world, vec![Step::Call(call)]).end().as_secs_f64();
            let predicted_s = predicted_s(&world, &call, algorithm);
            // If several messages arrive at a port at the same time, the port may serve them in a
            // different order than predicted.
            let tolerance = match algorithm.with_radix(2) {
                Ok(Algorithm::RecursiveDoubling) => 0.05,
                Ok(Algorithm::Circulant) if algorithm.radix() > 2 => 0.05,
                _ if algorithm == Algorithm::ScatterAllgather => 0.15,
                _ => 0.02,
            };
            if (taken_s / predicted_s - 1.0).abs() > tolerance {
                off.push(format!(
                    "{collective} by {algorithm} over {world_size} ranks took {taken_s} s, \
                     the longest path {predicted_s} s"
                ));
            }
        }
    }
    assert_eq!(off, Vec::<String>::new());
}

/// Like [`ranks_take_the_time_of_the_longest_path`], but with uplinks, which the ranks of a site
/// share.
#[test]
fn ranks_at_sites_take_the_time_of_the_longest_path() {
    let mut off = Vec::new();
    for (collective, algorithm) in algorithms::pairs(&[2, 4]) {
        for sites in [&[2, 2][..], &[4, 4], &[5, 3], &[3, 3, 3], &[8, 6, 2]] {
            let mut world = one_packet_per_message(sites.iter().sum());
            world.hosts = in_sites_of(Hosts::APART, sites);
            let topology = Topology {
                world_size: world.world_size,
                hosts: world.hosts.clone(),
            };
            let uplinks = Uplinks::of(&topology, Duration::from_micros(300), 1e8);
            world.network.uplinks = Some(uplinks);
            let call = Call::new(collective, 1);
            let entry = entry(collective, algorithm).unwrap();
            let chunks = (entry.chunks)(&request(&world, &call, algorithm, 0));
            let call = Call::new(collective, 4096 * chunks).by(algorithm);
            let taken_s = run(&world, vec![Step::Call(call)]).end().as_secs_f64();
            let predicted_s = predicted_s(&world, &call, algorithm);
            // If several messages arrive at a port or an uplink at the same time, their order may
            // differ from the prediction. A rank that gathers sends the data that it has before the
            // rest has arrived over a slow uplink.
            let tolerance = match (collective, algorithm) {
                (Collective::Gather, Algorithm::Binomial) => 0.3,
                _ => 0.1,
            };
            if (taken_s / predicted_s - 1.0).abs() > tolerance {
                off.push(format!(
                    "{collective} by {algorithm} at sites of {sites:?} took {taken_s} s, \
                     the longest path {predicted_s} s"
                ));
            }
        }
    }
    assert_eq!(off, Vec::<String>::new());
}

fn pairs() -> Vec<(Collective, Algorithm)> {
    algorithms::pairs(&[2])
}

/// Returns a world with tiny windows, random delays, stalls, and partial reads and writes.
fn faulty_world(world_size: usize, seed: u64) -> World {
    let mut world = World::new(world_size);
    world.network.seed = seed;
    let (host_count, mut random) = (1 + seed % world_size as u64, SplitMix64::new(seed + 7));
    let hosts = (0..world_size).map(|_| random.below(host_count) as usize);
    let hosts = hosts.collect::<Vec<_>>();
    let sites: Vec<usize> = hosts.iter().map(|host| host % 3).collect();
    let topology = at_sites(&hosts, &sites);
    world.hosts = topology.hosts.clone();
    if seed.is_multiple_of(2) {
        world.network.uplinks = Some(Uplinks::of(&topology, Duration::from_micros(50), 1e7));
    }
    world.network.window_bytes = 40 + SplitMix64::new(!seed).below(500) as usize;
    world.network.faults = Faults {
        delay_max: Duration::from_micros(200),
        stall_probability: 0.02,
        stall_max: Duration::from_millis(1),
        short_io: true,
        ..Faults::default()
    };
    world
}

#[test]
fn concurrent_operations_never_block_each_other() {
    let all = pairs();
    for seed in 0..60 {
        let mut chance = SplitMix64::new(seed);
        let ranks = 2 + chance.below(11) as usize;
        let mut call = || {
            let (collective, algorithm) = all[chance.below(all.len() as u64) as usize];
            let count = whole_count(collective, chance.below(400) as usize, ranks);
            let root = chance.below(ranks as u64) as usize;
            let call = Call::new(collective, count).root(root).by(algorithm);
            match collective {
                Collective::Barrier => Step::Barrier,
                _ => Step::Start(0, call),
            }
        };
        let steps = vec![
            call(),
            call(),
            call(),
            Step::Wait(0),
            call(),
            Step::Wait(0),
            Step::Leave,
        ];
        run(&faulty_world(ranks, seed), steps);
    }
}

#[test]
fn work_overlaps_a_computation_or_waits_for_its_end() {
    let compute = Duration::from_millis(5);
    let call = Call::new(Collective::AllReduce, 64).by(Algorithm::Ring);
    let script = Script::same(
        4,
        vec![Step::Start(1, call), Step::Compute(compute), Step::Wait(1)],
    );
    let mut cluster = Cluster::new(World::new(4));
    let overlapped = cluster.run(&script).unwrap();
    assert_eq!(overlapped.end(), compute);
    cluster.progress_during_compute = false;
    let serial = cluster.run(&script).unwrap();
    // The first of six rounds was sent before the computation.
    assert_eq!(serial.end(), compute + 5 * World::new(4).network.latency);
}

/// Runs a few calls in a faulty world in which one or two ranks are killed at random moments.
fn run_with_kills(pair: (Collective, Algorithm), seed: u64) -> Outcome {
    let (collective, algorithm) = pair;
    let mut chance = SplitMix64::new(seed);
    let ranks = 2 + chance.below(9) as usize;
    let root = chance.below(ranks as u64) as usize;
    let count = whole_count(collective, ranks + chance.below(200) as usize, ranks);
    let call = Call::new(collective, count).root(root).by(algorithm);
    let mut cluster = Cluster::new(faulty_world(ranks, seed));
    for _ in 0..1 + chance.below(2) {
        let moment = match chance.below(3) {
            0 => Moment::Time(Duration::from_micros(chance.below(4000))),
            1 => Moment::BytesSent(chance.below(2000)),
            _ => Moment::CallsMade(chance.below(5)),
        };
        cluster.kill(chance.below(ranks as u64) as usize, moment);
    }
    let steps = vec![
        Step::Start(1, call),
        Step::Start(2, call),
        Step::Compute(Duration::from_micros(chance.below(300))),
        Step::Wait(1),
        Step::Wait(2),
        Step::Barrier,
        Step::Call(call),
    ];
    cluster.run(&Script::same(ranks, steps)).unwrap()
}

/// Returns the number of histories to run for each pair. `RINGTREE_TEST_LONG=1` multiplies it by
/// 100.
fn histories_per_pair() -> u64 {
    short_or_long(20, 2000)
}

#[test]
fn survivors_name_the_same_rank_whenever_a_rank_dies() {
    let (mut kills, mut failures) = (0, 0);
    for (index, pair) in pairs().into_iter().enumerate() {
        for history in 0..histories_per_pair() {
            let seed = history * 1000 + index as u64;
            let outcome = run_with_kills(pair, seed);
            let holds = exact::check(&outcome)
                .and_then(|()| order::check(&outcome))
                .and_then(|()| no_hang::check(&outcome, Duration::from_secs(2)))
                .and_then(|()| same_error::check(&outcome));
            assert_eq!(holds, Ok(()), "{pair:?}, seed {seed}");
            kills += outcome.kills.iter().flatten().count();
            let is_failure = |result: &Option<Result<(), _>>| matches!(result, Some(Err(_)));
            failures += usize::from(outcome.records.iter().any(|one| is_failure(&one.result)));
        }
    }
    assert!(
        kills > 200 && failures > 150,
        "{kills} kills, {failures} failed runs"
    );
}

#[test]
fn seed_determines_history() {
    let pair = (Collective::AllReduce, Algorithm::Ring);
    for seed in 0..10 {
        assert_eq!(run_with_kills(pair, seed), run_with_kills(pair, seed));
    }
    assert_ne!(
        run_with_kills(pair, 3).records,
        run_with_kills(pair, 3 + (1 << 40)).records
    );
}

#[test]
fn all_survivors_name_a_dead_rank_of_a_thousand() {
    let call = Call::new(Collective::AllReduce, 1024).by(Algorithm::RecursiveDoubling);
    let mut cluster = Cluster::new(World::new(1024));
    cluster.kill(700, Moment::Time(Duration::from_micros(35)));
    let steps = vec![Step::Call(call), Step::Barrier];
    let outcome = cluster.run(&Script::same(1024, steps)).unwrap();
    assert_eq!(no_hang::check(&outcome, Duration::from_secs(1)), Ok(()));
    assert_eq!(same_error::check(&outcome), Ok(()));
    let errors = outcome
        .survivors()
        .filter_map(|record| record.result.as_ref()?.as_ref().err());
    let blame =
        errors.filter(|error| error.kind() == ErrorKind::PeerLost && error.peer() == Some(700));
    assert_eq!(blame.count(), 1023);
}

#[test]
fn script_that_does_not_fit_is_rejected() {
    let cluster = Cluster::new(World::new(3));
    let rejection = |steps| {
        cluster
            .run(&Script::same(3, steps))
            .unwrap_err()
            .to_string()
    };
    let call = Call::new(Collective::Broadcast, 1);
    assert_eq!(
        rejection(vec![Step::Call(call.root(3))]),
        "root 3 is out of range for 3 ranks"
    );
    assert!(rejection(vec![Step::Call(call.by(Algorithm::Ring))]).contains("does not implement"));
    assert!(cluster.run(&Script::same(2, vec![])).is_err());
}

#[test]
fn checkers_detect_the_defects_they_check_for() {
    let steps = vec![
        Step::Call(Call::new(Collective::AllReduce, 8)),
        Step::Barrier,
    ];
    let good = run(&World::new(4), steps);
    let altered = |alter: &dyn Fn(&mut Outcome)| {
        let mut outcome = good.clone();
        alter(&mut outcome);
        outcome
    };
    let wrong = altered(&|outcome| outcome.records[2].wrong = 1);
    assert!(exact::check(&wrong).is_err());
    let endless = altered(&|outcome| outcome.records[2].end = None);
    assert!(no_hang::check(&endless, LONG).is_err());
    let late = altered(&|outcome| outcome.records[2].end = Some(LONG * 2));
    assert!(no_hang::check(&late, LONG).is_err());
    let stuck = altered(&|outcome| outcome.ends[1] = None);
    assert!(no_hang::check(&stuck, LONG).is_err());
    let early = altered(&|outcome| outcome.records[2].start = LONG);
    assert!(order::check(&early).is_err());
    let blames = |outcome: &mut Outcome, record: usize, rank| {
        let message = "gone";
        outcome.records[record].result = Some(Err(ringtree::internal::errors::lost(rank, message)));
    };
    let one_cause = altered(&|outcome| (0..2).for_each(|record| blames(outcome, record, 3)));
    assert_eq!(same_error::check(&one_cause), Ok(()));
    let two_causes = altered(&|outcome| (0..2).for_each(|record| blames(outcome, record, record)));
    assert!(same_error::check(&two_causes).is_err());
}

#[test]
fn agreement_checkers_detect_wrong_marks() {
    let steps = vec![
        Step::Call(Call::new(Collective::AllReduce, 8)),
        Step::Mark(1),
        Step::Barrier,
        Step::Call(Call::new(Collective::AllReduce, 8)),
        Step::Mark(2),
        Step::Barrier,
        Step::Barrier,
    ];
    let mut cluster = Cluster::new(World::new(4));
    cluster.kill(2, Moment::CallsMade(4));
    let good = cluster.run(&Script::same(4, steps)).unwrap();
    assert_eq!(good.agreed, [Some(2), Some(2), None, Some(2)]);
    assert_eq!(agreement::check(&good), Ok(()));
    assert_eq!(agreement::check_is_lowest(&good), Ok(()));
    let altered = |alter: &dyn Fn(&mut Outcome)| {
        let mut outcome = good.clone();
        alter(&mut outcome);
        outcome
    };
    let different = altered(&|outcome| outcome.agreed[1] = Some(1));
    assert!(agreement::check(&different).is_err());
    let unreported = altered(&|outcome| outcome.agreed[1] = None);
    assert!(agreement::check(&unreported).is_err());
    let excused = altered(&|outcome| {
        outcome.agreed = vec![None; 4];
        outcome.kills[0] = Some(LONG);
    });
    assert_eq!(agreement::check(&excused), Ok(()));
    let passed = altered(&|outcome| outcome.agreed.fill(Some(0)));
    let message = agreement::check(&passed).unwrap_err();
    assert!(message.contains("relied on 1"), "{message}");
    for number in [1, 3] {
        let not_least = altered(&|outcome| outcome.agreed.fill(Some(number)));
        assert!(agreement::check_is_lowest(&not_least).is_err());
    }
}
