//! Tests the order in which a program runs step by step, for every plan in the registry.

use crate::long::short_or_long;
use crate::world::{Case, pairs};
use proptest::prelude::*;
use ringtree::internal::engine::{Action, Endpoint, Piece, Placement, Program, ProgramStep, Space};
use ringtree::plan::{Hosts, Request, Topology, plan};
use ringtree::{Dtype, ReduceOp};
use std::collections::BTreeSet;

fn program() -> impl Strategy<Value = Program> {
    programs().prop_map(|(_, program)| program)
}

/// Generates programs for buffers that can be exposed.
fn exposing() -> impl Strategy<Value = Program> {
    (programs(), any::<bool>()).prop_map(|((_, program), too)| program.exposing(8, too))
}

fn either() -> impl Strategy<Value = Program> {
    prop_oneof![program(), exposing()]
}

/// Generates the ranks on a rank's host, and the rank's program.
fn programs() -> impl Strategy<Value = (Vec<usize>, Program)> {
    let case = (
        prop::sample::select(pairs()),
        (1usize..20, 0usize..20, 0usize..20),
        1usize..8,
        0usize..300,
        hosts(),
        prop::sample::select(vec![Placement::InPlace, Placement::Into]),
    );
    case.prop_map(
        |((collective, algorithm), (world_size, rank, root), pieces, count, hosts, placement)| {
            let topology = Topology::of(&hosts[..world_size]);
            let case = Case {
                collective,
                algorithm,
                pieces,
                count,
                root,
                dtype: Dtype::F32,
                op: ReduceOp::Sum,
                seed: 0,
            };
            let rank = rank % world_size;
            let neighbors = topology.ranks_of(topology.host_of(rank));
            let request = Request {
                hosts: topology.hosts,
                ..case.request(rank, world_size)
            };
            let plan = plan(&request).expect("the registry has the algorithm");
            let is_local = |peer| neighbors.contains(&peer);
            let program = Program::bind(&plan, count, Dtype::F32.size(), placement, &is_local);
            (neighbors, program)
        },
    )
}

/// Generates the host of each rank: one host for all ranks, hosts with equal numbers of ranks, or
/// any hosts.
fn hosts() -> impl Strategy<Value = Vec<usize>> {
    let equal = (1usize..20).prop_map(|ranks| (0..20).map(|rank| rank / ranks).collect());
    let any = prop::collection::vec(0usize..5, 20);
    prop_oneof![Just(vec![0; 20]), equal, any]
}

/// Returns the messages that `step` receives, as (lane, number).
fn received(step: &ProgramStep) -> Vec<(usize, u32)> {
    match &step.action {
        Action::Store(one) => vec![(one.lane, one.number)],
        Action::Reduce { from, .. } => from.iter().map(|one| (one.lane, one.number)).collect(),
        _ => vec![],
    }
}

fn sent(step: &ProgramStep) -> Vec<(usize, u32)> {
    match &step.action {
        Action::Send { to, .. } => to.iter().map(|one| (one.peer, one.number)).collect(),
        _ => vec![],
    }
}

/// Returns `true` if the messages of each lane are numbered 0, 1, 2, ...
fn counts_up(messages: impl Iterator<Item = (usize, u32)>) -> bool {
    let mut next = std::collections::HashMap::new();
    messages.into_iter().all(|(lane, number)| {
        let next = next.entry(lane).or_insert(0);
        *next += 1;
        number + 1 == *next
    })
}

fn overlap(one: &Piece, other: &Piece) -> bool {
    one.space == other.space
        && one.offset < other.offset + other.bytes
        && other.offset < one.offset + one.bytes
}

/// Checks that a step reads nothing at the location of its result. The only exception is an operand
/// at exactly this location.
fn check_places(step: &ProgramStep) {
    for (own, piece) in step.own.iter().zip(&step.pieces) {
        assert_eq!(own.bytes, piece.bytes, "{step:?}");
    }
    let read: Vec<&Piece> = match &step.action {
        Action::Copy(from) => from.iter().collect(),
        // An operand may occupy the same memory as the result. Then it has the same pieces.
        Action::Fold { from, .. } => {
            let others = from.iter().filter(|one| **one != step.pieces);
            others.flatten().collect()
        }
        _ => vec![],
    };
    for one in read.into_iter().chain(&step.own) {
        assert!(
            !step.pieces.iter().any(|piece| overlap(one, piece)),
            "{step:?}"
        );
    }
}

/// Returns `true` if `count`, or one more or one less, fills the chunks of `world_size` ranks or of
/// their `pieces` evenly. Always returns `true` in long runs.
fn is_near(count: usize, world_size: usize, pieces: usize) -> bool {
    let of_chunks = |chunks: usize| (count + 1) % chunks <= 2;
    short_or_long(
        of_chunks(world_size) || of_chunks(world_size * pieces),
        true,
    )
}

