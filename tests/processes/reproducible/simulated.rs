//! Tests sums whose lengths are on both sides of each point at which the choice of algorithm
//! changes, and sums with every algorithm selected by name.

use super::{Rounded, every_call};
use half::bf16;
use ringtree::plan::Algorithm;
use ringtree::plan::internal::algorithms;
use ringtree::plan::internal::reproducible::is_in_rank_order;
use ringtree::plan::internal::select::choose_in_rank_order;
use ringtree::plan::internal::topology::of_sizes;
use ringtree::plan::{Collective, Hosts, REGISTRY, Request, Topology};
use ringtree::sim::World;
use ringtree::tuning::TuningTable;
use ringtree::{Communicator, ErrorKind, ReduceOp};

const WORLDS: [usize; 4] = [3, 4, 6, 8];
const SUMMING: [Collective; 3] = [
    Collective::AllReduce,
    Collective::Reduce,
    Collective::ReduceScatter,
];
/// Length of the longest simulated buffer.
const COUNT_MAX: usize = 150_000;

/// Returns placements: one, two or three ranks per host, unequal numbers of ranks per host, and all
/// ranks on one host.
fn hosts(world_size: usize) -> Vec<Hosts> {
    let several = [2, 3].into_iter();
    let several = several.filter(|ranks| world_size.is_multiple_of(*ranks) && *ranks < world_size);
    let all = [1, world_size].into_iter().chain(several);
    all.map(Hosts::each)
        .chain([of_sizes(&[1, world_size - 1])])
        .collect()
}

fn world(world_size: usize, hosts: &Hosts) -> World {
    let mut world = World::new(world_size);
    world.hosts = hosts.clone();
    world.is_reproducible = true;
    world
}

/// Returns the counts on both sides of each point at which the choice of algorithm changes, and the
/// smallest and the largest count.
fn counts_around_changes(topology: &Topology, element_bytes: usize) -> Vec<usize> {
    let table = TuningTable::default();
    let chosen = |collective, count| {
        let bytes = count * element_bytes;
        let choice =
            choose_in_rank_order(collective, topology, bytes, element_bytes, &table, None).unwrap();
        (choice.algorithm, choice.pieces)
    };
    let mut counts = vec![1, 10, COUNT_MAX];
    for collective in SUMMING {
        let mut from = 1;
        while from < COUNT_MAX {
            let to = (from * 2).min(COUNT_MAX);
            if chosen(collective, from) != chosen(collective, to) {
                let (mut before, mut after) = (from, to);
                while after - before > 1 {
                    let middle = (before + after) / 2;
                    match chosen(collective, middle) == chosen(collective, from) {
                        true => before = middle,
                        false => after = middle,
                    }
                }
                counts.extend([before, after]);
            }
            from = to;
        }
    }
    counts.sort_unstable();
    counts.dedup();
    counts
}

fn check_choices_keep_bits<T: Rounded>(op: ReduceOp) {
    for world_size in WORLDS {
        for hosts in hosts(world_size) {
            let topology = Topology {
                world_size,
                hosts: hosts.clone(),
            };
            let counts = counts_around_changes(&topology, size_of::<T>());
            assert!(counts.len() > 3, "the choice never changes: {topology:?}");
            let ends = world(world_size, &hosts).run(|comm| {
                counts
                    .iter()
                    .find_map(|count| every_call::<T>(comm, *count, op).transpose())
            });
            assert_eq!(ends, vec![None; world_size], "{topology:?}");
        }
    }
}

#[test]
fn choice_of_algorithm_does_not_change_f32_sum() {
    check_choices_keep_bits::<f32>(ReduceOp::Sum);
}

#[test]
fn choice_of_algorithm_does_not_change_bf16_mean() {
    check_choices_keep_bits::<bf16>(ReduceOp::Avg);
}

/// Returns every algorithm, with several radixes if it has one.
fn forms() -> Vec<Algorithm> {
    let forms = REGISTRY
        .iter()
        .flat_map(|entry| algorithms::forms(entry, &[2, 3, 8]));
    forms.collect()
}

#[test]
fn named_algorithm_gives_same_bits_or_is_rejected() {
    for world_size in WORLDS {
        for hosts in hosts(world_size) {
            let ends = world(world_size, &hosts).run(|comm| {
                forms().iter().try_for_each(|form| {
                    comm.use_algorithm(Some(*form)).unwrap();
                    check_same_or_rejected(comm, *form, &hosts)
                })
            });
            assert_eq!(ends, vec![Ok(()); world_size], "{hosts:?}");
        }
    }
}

fn check_same_or_rejected(
    comm: &Communicator,
    form: Algorithm,
    hosts: &Hosts,
) -> Result<(), String> {
    let request = |collective| Request {
        collective,
        algorithm: form,
        world_size: comm.world_size(),
        rank: 0,
        root: 0,
        pieces: 1,
        hosts: hosts.clone(),
    };
    let is_implemented = |one: &Collective| {
        let entry = ringtree::plan::internal::algorithms::entry(*one, form);
        entry.is_some()
    };
    let refused = SUMMING.iter().copied().filter(is_implemented);
    let refused: Vec<_> = refused
        .filter(|one| !is_in_rank_order(&request(*one)))
        .collect();
    if refused.is_empty() {
        let wrong = every_call::<bf16>(comm, 1001, ReduceOp::Sum);
        return match wrong.map_err(|error| format!("{form}: {error}"))? {
            None => Ok(()),
            Some(what) => Err(format!("{form}: {what}")),
        };
    }
    for collective in refused {
        let end = ringtree::internal::calls::collective(
            comm,
            collective,
            &mut [1.0f32; 50],
            ReduceOp::Sum,
            0,
        );
        let error = end
            .err()
            .ok_or(format!("{collective} by {form} is accepted"))?;
        let text = error.to_string();
        let names_both = text.contains(&format!("{collective} by {form} over"))
            && text.contains("RINGTREE_REPRODUCIBLE=1 allows flat");
        if error.kind() != ErrorKind::Usage || !names_both || text.contains('\n') {
            return Err(format!("{form}: {text}"));
        }
    }
    Ok(())
}

/// The operands reveal a different order of additions; otherwise, the tests above could not fail.
#[test]
fn bits_depend_on_algorithm_without_setting() {
    for world_size in WORLDS {
        let mut free = world(world_size, &Hosts::APART);
        free.is_reproducible = false;
        for algorithm in [Algorithm::Ring, Algorithm::Circulant] {
            free.algorithm = Some(algorithm);
            let ends = free.run(|comm| every_call::<f32>(comm, 1001, ReduceOp::Sum));
            assert!(ends[0].clone().unwrap().is_some(), "{algorithm}");
        }
    }
}
