//! Tests that ranks that specify different lengths for a block get an error that names the block
//! and both ranks, and that no message is left in a link for the next call.

use super::forms::{FORMS, of_custom_type};
use super::over_processes;
use ringtree::internal::engine::{Lengths, Placement, Program};
use ringtree::plan::{Algorithm, Collective, Hosts, Request, plan};
use ringtree::sim::World;
use ringtree::{Communicator, Error, ErrorKind, Layout, Result};

const RANKS: usize = 3;

/// Block lengths that each rank specifies in its first call, indexed by rank and block. They differ
/// between ranks.
const LENGTHS: [(&str, [[usize; RANKS]; RANKS]); 7] = [
    ("only its own block", [[4, 0, 0], [0, 4, 0], [0, 0, 4]]),
    ("another rank's block", [[4, 0, 0], [4, 0, 0], [0, 4, 0]]),
    (
        "different lengths, equal sum",
        [[3, 1, 2], [1, 3, 2], [3, 1, 2]],
    ),
    ("too short", [[3, 4, 2], [3, 4, 2], [3, 1, 2]]),
    ("too long", [[3, 1, 2], [3, 1, 40_000], [3, 1, 2]]),
    ("no elements", [[0, 0, 0], [1, 1, 1], [1, 1, 1]]),
    ("one element", [[0, 0, 0], [0, 0, 0], [0, 1, 0]]),
];

const COLLECTIVES: [Collective; 4] = [
    Collective::AllGather,
    Collective::Gather,
    Collective::ReduceScatter,
    Collective::Scatter,
];

/// Checks the error of a call with these lengths. Returns a description of the fault, or `None` if
/// the error names a block whose lengths differ and both ranks.
fn fault(end: Result<()>, lengths: &[[usize; RANKS]; RANKS]) -> Option<String> {
    let Err(error) = end else {
        return Some("no error".into());
    };
    let (Some(low), Some(high)) = (error.rank(), error.peer()) else {
        return Some(format!("no ranks: {error:?}"));
    };
    let (one, other) = (lengths[low], lengths[high]);
    let block = (0..RANKS).find(|block| one[*block] != other[*block])?;
    let says = format!(
        ", block {block} has {} elements on rank {low}, and {} on rank {high}; pass the same",
        one[block], other[block]
    );
    let is_reported =
        error.kind() == ErrorKind::Mismatch && low < high && error.to_string().contains(&says);
    (!is_reported).then(|| format!("no '{says}' in: {error:?}"))
}

/// Runs the selected calls, each in its own communicator. Returns a description of all faults.
fn wrong(comm: &Communicator, is_wanted: impl Fn(usize) -> bool) -> Result<String> {
    let mut wrong = String::new();
    let mut row = 0;
    for (at, collective) in COLLECTIVES.into_iter().enumerate() {
        for (what, lengths) in LENGTHS {
            row += 1;
            for (form, (suffix, call)) in FORMS.into_iter().enumerate() {
                if !is_wanted(row + at + form) {
                    continue;
                }
                let own = comm.duplicate()?;
                let counts = lengths[comm.rank()].to_vec().leak();
                let data = vec![1.0; counts.iter().sum()];
                let buffer = of_custom_type(Layout::Counts(counts), data);
                // A rank that only sends may complete its call before it receives the error.
                let first = call(&own, collective, buffer).map(drop);
                let end = first.and_then(|()| own.barrier());
                if let Some(fault) = fault(end, &lengths) {
                    wrong += &format!("{collective}{suffix}, {what}: {fault}; ");
                }
            }
        }
    }
    Ok(wrong)
}

/// Runs each case in only one form. A process gets the error as soon as one of its links detects
/// it, or otherwise a second later.
pub(crate) fn some_wrong(comm: &Communicator) -> Result<String> {
    wrong(comm, |one| one.is_multiple_of(FORMS.len()))
}

