//! An independent copy of the formulas in the literature, in units of chunks. Algorithms without a
//! formula here are still compared with the closed form in their own file.

use crate::hosts_at;
use ringtree::plan::{Algorithm, Collective, Plan, Request, Source, Step};

/// Properties that the plans of n ranks with b pieces per block must have.
#[derive(Debug, PartialEq)]
pub(crate) struct Expected {
    pub(crate) chunks: usize,
    pub(crate) rounds: usize,
    /// Chunks sent by the busiest rank.
    pub(crate) max_chunks_sent: usize,
}

/// Returns the properties according to the literature, or `None` if there is no formula for this
/// request.
pub(crate) fn expected(request: &Request) -> Option<Expected> {
    use Algorithm as A;
    use Collective as C;
    let (n, b) = (request.world_size, request.pieces);
    if request.algorithm.radix() > 2 {
        return None;
    }
    let topology = request.topology();
    let (&[g], sites, h) = (
        topology.sizes(),
        topology.site_count(),
        hosts_at(&topology, 0).len(),
    ) else {
        return None;
    };
    if (0..sites).any(|site| hosts_at(&topology, site).len() != h) {
        return None;
    }
    let log = |n: usize| (0..).find(|&k| 1_usize << k >= n).unwrap();
    let up = log(n);
    // Number of rounds inside a host in each direction.
    let inside = if g > 1 { b } else { 0 };
    let down = (0..).take_while(|&k| 1_usize << k <= n).count() - 1;
    let extra = usize::from(up != down);
    let power = 1_usize << down;
    let (chunks, rounds, max_chunks_sent) = match (request.algorithm, request.collective) {
        (A::Flat, C::AllReduce) => (b, 1, (n - 1) * b),
        (A::Flat, C::Broadcast) => (b, b, (n - 1) * b),
        (A::Flat, C::Reduce) => (b, b, b),
        (A::Flat, C::ReduceScatter | C::AllGather) => (n * b, b, (n - 1) * b),
        (A::Flat, C::Barrier) => (1, 1, n - 1),
        (A::TwoShot, C::AllReduce) => (n * b, 2 * b, 2 * (n - 1) * b),
        (A::TwoShot, C::Reduce) => (n * b, 2 * b, n * b),
        (A::Binomial, C::Broadcast) => (b, up, up * b),
        (A::Binomial, C::Reduce) => (b, up, b),
        (A::Binomial, C::AllReduce) => (b, 2 * up, up * b),
        (A::ScatterAllgather, C::Broadcast) => (n * b, 2 * up, 2 * (n - 1) * b),
        (A::RecursiveDoubling, C::AllReduce) => (b, down + 2 * extra, (down + extra) * b),
        (A::Rabenseifner, C::AllReduce) => (
            power * b,
            2 * down + 2 * extra,
            2 * (power - 1) * b + extra * power * b,
        ),
        (A::Ring, C::AllReduce) => (n * b, 2 * (n - 1), 2 * (n - 1) * b),
        (A::Ring, C::ReduceScatter | C::AllGather) => (n * b, n - 1, (n - 1) * b),
        (A::Circulant, C::AllReduce) => (n * b, 2 * up * b, 2 * (n - 1) * b),
        (A::Circulant, C::ReduceScatter | C::AllGather) => (n * b, up * b, (n - 1) * b),
        (A::Circulant, C::Broadcast) => (b, b - 1 + up, b - 1 + up),
        (A::Circulant, C::Reduce) => (b, b - 1 + up, b),
        (A::Dissemination, C::Barrier) => (1, up, up),
        (A::Hierarchical, C::AllReduce) => {
            (n * b, 2 * (inside + log(h) + log(sites)), 2 * (n - 1) * b)
        }
        (A::Hierarchical, C::Broadcast) => (
            b,
            inside + log(h) + sites - 1,
            (g - 1 + log(h) + usize::from(sites > 1)) * b,
        ),
        (A::Hierarchical, C::Reduce) => (b, inside + log(h) + sites - 1, b),
        (A::Bruck, C::AllGather) => (n * b, up, (n - 1) * b),
        (A::BruckFold, C::AllReduce) => (b, up, (n - 1) * b),
        (A::Chain, C::Broadcast | C::Reduce) => (b, (n + b).saturating_sub(2), b),
        _ => return None,
    };
    if n == 1 {
        return Some(Expected {
            chunks,
            rounds: 0,
            max_chunks_sent: 0,
        });
    }
    Some(Expected {
        chunks,
        rounds,
        max_chunks_sent,
    })
}

/// The numbers of messages, chunks and reduced chunks on the plans' critical path, if all ranks
/// start each round together and each rank has one port.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Path {
    pub(crate) messages: usize,
    pub(crate) chunks: usize,
    pub(crate) folded: usize,
}

/// Returns the load on the critical path of `plans`.
pub(crate) fn path<'a>(plans: impl Iterator<Item = &'a Plan>) -> Path {
    let mut path = Path::default();
    let plans: Vec<&Plan> = plans.collect();
    for round in 0..plans[0].rounds.len() {
        let of_ranks: Vec<Path> = plans
            .iter()
            .map(|plan| round_path(&plan.rounds[round]))
            .collect();
        let most = |what: fn(&Path) -> usize| of_ranks.iter().map(what).max().unwrap();
        path.messages += most(|one| one.messages);
        path.chunks += most(|one| one.chunks);
        path.folded += most(|one| one.folded);
    }
    path
}

/// Returns the maximum over the sites of the critical path of each site's ranks. The ranks of each
/// site start rounds together, but different sites do not.
pub(crate) fn longest_of_sites(plans: &[Plan]) -> Path {
    let topology = plans[0].request.topology();
    let mut longest = Path::default();
    for site in 0..topology.site_count() {
        let is_at_site =
            |plan: &&Plan| topology.site_of(topology.host_of(plan.request.rank)) == site;
        let one = path(plans.iter().filter(is_at_site));
        longest.messages = longest.messages.max(one.messages);
        longest.chunks = longest.chunks.max(one.chunks);
        longest.folded = longest.folded.max(one.folded);
    }
    longest
}

/// Returns the load of the busier direction of a rank's port in one round.
fn round_path(steps: &[Step]) -> Path {
    let (mut sent, mut received, mut folded) = ((0, 0), (0, 0), 0);
    for step in steps {
        match step {
            Step::Send { peers, ranges } => {
                let chunks: usize = ranges.iter().map(|range| range.count).sum();
                sent = (sent.0 + peers.len(), sent.1 + peers.len() * chunks);
            }
            Step::Receive {
                sources, ranges, ..
            } => {
                let chunks: usize = ranges.iter().map(|range| range.count).sum();
                let peers = sources.iter().filter(|&&one| one != Source::Own).count();
                received = (received.0 + peers, received.1 + peers * chunks);
                folded += (sources.len() - 1) * chunks;
            }
            Step::Copy { .. } => {}
            Step::Reduce { from, to, .. } => folded += (from.len() - 1) * to.count,
        }
    }
    Path {
        messages: sent.0.max(received.0),
        chunks: sent.1.max(received.1),
        folded,
    }
}
