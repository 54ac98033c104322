//! Divides the CPUs of this host among its ranks.

use clap::ValueEnum;
use rustix::thread::{CpuSet, sched_getaffinity};
use std::fs;

/// The CPUs to which each rank is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum BindTo {
    /// All CPUs that the launcher may use
    None,
    /// An equal share of these CPUs
    Core,
    /// The CPUs of one NUMA node
    Numa,
}

/// Returns the CPUs of each of `ranks` ranks, or an empty list if they are not bound.
pub(super) fn cpus(bind_to: BindTo, ranks: usize) -> Vec<Vec<usize>> {
    let available = sched_getaffinity(None);
    let available: Vec<usize> = available.map_or_else(
        |_| Vec::new(),
        |set| {
            (0..CpuSet::MAX_CPU)
                .filter(|cpu| set.is_set(*cpu))
                .collect()
        },
    );
    match bind_to {
        BindTo::None => Vec::new(),
        BindTo::Core => shares(&available, ranks),
        BindTo::Numa => {
            let nodes = numa_nodes()
                .into_iter()
                .map(|node| intersection(&node, &available));
            let nodes: Vec<_> = nodes.filter(|node| !node.is_empty()).collect();
            match nodes.is_empty() {
                true => vec![available; ranks],
                false => (0..ranks)
                    .map(|rank| nodes[rank * nodes.len() / ranks].clone())
                    .collect(),
            }
        }
    }
}

/// Divides `cpus` into `ranks` shares of adjacent CPUs. If there are more ranks than CPUs, several
/// ranks share a CPU.
fn shares(cpus: &[usize], ranks: usize) -> Vec<Vec<usize>> {
    let share = |rank: usize| {
        let (begin, end) = (rank * cpus.len() / ranks, (rank + 1) * cpus.len() / ranks);
        cpus[begin..end.max(begin + 1).min(cpus.len())].to_vec()
    };
    (0..ranks).map(share).collect()
}

fn intersection(node: &[usize], available: &[usize]) -> Vec<usize> {
    let both = node.iter().filter(|cpu| available.contains(cpu));
    both.copied().collect()
}

/// Returns the CPUs of each NUMA node of this host.
fn numa_nodes() -> Vec<Vec<usize>> {
    let list = |node: usize| {
        let path = format!("/sys/devices/system/node/node{node}/cpulist");
        fs::read_to_string(path).ok()
    };
    (0..)
        .map_while(list)
        .map(|text| parse_list(&text))
        .collect()
}

/// Returns the numbers in a list such as `0-3,8`.
pub(crate) fn parse_list(text: &str) -> Vec<usize> {
    let range = |item: &str| {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        Some(first..=last)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// Returns a list of numbers as text, with ranges, such as `0-3,8`.
pub(super) fn written(cpus: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
            _ => ranges.push((*cpu, *cpu)),
        }
    }
    let range = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_all_cpus_without_overlap() {
        let cpus: Vec<usize> = (2..13).collect();
        for ranks in 1..=11 {
            assert_eq!(shares(&cpus, ranks).concat(), cpus, "{ranks} ranks");
        }
        assert_eq!(shares(&[4, 5], 4), [[4], [4], [5], [5]]);
    }

    #[test]
    fn lists_of_cpus_are_read_and_written() {
        assert_eq!(parse_list("0-2,8,10-11\n"), [0, 1, 2, 8, 10, 11]);
        assert!(parse_list("\n").is_empty());
        assert_eq!(written(&[0, 1, 2, 8, 10, 11]), "0-2,8,10-11");
    }
}