/// In a short buffer, some chunks are empty and others are not.
#[test]
fn steps_on_short_buffers_do_not_read_where_they_write() {
    for (collective, algorithm) in pairs() {
        for world_size in 1usize..=12 {
            let equal = (1..=world_size).filter(|size| world_size.is_multiple_of(*size));
            let turns: Vec<usize> = (0..world_size).map(|rank| rank * rank % 5).collect();
            for hosts in equal.map(Hosts::each).chain([Hosts::of(&turns)]) {
                let cases = (1..=4).flat_map(|pieces| {
                    let counts = (0..40).filter(move |count| is_near(*count, world_size, pieces));
                    counts.map(move |count| (pieces, count))
                });
                for (number, (pieces, count)) in cases.enumerate() {
                    let case = Case {
                        collective,
                        algorithm,
                        pieces,
                        count,
                        root: number,
                        dtype: Dtype::F32,
                        op: ReduceOp::Sum,
                        seed: 0,
                    };
                    let request = Request {
                        hosts: hosts.clone(),
                        // Use a different rank for each case.
                        ..case.request(number % world_size, world_size)
                    };
                    let plan = plan(&request).expect("the registry has the algorithm");
                    let program = Program::bind(&plan, count, 4, Placement::Into, &|_| false);
                    program.steps.iter().for_each(check_places);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(short_or_long(500, 20_000)))]

    #[test]
    fn order_lists_each_step_once_after_its_dependencies(program in either()) {
        let mut over = BTreeSet::new();
        for at in &program.order {
            for dependency in &program.steps[*at].dependencies {
                prop_assert!(over.contains(&dependency.step), "{at} before {}", dependency.step);
            }
            prop_assert!(over.insert(*at), "{at} twice");
        }
        prop_assert_eq!(over.len(), program.steps.len());
        let steps = || program.order.iter().map(|at| &program.steps[*at]);
        prop_assert!(counts_up(steps().flat_map(sent)), "sends of a lane out of order");
        prop_assert!(counts_up(steps().flat_map(received)), "receives of a lane out of order");
    }

    /// The correctness of `in_order` also relies on this property. The rounds of a rank are those
    /// in which it does something.
    #[test]
    fn sends_overtake_only_receives_of_one_round(program in program()) {
        let rounds: BTreeSet<_> = program.steps.iter().map(|step| step.round).collect();
        let is_send = |step: &ProgramStep| matches!(step.action, Action::Send { .. });
        let steps: Vec<_> = program.order.iter().map(|at| &program.steps[*at]).collect();
        for (at, step) in steps.iter().enumerate() {
            let before = rounds.range(..step.round).next_back().copied().unwrap_or(0);
            for later in &steps[at + 1..] {
                let (round, what) = (later.round, format!("{step:?} before {later:?}"));
                match (is_send(step), is_send(later)) {
                    (true, true) | (false, false) => prop_assert!(step.round <= round, "{what}"),
                    (true, false) => prop_assert!(before <= round, "{what}"),
                    (false, true) => prop_assert!(step.round < round, "{what}"),
                }
            }
        }
    }

    /// Bytes that are exposed to a rank are not overwritten before the completion step. They are
    /// not overwritten by a step of the round in which they are exposed either, because the reader
    /// may be waiting for the message of that step.
    #[test]
    fn exposed_bytes_stay_until_completion(program in exposing()) {
        let is_over = |step: &ProgramStep, piece: &Piece| {
            step.pieces.iter().any(|own| overlap(own, piece))
        };
        let writes = |step: &ProgramStep| {
            !matches!(step.action, Action::Send { .. } | Action::Complete { .. })
        };
        let mut completed = 0;
        for (at, step) in program.steps.iter().enumerate() {
            let Action::Send { to, exposed: Some(first) } = &step.action else {
                continue;
            };
            prop_assert!(step.bytes >= 8);
            let completes = |one: &&usize| match &program.steps[**one].action {
                Action::Complete { to: readers, first_reader } => {
                    (readers, first_reader) == (to, first)
                }
                _ => false,
            };
            let completion = program.completions.iter().find(completes);
            let completion = *completion.expect("every exposed send has one");
            let waits: Vec<_> = program.steps[completion].dependencies.iter().collect();
            prop_assert!(waits.len() == 1 && waits[0].step == at && waits[0].bytes == step.bytes);
            completed += 1;
            let overwrites = |writer: &&ProgramStep| {
                writes(writer) && step.pieces.iter().any(|one| is_over(writer, one))
            };
            for writer in program.steps[at + 1..].iter().filter(overwrites) {
                prop_assert!(writer.round > step.round, "{writer:?} over {step:?}");
                let is_first = writer.dependencies.iter().any(|one| one.step == completion);
                // The other writers wait for the first writer.
                prop_assert!(is_first || !writer.dependencies.is_empty(), "{writer:?}");
                prop_assert!(!writer.dependencies.iter().any(|one| one.step == at));
            }
        }
        prop_assert_eq!(completed, program.completions.len());
    }

    #[test]
    fn steps_do_not_read_where_they_write(program in either()) {
        program.steps.iter().for_each(check_places);
    }

    #[test]
    fn steps_do_not_write_to_input(program in either()) {
        let sends = |step: &ProgramStep| {
            matches!(step.action, Action::Send { .. } | Action::Complete { .. })
        };
        for step in program.steps.iter().filter(|step| !sends(step)) {
            prop_assert!(step.pieces.iter().all(|one| one.space != Space::Input), "{step:?}");
        }
    }

    /// Messages to several peers share a few segments, whichever peer reads them. To prevent a
    /// message from taking segments that an earlier message needs, a rank has at most one such
    /// message per round, and sends it to all ranks that share the memory. Each rank on another
    /// host is sent a separate message.
    #[test]
    fn rank_sends_one_shared_message_per_round_to_its_host(
        (neighbors, program) in programs(),
    ) {
        let is_near = |one: &Endpoint| neighbors.contains(&one.peer);
        let mut rounds = BTreeSet::new();
        for step in &program.steps {
            if let Action::Send { to, .. } = &step.action
                && to.len() > 1
            {
                prop_assert!(to.iter().all(is_near), "{to:?}");
                prop_assert!(rounds.insert(step.round), "two in round {}", step.round);
                prop_assert_eq!(to.len(), neighbors.len() - 1, "{:?}", to);
            }
        }
    }
}
