//! Runs a server on tokio. Every rank has a part of the data. Each request broadcasts the question
//! and sums the ranks' answers with an all-reduce. The tasks on rank 0 `.await` both calls, so that
//! rank 0's only thread can accept clients and read their questions meanwhile.
//!
//! ```text
//! cargo run --release --example 14_tokio
//! ```
//!
//! Calls are matched in the order in which they *start*, no matter which of them a task `.await`s
//! first. Several requests can therefore be in flight. On a runtime with several threads, a lock
//! must ensure that nothing starts between the two calls of a request.
//!
//! Without a launcher, the program starts two copies of itself.

use ringtree::{Communicator, Error, ErrorKind, ReduceOp, Result};
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const RANKS: usize = 2;
const CLIENTS: u64 = 8;
/// The data are the numbers from 0 to `NUMBERS` − 1. The answer to a question is how many of these
/// numbers the question divides.
const NUMBERS: u64 = 100_000;
/// The question that ends the program.
const STOP: u64 = 0;

fn main() -> ExitCode {
    match run() {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<i32> {
    if !ringtree::launch::is_rank() {
        return ringtree::launch::spawn_self(RANKS);
    }
    println!("{}", program(Communicator::from_env()?)?);
    Ok(0)
}

pub(crate) fn program(comm: Communicator) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build();
    let runtime = runtime.map_err(|error| Error::io("starting tokio", &error))?;
    match comm.rank() {
        0 => runtime.block_on(serve(Arc::new(comm))),
        _ => runtime.block_on(work(comm)),
    }
}

/// Serves the clients on rank 0, with one task per client.
async fn serve(comm: Arc<Communicator>) -> Result<String> {
    let failed = |error| Error::io("serving", &error);
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let clients: Vec<_> = (1..=CLIENTS)
        .map(|one| tokio::spawn(ask(address, one)))
        .collect();
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let (stream, _) = listener.accept().await.map_err(failed)?;
        tasks.push(tokio::spawn(answer(Arc::clone(&comm), stream)));
    }
    for task in tasks {
        task.await
            .map_err(|error| Error::new(ErrorKind::System, error.to_string()))??;
    }
    comm.start_broadcast(vec![STOP], 0)?.await?;
    for client in clients {
        let end = client
            .await
            .map_err(|error| Error::new(ErrorKind::System, error.to_string()))?;
        end.map_err(failed)?;
    }
    Ok(format!(
        "rank 0 of {} has answered {CLIENTS} clients correctly",
        comm.world_size()
    ))
}

/// Answers one client's questions.
async fn answer(comm: Arc<Communicator>, mut stream: TcpStream) -> Result<()> {
    // A client that disconnects is not an error. 0 is not a valid question.
    while let Ok(question @ 1..) = stream.read_u64().await {
        let told = comm.start_broadcast(vec![question], 0)?;
        let counted = comm.start_all_reduce(vec![count(&comm, question)], ReduceOp::Sum)?;
        told.await?;
        let total = counted.await?[0];
        if stream.write_u64(total).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Answers questions on the other ranks, and waits for them without a timeout.
async fn work(comm: Communicator) -> Result<String> {
    for answered in 0.. {
        let question = comm
            .without_timeout()
            .start_broadcast(vec![STOP], 0)?
            .await?[0];
        if question == STOP {
            return Ok(format!("rank {} has counted {answered} times", comm.rank()));
        }
        let counted = vec![count(&comm, question)];
        comm.start_all_reduce(counted, ReduceOp::Sum)?.await?;
    }
    unreachable!("rank 0 sends STOP")
}

/// Counts the numbers in this rank's part that `question` divides.
fn count(comm: &Communicator, question: u64) -> u64 {
    let own = comm.block(NUMBERS as usize);
    own.filter(|one| (*one as u64).is_multiple_of(question))
        .count() as u64
}

/// Runs a client, which asks some questions and checks the answers.
async fn ask(address: SocketAddr, client: u64) -> io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    for question in client..client + 5 {
        stream.write_u64(question).await?;
        let answer = stream.read_u64().await?;
        if answer != NUMBERS.div_ceil(question) {
            return Err(io::Error::other(format!("{question}: {answer} is wrong")));
        }
    }
    Ok(())
}
