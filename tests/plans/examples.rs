//! Checks worked examples message by message, and checks what the verifier reports for faulty
//! plans.

use super::plans_of;
use ringtree::plan::{Algorithm, ChunkRange, Collective, Hosts, Plan, Request, Step, plan, verify};

/// Returns the sender and receiver of each message, lowest sender first, indexed by round.
fn edges(plans: &[Plan]) -> Vec<Vec<(usize, usize)>> {
    let in_round = |round: usize| {
        let mut edges = Vec::new();
        for plan in plans {
            for step in &plan.rounds[round] {
                if let Step::Send { peers, .. } = step {
                    edges.extend(peers.iter().map(|&peer| (plan.request.rank, peer)));
                }
            }
        }
        edges
    };
    (0..plans[0].rounds.len()).map(in_round).collect()
}

#[test]
fn broadcast_over_8_ranks_matches_textbook() {
    let plans = plans_of(Collective::Broadcast, Algorithm::Binomial, 8, 0, 1);
    let expected = [
        vec![(0, 4)],
        vec![(0, 2), (4, 6)],
        vec![(0, 1), (2, 3), (4, 5), (6, 7)],
    ];
    assert_eq!(edges(&plans), expected);
}

#[test]
fn reduce_over_8_ranks_matches_textbook() {
    let plans = plans_of(Collective::Reduce, Algorithm::Binomial, 8, 0, 1);
    let expected = [
        vec![(1, 0), (3, 2), (5, 4), (7, 6)],
        vec![(2, 0), (6, 4)],
        vec![(4, 0)],
    ];
    assert_eq!(edges(&plans), expected);
}

#[test]
fn different_root_renumbers_the_ranks() {
    let plans = plans_of(Collective::Broadcast, Algorithm::Binomial, 5, 3, 1);
    let expected = [vec![(3, 2)], vec![(3, 0)], vec![(0, 1), (3, 4)]];
    assert_eq!(edges(&plans), expected);
}

#[test]
fn two_shot_contributes_next_piece_before_sending_a_result() {
    // A message with a contribution (C) has one receiver. A message with a result (R) goes to all
    // other ranks.
    let rounds = |pieces: usize| {
        let plans = plans_of(Collective::AllReduce, Algorithm::TwoShot, 3, 0, pieces);
        let first_sent = |steps: &Vec<Step>| match &steps[0] {
            Step::Send { peers, ranges } => {
                let piece = ranges[0].first % pieces;
                (if peers.len() == 1 { 'C' } else { 'R' }, piece)
            }
            _ => panic!("the first step is not a send"),
        };
        plans[1].rounds.iter().map(first_sent).collect::<Vec<_>>()
    };
    assert_eq!(rounds(1), [('C', 0), ('R', 0)]);
    let four = [('C', 0), ('C', 1), ('R', 0), ('C', 2), ('R', 1)];
    let four = [&four[..], &[('C', 3), ('R', 2), ('R', 3)]].concat();
    assert_eq!(rounds(4), four);
}

#[test]
fn impossible_plan_is_an_error_that_states_the_reason() {
    let request = Request {
        collective: Collective::AllReduce,
        algorithm: Algorithm::Dissemination,
        world_size: 4,
        rank: 0,
        root: 0,
        pieces: 1,
        hosts: Hosts::APART,
    };
    assert_eq!(
        plan(&request).unwrap_err().to_string(),
        "dissemination does not implement all-reduce"
    );
    let beyond = Request {
        algorithm: Algorithm::Ring,
        rank: 4,
        ..request
    };
    assert!(plan(&beyond).unwrap_err().to_string().contains("rank 4"));
}

/// Returns all-reduce plans of n ranks with the given rounds for each rank.
fn handwritten(n: usize, rounds: impl Fn(usize) -> Vec<Vec<Step>>) -> Vec<Plan> {
    let mut plans = plans_of(Collective::AllReduce, Algorithm::Flat, n, 0, 1);
    for (rank, plan) in plans.iter_mut().enumerate() {
        plan.rounds = rounds(rank);
    }
    plans
}

fn all() -> Vec<ChunkRange> {
    vec![ChunkRange::new(0, 1)]
}

/// With 4 ranks, the sum is right, but its bits differ between ranks. With 3 ranks, it is wrong.
#[test]
fn dissemination_all_reduce_is_right_only_for_powers_of_two() {
    let rounds = |n: usize, rank: usize| {
        let round = |distance: usize| {
            vec![
                Step::send((rank + distance) % n, all()),
                Step::reduce((rank + n - distance) % n, all(), 2 * distance >= n),
            ]
        };
        [1, 2].map(round).to_vec()
    };
    let proof = verify(&handwritten(4, |rank| rounds(4, rank))).unwrap();
    assert!(!proof.bits_agree);
    let fault = verify(&handwritten(3, |rank| rounds(3, rank))).unwrap_err();
    assert_eq!(
        fault.to_string(),
        "rank 0, round 1, step 1, chunk 0: the contribution of rank 0 is combined twice"
    );
}

