//! A mixture of experts: every rank has one expert, and each token goes to the two experts that the
//! router picks for it. So each step has new counts, which the ranks tell each other first.
//!
//! ```text
//! cargo run --release --example 07_expert_exchange    # four simulated ranks
//! cargo build --release --example 07_expert_exchange && \
//!     cargo run --release -- run --nproc-per-node 4 -- target/release/examples/07_expert_exchange
//! ```
//!
//! One step is three calls: `all_to_all` tells every rank how many tokens it will get from whom,
//! `all_to_all_into` takes the tokens there, and the same call with both counts exchanged takes
//! the answers back. Each rank knows only what it sends and what it receives.

use ringtree::{Communicator, Error, Result};

const RANKS: usize = 4;
const STEPS: usize = 6;
/// Numbers in a token.
const WIDTH: usize = 32;

fn main() -> Result<()> {
    if std::env::var_os("RANK").is_some() {
        println!("{}", program(&Communicator::from_env()?)?);
        return Ok(());
    }
    for told in ringtree::simulate(RANKS, program) {
        println!("{}", told?);
    }
    Ok(())
}

/// Sends tokens through the experts; returns what there is to tell of this rank's expert.
pub(crate) fn program(comm: &Communicator) -> Result<String> {
    let mut loads = Vec::new();
    for step in 0..STEPS {
        // Each rank has another number of tokens, in some steps none.
        let tokens = (step * 37 + comm.rank() * 23) % 90;
        let tokens: Vec<f32> = (0..tokens * WIDTH).map(|at| (at % 61) as f32).collect();
        let routes = route(&tokens, step, comm.world_size());
        let (output, load) = experts(comm, &tokens, &routes)?;
        loads.push(load);
        if output != alone(&tokens, &routes) {
            return Err(Error::system(format!("step {step}: the answers are wrong")));
        }
    }
    Ok(format!(
        "expert {}: {} tokens in {STEPS} steps, {loads:?}; all answers are right",
        comm.rank(),
        loads.iter().sum::<usize>()
    ))
}

/// One of the experts that a token goes to, and how much its answer counts.
struct Route {
    token: usize,
    expert: usize,
    weight: f32,
}

/// The layer: every token of this rank through its experts. Also says how many tokens this rank's
/// expert had to work on.
fn experts(comm: &Communicator, tokens: &[f32], routes: &[Route]) -> Result<(Vec<f32>, usize)> {
    // What goes to one expert has to lie together.
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
    comm.all_to_all_into(&outgoing, &send, &mut arrived, &receive)?;
    arrived
        .iter_mut()
        .for_each(|one| *one = expert(comm.rank(), *one));
    let mut answers = outgoing;
    comm.all_to_all_into(&arrived, &receive, &mut answers, &send)?;

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

/// What an expert makes of a number; a real one is a network.
fn expert(number: usize, input: f32) -> f32 {
    (number + 1) as f32 * input - number as f32
}

/// The two experts of each token. A real router has learnt them; here some are popular.
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

/// The same without other ranks, to compare.
fn alone(tokens: &[f32], routes: &[Route]) -> Vec<f32> {
    let mut output = vec![0.0; tokens.len()];
    for route in routes {
        let answer = row(tokens, route.token).iter();
        let answer: Vec<f32> = answer.map(|one| expert(route.expert, *one)).collect();
        add(&mut output, route, &answer);
    }
    output
}
