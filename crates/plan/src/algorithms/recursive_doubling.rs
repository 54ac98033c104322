//! Recursive doubling: pairs of ranks exchange complete buffers at distances 1, 2, 4 and so on.
//! With radix k, groups of k ranks do so at distances 1, k, k² and so on.
//!
//! ```text
//! 4 ranks   round 0   0↔1  2↔3      round 1   0↔2  1↔3
//! ```
//!
//! No all-reduce can have fewer rounds, so this algorithm is best for small buffers. Every rank
//! builds the same association tree, ((0+1)+(2+3))+…, for every chunk, so an element's bits depend
//! neither on the rank nor on the element's position in the buffer. With k = ⌊log₂ n⌋, the cost is
//! k(α + mβ + mγ), plus 2(α + mβ) + mγ if n is not a power of two ([`super::extras`]). With radix
//! k, a round costs (k−1)(α + mβ + mγ).
//!
//! Source: Thakur, Rabenseifner, Gropp (IJHPCA 2005), §4.5.

use super::Entry;
use super::blocks::whole;
use super::extras::Members;
use crate::ir::{Request, Round, Source, Step};
use crate::price::Cost;
use crate::spec::Collective;

/// The entry in the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "recursive-doubling",
    meaning: "Ranks exchange their complete buffers with partners at growing distances, such as 1, \
              2 and 4.",
    collectives: &[Collective::AllReduce],
    source: "Thakur, Rabenseifner, Gropp (IJHPCA 2005), §4.5",
    has_radix: |_| true,
    build,
    cost,
    ..Entry::PLAIN
};

fn build(request: &Request) -> Vec<Round> {
    let members = Members::new(request.world_size, request.algorithm.radix());
    let levels = members.groups.len();
    members.around(request, request.pieces, levels, |member| {
        let mut stride = 1;
        let exchange = |&group: &usize| {
            let distance = stride;
            let digit = member / distance % group;
            let first = member - digit * distance;
            let peer = |other: usize| members.rank_of(first + other * distance);
            stride *= group;
            let others = (digit + 1..group).chain(0..digit);
            let sends = others.map(|other| Step::send(peer(other), whole(request.pieces)));
            let source = |other| match other == digit {
                true => Source::Own,
                false => Source::Peer(peer(other)),
            };
            let fold = Step::Receive {
                sources: (0..group).map(source).collect(),
                ranges: whole(request.pieces),
                completes: stride == members.count,
            };
            sends.chain([fold]).collect()
        };
        members.groups.iter().map(exchange).collect()
    })
}

fn cost(request: &Request) -> Cost {
    let n = request.world_size;
    let members = Members::new(n, request.algorithm.radix());
    let exchanged: usize = members.groups.iter().map(|group| group - 1).sum();
    let extras = members.extras_max();
    let messages = (exchanged + 2 * extras) as f64;
    let rounds = members.groups.len() + if members.has_extras() { 2 } else { 0 };
    Cost {
        rounds,
        hops: (members.groups.len() + members.hops()) as f64,
        messages_on_path: messages,
        volume_on_path: messages,
        folded_on_path: (exchanged + extras) as f64,
        max_sent_per_rank: (exchanged + extras) as f64,
    }
}
