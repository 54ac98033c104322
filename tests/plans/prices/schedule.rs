//! Tests the predicted times of individual messages, and the terms of a predicted time.

use super::{entry_cost, even_bytes, over_tcp, plans, requests};
use ringtree::internal::limits::TRACE_SPANS_MAX;
use ringtree::plan::internal::cost::{
    MessageTimes, longest_path_s, payload_bytes, schedule, shared,
};
use ringtree::plan::internal::select::parts;
use ringtree::plan::internal::select::with_breakdown;
use ringtree::plan::{
    Algorithm, Collective, Hosts, LinkCost, Plan, Request, Step, Topology, TuningTable, choose,
    predicted_s,
};
use std::collections::{BTreeMap, BTreeSet};

const LINK: LinkCost = LinkCost {
    alpha_s: 7e-6,
    overhead_s: 3e-6,
    beta_s_per_byte: 1e-9,
    gamma_s_per_byte: 0.5e-9,
};
/// Tolerance when comparing floating-point times, in seconds.
const ROUNDING_S: f64 = 1e-12;

/// Returns round, sender and receiver of every message of the plans.
fn messages_of(plans: &[Plan]) -> BTreeSet<(usize, usize, usize)> {
    let mut all = BTreeSet::new();
    for (from, plan) in plans.iter().enumerate() {
        for (round, steps) in plan.rounds.iter().enumerate() {
            for step in steps {
                if let Step::Send { peers, .. } = step {
                    all.extend(peers.iter().map(|to| (round, from, *to)));
                }
            }
        }
    }
    all
}

/// Returns `true` if the times at which each port is busy do not overlap.
fn are_disjoint(ports: BTreeMap<usize, Vec<[f64; 2]>>) -> bool {
    ports.into_values().all(|mut times| {
        times.sort_by(|one, other| one[0].total_cmp(&other[0]));
        let pairs = times.windows(2);
        pairs
            .map(|pair| pair[1][0] - pair[0][1])
            .all(|gap_s| gap_s >= -ROUNDING_S)
    })
}

fn by_port(
    messages: &[MessageTimes],
    port: impl Fn(&MessageTimes) -> (usize, [f64; 2]),
) -> BTreeMap<usize, Vec<[f64; 2]>> {
    let mut ports: BTreeMap<usize, Vec<[f64; 2]>> = BTreeMap::new();
    for message in messages {
        let (rank, times_s) = port(message);
        ports.entry(rank).or_default().push(times_s);
    }
    ports
}

#[test]
fn message_times_are_consistent_with_the_longest_path() {
    let table = over_tcp(LINK);
    for request in requests(12)
        .into_iter()
        .filter(|one| one.hosts == Hosts::APART)
    {
        let plans = plans(&request);
        let bytes = even_bytes(plans[0].chunks);
        let schedule = schedule(&request, bytes / 4, 4, &table).unwrap();
        let path_s = longest_path_s(&plans, bytes, &LINK);
        assert!((schedule.end_s - path_s).abs() < ROUNDING_S, "{request:?}");
        let messages = &schedule.messages;
        let predicted = messages.iter().map(|one| (one.round, one.from, one.to));
        assert_eq!(
            predicted.clone().count(),
            messages_of(&plans).len(),
            "{request:?}"
        );
        assert_eq!(
            predicted.collect::<BTreeSet<_>>(),
            messages_of(&plans),
            "{request:?}"
        );
        for one in messages {
            let busy_s = LINK.overhead_s + one.bytes as f64 * LINK.beta_s_per_byte;
            for [begin_s, end_s] in [one.sends_s, one.receives_s] {
                assert!((end_s - begin_s - busy_s).abs() < ROUNDING_S, "{one:?}");
            }
            let first_byte_s = one.sends_s[0] + LINK.overhead_s + LINK.alpha_s;
            assert!(one.receives_s[0] >= first_byte_s - ROUNDING_S, "{one:?}");
            assert!(one.receives_s[1] <= schedule.end_s + ROUNDING_S, "{one:?}");
        }
        assert!(
            are_disjoint(by_port(messages, |one| (one.from, one.sends_s))),
            "{request:?}"
        );
        assert!(
            are_disjoint(by_port(messages, |one| (one.to, one.receives_s))),
            "{request:?}"
        );
    }
}

