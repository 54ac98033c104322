//! Exchanges tokens in a mixture of experts. Every rank has one expert, and the router sends each
//! token to two experts. The number of tokens per expert changes in every step.
//!
//! ```text
//! cargo run --release --example 07_expert_exchange    # four simulated ranks
//! cargo build --release --example 07_expert_exchange && \
//!     cargo run --release -- run --nproc-per-node 4 -- target/release/examples/07_expert_exchange
//! ```
//!
//! One step makes three calls. `all_to_all` tells every rank how many tokens it will receive from
//! each rank. `all_to_all_into` sends the tokens. Another `all_to_all_into`, with the two lists of
//! counts swapped, returns the answers. A rank knows only its own counts.

use ringtree::{Communicator, Error, ErrorKind, Layout, Result};

const RANKS: usize = 4;
const STEPS: usize = 6;
/// Number of values per token.
const WIDTH: usize = 32;

fn main() -> Result<()> {
    if ringtree::launch::is_rank() {
        println!("{}", program(&Communicator::from_env()?)?);
        return Ok(());
    }
    for told in ringtree::simulate(RANKS, program) {
        println!("{}", told?);
    }
    Ok(())
}

/// Sends tokens through the experts. Returns a summary of this rank's expert.
pub(crate) fn program(comm: &Communicator) -> Result<String> {
    let mut loads = Vec::new();
    for step in 0..STEPS {
        // The number of tokens differs between ranks and steps, and may be 0.
        let tokens = (step * 37 + comm.rank() * 23) % 90;
        let tokens: Vec<f32> = (0..tokens * WIDTH).map(|at| (at % 61) as f32).collect();
        let routes = route(&tokens, step, comm.world_size());
        let (output, load) = experts(comm, &tokens, &routes)?;
        loads.push(load);
        if output != alone(&tokens, &routes) {
            return Err(Error::new(
                ErrorKind::System,
                format!("step {step}: the answers are wrong"),
            ));
        }
    }
    Ok(format!(
        "expert {}: {} tokens in {STEPS} steps, {loads:?}; all answers are correct",
        comm.rank(),
        loads.iter().sum::<usize>()
    ))
}

/// One of a token's experts, and the weight of this expert's answer.
struct Route {
    token: usize,
    expert: usize,
    weight: f32,
}

/// Runs the layer, which sends every token of this rank through its experts. Returns the output,
/// and the number of tokens that this rank's expert processed.
fn experts(comm: &Communicator, tokens: &[f32], routes: &[Route]) -> Result<(Vec<f32>, usize)> {
    // Tokens for the same expert must be contiguous.
    let mut sorted: Vec<&Route> = routes.iter().collect();
    sorted.sort_by_key(|route| route.expert);
    let mut send = vec![0u64; comm.world_size()];
    let mut outgoing = Vec::with_capacity(routes.len() * WIDTH);
    for route in &sorted {
        send[route.expert] += WIDTH as u64;
        outgoing.extend_from_slice(row(tokens, route.token));
    }
    let mut receive = send.clone();
    comm.all_to_all(&mut receive)?;
    let [send, receive] = [send, receive].map(lengths);

    let mut arrived = vec![0.0; receive.iter().sum()];
    let (send, receive) = (Layout::Counts(&send), Layout::Counts(&receive));
    comm.all_to_all_into(&send.of(&outgoing), &mut receive.of(&mut arrived))?;
    arrived
        .iter_mut()
        .for_each(|one| *one = expert(comm.rank(), *one));
    let mut answers = outgoing;
    comm.all_to_all_into(&receive.of(&arrived), &mut send.of(&mut answers))?;

    let mut output = vec![0.0; tokens.len()];
    for (answer, route) in answers.chunks_exact(WIDTH).zip(sorted) {
        add(&mut output, route, answer);
    }
    Ok((output, arrived.len() / WIDTH))
}

fn lengths(counts: Vec<u64>) -> Vec<usize> {
    counts.into_iter().map(|count| count as usize).collect()
}

fn row(tokens: &[f32], token: usize) -> &[f32] {
    &tokens[token * WIDTH..][..WIDTH]
}

fn add(output: &mut [f32], route: &Route, answer: &[f32]) {
    let output = &mut output[route.token * WIDTH..][..WIDTH];
    let pairs = output.iter_mut().zip(answer);
    pairs.for_each(|(sum, one)| *sum += route.weight * one);
}

/// Computes an expert's answer for one value. A real expert is a network.
fn expert(number: usize, input: f32) -> f32 {
    (number + 1) as f32 * input - number as f32
}

/// Chooses two experts per token. A real router learns this choice. Here, some experts are more
/// popular than others.
fn route(tokens: &[f32], step: usize, experts: usize) -> Vec<Route> {
    let pick = |token: usize| {
        let first = (token * token + step) % experts;
        let second = (first + 1 + (token + step) % 3) % experts;
        [(first, 0.75), (second, 0.25)].map(|(expert, weight)| Route {
            token,
            expert,
            weight,
        })
    };
    (0..tokens.len() / WIDTH).flat_map(pick).collect()
}

/// Computes the same output without the other ranks, for comparison.
fn alone(tokens: &[f32], routes: &[Route]) -> Vec<f32> {
    let mut output = vec![0.0; tokens.len()];
    for route in routes {
        let answer = row(tokens, route.token).iter();
        let answer: Vec<f32> = answer.map(|one| expert(route.expert, *one)).collect();
        add(&mut output, route, &answer);
    }
    output
}