#[test]
fn cycle_of_ranks_that_wait_for_channel_space_is_a_deadlock() {
    // Each rank sends two messages to its peer before it receives, which is more than a channel can
    // hold.
    let rounds = |rank: usize| {
        let peer = 1 - rank;
        vec![
            vec![Step::send(peer, all())],
            vec![Step::send(peer, all())],
            vec![Step::reduce(peer, all(), true)],
            vec![Step::store(peer, all())],
        ]
    };
    let fault = verify(&handwritten(2, rounds)).unwrap_err();
    assert_eq!(
        fault.to_string(),
        "rank 0, round 0, step 0: rank 1 does not receive this message in this round \
         (or rank 1, round 2, step 0)"
    );
}

#[test]
fn two_messages_to_a_peer_in_one_round_are_rejected() {
    let rounds = |rank: usize| {
        let (low, high) = (ChunkRange::new(0, 1), ChunkRange::new(1, 1));
        let peer = 1 - rank;
        let exchange = [low, high].map(|chunk| Step::send(peer, vec![chunk]));
        let folds = [low, high].map(|chunk| Step::reduce(peer, vec![chunk], true));
        vec![exchange.into_iter().chain(folds).collect()]
    };
    assert_eq!(
        verify(&two_chunk_plans(rounds)).unwrap_err().to_string(),
        "rank 0, round 0, step 1: this is the second message to rank 1 in this round \
         (or rank 0, round 0, step 0)"
    );
}

/// Returns all-reduce plans of 2 ranks and 2 chunks.
fn two_chunk_plans(rounds: impl Fn(usize) -> Vec<Vec<Step>>) -> Vec<Plan> {
    let mut plans = handwritten(2, rounds);
    for plan in &mut plans {
        plan.chunks = 2;
    }
    plans
}

/// Returns plans in which two ranks exchange two chunks and reduce them. Rank 0 sends them in the
/// order `sent`, and rank 1 receives them into the chunks `stored_by_1`.
fn exchange(sent: [usize; 2], stored_by_1: [usize; 2]) -> Vec<Plan> {
    let ranges = |order: [usize; 2]| order.map(|chunk| ChunkRange::new(chunk, 1)).to_vec();
    two_chunk_plans(|rank| {
        let (sent, received) = match rank {
            0 => (sent, [0, 1]),
            _ => ([0, 1], stored_by_1),
        };
        vec![vec![
            Step::send(1 - rank, ranges(sent)),
            Step::reduce(1 - rank, ranges(received), true),
        ]]
    })
}

#[test]
fn receive_must_not_overtake_a_send_of_its_chunk() {
    assert!(verify(&exchange([0, 1], [0, 1])).is_ok());
    // If the links hold less than a chunk, no rank can receive into a chunk that it has not sent,
    // and no rank can send a chunk that the other rank does not receive yet.
    assert_eq!(
        verify(&exchange([1, 0], [1, 0])).unwrap_err().to_string(),
        "rank 0, round 0, step 0, chunk 0: all chunks that precede this chunk in the send must \
         also precede it in the receive that overwrites it; otherwise, links with little buffer \
         space would block \
         (or rank 0, round 0, step 1)"
    );
}

#[test]
fn chunk_may_be_forwarded_before_its_new_value_arrives() {
    // After an all-gather, rank 0 sends two chunks to rank 1, which forwards chunks to rank 2 in
    // the same round.
    let chain = |forwarded: &[usize]| {
        let ranges = |chunks: &[usize]| -> Vec<_> {
            chunks
                .iter()
                .map(|&chunk| ChunkRange::new(chunk, 1))
                .collect()
        };
        let mut plans = plans_of(Collective::AllGather, Algorithm::Ring, 3, 0, 1);
        let (both, one) = (ranges(&[0, 1]), ranges(forwarded));
        plans[0].rounds.push(vec![Step::send(1, both.clone())]);
        plans[1]
            .rounds
            .push(vec![Step::send(2, one.clone()), Step::store(0, both)]);
        plans[2].rounds.push(vec![Step::store(1, one)]);
        verify(&plans).map_err(|fault| (fault.rank, fault.chunk))
    };
    assert!(chain(&[1]).is_ok());
    assert!(chain(&[0, 2]).is_ok());
    assert_eq!(chain(&[1, 0]).unwrap_err(), (1, Some(0)));
    assert_eq!(chain(&[2, 1]).unwrap_err(), (1, Some(1)));
}

#[test]
fn scratch_and_local_steps_are_verified() {
    let scratch = ChunkRange::new(1, 1);
    let rounds = |rank: usize| {
        let peer = 1 - rank;
        vec![
            vec![Step::send(peer, all()), Step::store(peer, vec![scratch])],
            vec![Step::Reduce {
                from: vec![all()[0], scratch],
                to: all()[0],
                completes: true,
            }],
        ]
    };
    let mut plans = handwritten(2, rounds);
    for plan in &mut plans {
        plan.scratch = 1;
    }
    let proof = verify(&plans).unwrap();
    assert_eq!((proof.rounds, proof.messages), (1, 2));
    assert!(proof.bits_agree);
    plans[1].rounds[1] = vec![Step::Copy {
        from: scratch,
        to: all()[0],
    }];
    assert_eq!(
        verify(&plans).unwrap_err().to_string(),
        "rank 1, round 1, step 0, chunk 0: the contribution of rank 1 is overwritten here; later, \
         on rank 1: ends up with the contribution of rank 0 instead of the contributions of all \
         ranks"
    );
}