#[test]
fn shared_memory_message_times_add_up_to_the_cost() {
    let table = TuningTable::default();
    for request in requests(9) {
        let request = Request {
            hosts: Hosts::each(request.world_size),
            ..request
        };
        let plans = plans(&request);
        let bytes = even_bytes(plans[0].chunks) * 64;
        let schedule = schedule(&request, bytes, 1, &table).unwrap();
        let expected_s = match request.world_size {
            1 => 0.0,
            _ => shared::time_s(&request, bytes, &table.shm).unwrap(),
        };
        assert!(
            (schedule.end_s - expected_s).abs() < ROUNDING_S,
            "{request:?}: the messages end at {} s, the cost is {expected_s} s",
            schedule.end_s
        );
        let messages = schedule.messages.iter();
        let predicted: BTreeSet<_> = messages.map(|one| (one.round, one.from, one.to)).collect();
        assert_eq!(predicted, messages_of(&plans), "{request:?}");
        for one in &schedule.messages {
            let is_in_order =
                one.receives_s[1] >= one.sends_s[1] && one.receives_s[0] >= one.sends_s[0];
            assert!(
                is_in_order && one.receives_s[1] <= schedule.end_s + ROUNDING_S,
                "{request:?}: {one:?}"
            );
        }
    }
}

/// The engine also sends empty messages.
#[test]
fn empty_messages_are_predicted() {
    let table = TuningTable::default();
    let by = |collective, algorithm| Request {
        collective,
        algorithm,
        world_size: 4,
        rank: 0,
        root: 0,
        pieces: 1,
        hosts: Hosts::APART,
    };
    let ring = by(Collective::AllReduce, Algorithm::Ring);
    let predicted = schedule(&ring, 2, 4, &table).unwrap();
    // Two of the four chunks have an element. Each chunk makes three hops in each of two phases.
    let of_length = |bytes| {
        let messages = predicted.messages.iter();
        messages.filter(|one| one.bytes == bytes).count()
    };
    assert_eq!([of_length(4), of_length(0)], [2 * 2 * 3; 2]);
    let barrier = by(Collective::Barrier, Algorithm::Dissemination);
    assert_eq!(
        schedule(&barrier, 1, 1, &table).unwrap().messages.len(),
        4 * 2
    );
}

#[test]
fn too_many_messages_are_rejected_before_they_are_planned() {
    let request = Request {
        collective: Collective::AllToAll,
        algorithm: Algorithm::Flat,
        world_size: 100_000,
        rank: 0,
        root: 0,
        pieces: 1,
        hosts: Hosts::APART,
    };
    let error = schedule(&request, 100_000, 4, &TuningTable::default()).unwrap_err();
    assert!(
        error.to_string().contains(&TRACE_SPANS_MAX.to_string()),
        "{error}"
    );
}

#[test]
fn terms_of_a_predicted_time_match_the_closed_form() {
    let table = over_tcp(LINK);
    let bytes = 25 << 20;
    for request in requests(16) {
        let whole_s = predicted_s(&request, bytes, &table).unwrap();
        let parts = parts(&request, bytes, &table).unwrap();
        let sum_s = parts.way_s + parts.messages_s + parts.bytes_s + parts.folds_s;
        assert!(
            (sum_s - whole_s).abs() <= 1e-9 * whole_s,
            "{request:?}: {parts:?}"
        );
        if request.hosts != Hosts::APART || request.world_size == 1 {
            continue;
        }
        let cost = entry_cost(&request);
        let payload = payload_bytes(request.collective, bytes) as f64;
        let expected = [
            (parts.way_s, cost.hops * LINK.alpha_s),
            (
                parts.messages_s,
                (cost.messages_on_path + cost.hops) * LINK.overhead_s,
            ),
            (
                parts.bytes_s,
                cost.volume_on_path * payload * LINK.beta_s_per_byte,
            ),
            (
                parts.folds_s,
                cost.folded_on_path * payload * LINK.gamma_s_per_byte,
            ),
        ];
        for (found_s, expected_s) in expected {
            assert!(
                (found_s - expected_s).abs() <= 1e-9 * whole_s,
                "{request:?}: {parts:?}"
            );
        }
    }
}

#[test]
fn choice_shows_its_cost_terms_and_the_runner_up() {
    let (table, eight) = (TuningTable::default(), Topology::apart(8));
    let line = |bytes| {
        let choice = choose(Collective::AllReduce, &eight, bytes, 4, &table, None).unwrap();
        let (_, next_s) = choice.runner_up.unwrap();
        let percent = format!(" ({:+.0} %)", 100.0 * (next_s / choice.predicted_s - 1.0));
        let choice = with_breakdown(choice, &eight, &table).unwrap();
        let line = choice.to_string();
        assert!(line.contains(&percent) && !line.contains('\n'), "{line}");
        line
    };
    // Two rounds take 2 · 6 µs of latency, and 3 µs for each of four messages sent and two
    // received.
    let small = line(8);
    assert!(
        small.contains("; breakdown of the 30.0 µs: 12.0 µs of latency (L), 18.0 µs "),
        "{small}"
    );
    let large = line(25 << 20);
    assert!(
        large.contains(" for bytes (G), ") && large.ends_with(" for reduction (γ)"),
        "{large}"
    );
}
