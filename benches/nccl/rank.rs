//! Runs a rank as a separate process, which reads its parent's orders line by line and answers
//! them.

use crate::arrangement::{Case, RANKS};
use crate::nccl::Nccl;
use crate::own::Own;
use crate::{ROLE, library, mps};
use ringtree::plan::Collective;
use ringtree::{Dtype, ReduceOp};
use ringtree_kit::expected::exact::Inputs;
use rustix::process::{Signal, getpid, kill_process};
use std::io::BufRead;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The prefix of every answer. It is needed because NCCL also prints to standard output.
pub(crate) const MARK: &str = "says: ";

/// The variable that holds the rank of this process.
pub(crate) const RANK: &str = "RINGTREE_NCCL_RANK";
/// The variable that holds the index of this process's GPU.
pub(crate) const GPU: &str = "RINGTREE_NCCL_GPU";

/// A library whose calls are timed, together with the buffers for one case.
pub(crate) trait Library {
    /// Returns the path that the data takes, or an empty string if the library does not report it.
    fn path(&self) -> String;

    /// Creates the buffers for `case`.
    fn prepare(&mut self, case: Case) -> Result<(), String>;

    /// Copies `input` to the buffer from which the next call reads it.
    fn load(&mut self, input: &[f32]) -> Result<(), String>;

    /// Issues the call for the case. The call may still be in flight when this function returns.
    fn call(&mut self) -> Result<(), String>;

    /// Waits until all calls have completed.
    fn settle(&mut self) -> Result<(), String>;

    /// Waits until all ranks have reached this barrier.
    fn barrier(&mut self) -> Result<(), String>;

    /// Returns this rank's result from the last call.
    fn result(&mut self) -> Result<Vec<f32>, String>;
}

pub(crate) fn say(text: &str) {
    println!("{MARK}{text}");
}

/// Runs this process in the given role.
pub(crate) fn play(role: &str) -> ExitCode {
    let told = listen();
    let end = match role {
        "gpu" => library::describe_gpu(),
        "version" => library::describe_nccl(),
        "mps" => mps::keep(&told),
        "nccl" => join_nccl(&told).and_then(|mut own| serve(&mut own, &told)),
        "ringtree" => Own::join().and_then(|mut own| serve(&mut own, &told)),
        other => Err(format!("{ROLE}={other} is not a role in this benchmark")),
    };
    match end {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            say(&format!("failed {why}"));
            ExitCode::FAILURE
        }
    }
}

/// Returns a channel that receives the parent's lines. If the parent exits, this process is killed,
/// no matter what it is waiting for. Only the process that must stop MPS is not killed: its channel
/// closes instead.
fn listen() -> Receiver<String> {
    let (heard, told) = channel();
    let stays = std::env::var(ROLE).is_ok_and(|role| role == "mps");
    std::thread::spawn(move || {
        let mut lines = std::io::stdin().lock().lines().map_while(Result::ok);
        let ended = lines.any(|line| line == "end" || heard.send(line).is_err());
        if !ended && !stays {
            // Kill this process, because a normal exit would wait for the GPU.
            let _ = kill_process(getpid(), Signal::KILL);
        }
    });
    told
}

pub(crate) fn own_rank() -> Result<usize, String> {
    number(RANK)
}

pub(crate) fn own_gpu() -> Result<usize, String> {
    number(GPU)
}

fn number(name: &str) -> Result<usize, String> {
    let text = std::env::var(name).unwrap_or_default();
    text.parse()
        .map_err(|_| format!("{name}={text} is not a number"))
}

/// Joins NCCL's job. Rank 0 creates the job's ID, and the parent sends it to the other ranks.
fn join_nccl(told: &Receiver<String>) -> Result<Nccl, String> {
    let id = match own_rank()? {
        0 => {
            let id = Nccl::make_id()?;
            say(&format!("id {id}"));
            id
        }
        _ => told
            .recv()
            .map_err(|_| "the parent has exited".to_owned())?,
    };
    Nccl::join(&id)
}

/// Answers the parent's orders until there are no more.
fn serve(library: &mut dyn Library, told: &Receiver<String>) -> Result<(), String> {
    let rank = own_rank()?;
    let mut point: Option<Point> = None;
    say(&format!("joined {}", library.path()));
    for line in told {
        let (order, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let unclear = || format!("'{line}' is not an order");
        match order {
            "case" => {
                let case = Case::from_line(rest).ok_or_else(unclear)?;
                library.prepare(case)?;
                let new = Point::new(case, rank);
                say(&new.check(library)?.to_string());
                point = Some(new);
            }
            "check" => {
                let point = point.as_ref().ok_or_else(unclear)?;
                say(&point.check(library)?.to_string());
            }
            "batch" => {
                let point = point.as_ref().ok_or_else(unclear)?;
                let calls = rest.parse().map_err(|_| unclear())?;
                say(&point.batch(library, calls)?.as_nanos().to_string());
            }
            _ => return Err(unclear()),
        }
    }
    Ok(())
}

/// A case, and this rank's part of the case's predictable inputs.
struct Point {
    case: Case,
    rank: usize,
    inputs: Inputs,
}

impl Point {
    fn new(case: Case, rank: usize) -> Self {
        let inputs = Inputs::new(Dtype::F32, ReduceOp::Sum, RANKS, case.bytes as u64);
        Self { case, rank, inputs }
    }

    /// Issues one call and returns the number of wrong elements. Afterwards, the buffers hold
    /// zeros, which can be summed any number of times.
    fn check(&self, library: &mut dyn Library) -> Result<usize, String> {
        let Self { case, rank, inputs } = self;
        let block = case.block();
        let first = match case.collective {
            Collective::AllGather => rank * block,
            _ => 0,
        };
        let mut input = vec![0.0f32; case.input()];
        inputs.fill(*rank, first, bytemuck::cast_slice_mut(&mut input));
        library.load(&input)?;
        library.call()?;
        library.settle()?;
        let output = library.result()?;
        if output.len() != case.output() {
            return Err(format!("the call returned {} elements", output.len()));
        }
        let bytes: &[u8] = bytemuck::cast_slice(&output);
        let wrong = match case.collective {
            Collective::Broadcast => inputs.count_wrong_input(0, 0, bytes),
            Collective::ReduceScatter => inputs.count_wrong(rank * block, bytes),
            Collective::AllGather => {
                let blocks = bytes.chunks(block * size_of::<f32>()).enumerate();
                blocks
                    .map(|(rank, bytes)| inputs.count_wrong_input(rank, rank * block, bytes))
                    .sum()
            }
            _ => inputs.count_wrong(0, bytes),
        };
        input.fill(0.0);
        library.load(&input)?;
        library.settle()?;
        Ok(wrong)
    }

    /// Returns the time that `calls` calls take. If there is a root, it could run ahead of the
    /// other ranks, so each call is timed after a barrier.
    fn batch(&self, library: &mut dyn Library, calls: u64) -> Result<Duration, String> {
        library.barrier()?;
        if self.case.collective.is_rooted() {
            let mut elapsed = Duration::ZERO;
            for _ in 0..calls {
                library.barrier()?;
                let start = Instant::now();
                library.call()?;
                library.settle()?;
                elapsed += start.elapsed();
            }
            return Ok(elapsed);
        }
        let start = Instant::now();
        for _ in 0..calls {
            library.call()?;
        }
        library.settle()?;
        Ok(start.elapsed())
    }
}