#[test]
fn mismatch_error_names_block_and_both_ranks() {
    for checks_calls in [false, true] {
        for algorithm in [None, Some(Algorithm::Flat), Some(Algorithm::Ring)] {
            let mut world = World::new(RANKS);
            (world.checks_calls, world.algorithm) = (checks_calls, algorithm);
            let ends = world.run(|comm| wrong(comm, |_| true));
            let said = format!("checked: {checks_calls}, {algorithm:?}");
            assert_eq!(ends, vec![Ok(String::new()); RANKS], "{said}");
        }
    }
}

#[test]
fn mismatch_error_names_block_over_processes() {
    over_processes("counts", RANKS, |said| assert_eq!(said, [""; RANKS]));
}

/// A collective on blocks sends every message in its plan, including empty ones. In an
/// all-to-all with counts, the ranks have agreed on the counts, so they send only messages with
/// elements.
#[test]
fn only_all_to_all_with_counts_omits_empty_messages() {
    const MANY: usize = 8;
    let mut counts = [0; MANY];
    counts[3] = 5;
    for (collective, messages) in [(Collective::AllGather, MANY - 1), (Collective::AllToAll, 1)] {
        let request = Request {
            collective,
            algorithm: Algorithm::Flat,
            world_size: MANY,
            rank: 0,
            root: 0,
            pieces: 1,
            hosts: Hosts::APART,
        };
        let layout = Layout::Counts(&counts);
        let lengths = Lengths {
            count: 5,
            input: layout,
            output: layout,
        };
        let program = Program::bind(
            &plan(&request).unwrap(),
            lengths,
            4,
            Placement::Into,
            &|_| false,
        );
        let lanes = [&program.sends, &program.receives].map(Vec::len);
        assert_eq!(lanes, [messages; 2], "{collective}");
    }
}

/// Runs an all-to-all in which rank 0 specifies that it sends `sent` elements to rank 1, which
/// expects `received` elements. Returns a description of the fault, or `None` if this rank got the
/// error and no data has moved.
fn miscount(comm: &Communicator, sent: usize, received: usize) -> Result<Option<String>> {
    let own = comm.duplicate()?;
    let (mut send, mut receive) = ([2; RANKS], [2; RANKS]);
    match comm.rank() {
        0 => send[1] = sent,
        1 => receive[0] = received,
        _ => {}
    }
    let input = vec![1u16; send.iter().sum()];
    let mut output = vec![0u16; receive.iter().sum()];
    let (send, receive) = (Layout::Counts(&send), Layout::Counts(&receive));
    let end = own.all_to_all_into(&send.of(&input), &mut receive.of(&mut output));
    let says = format!(
        "rank 0 sends {sent} elements to rank 1 in all-to-all #1 of u16 by counts, but rank 1 \
         receives {received} from it"
    );
    let is_reported = |error: &Error| {
        let names_both = (error.rank(), error.peer()) == (Some(0), Some(1));
        error.kind() == ErrorKind::Mismatch && names_both && error.to_string().contains(&says)
    };
    let is_right = end.as_ref().is_err_and(is_reported) && output.iter().all(|one| *one == 0);
    Ok((!is_right).then(|| format!("no '{says}' in {end:?}; ")))
}

/// Runs all pairs of counts. Returns a description of all faults.
pub(crate) fn pairs(comm: &Communicator) -> Result<String> {
    let both = [(3, 5), (5, 3), (0, 5), (5, 0), (100_000, 5), (5, 100_000)];
    let ends = both.map(|(sent, received)| miscount(comm, sent, received));
    let faults: Result<Vec<_>> = ends.into_iter().collect();
    Ok(faults?.into_iter().flatten().collect())
}

#[test]
fn all_to_all_count_mismatch_is_reported_on_all_ranks() {
    let ends = ringtree::simulate(RANKS, pairs);
    assert_eq!(ends, vec![Ok(String::new()); RANKS]);
}

#[test]
fn all_to_all_count_mismatch_is_reported_by_all_processes() {
    over_processes("pairs", RANKS, |said| assert_eq!(said, [""; RANKS]));
}
