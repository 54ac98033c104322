//! A rank, as a process of its own: it does what its parent says, line by line, and answers.

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

/// In front of every answer: NCCL prints to the standard output too.
pub(crate) const MARK: &str = "says: ";

/// Which rank this is.
pub(crate) const RANK: &str = "RINGTREE_NCCL_RANK";
/// Which GPU it has.
pub(crate) const GPU: &str = "RINGTREE_NCCL_GPU";

/// A library whose calls are timed, and the buffers of one case.
pub(crate) trait Library {
    /// What the bytes travel over, if it says so.
    fn path(&self) -> String;

    /// Makes the buffers of `case`.
    fn prepare(&mut self, case: Case) -> Result<(), String>;

    /// Puts `input` where the next call takes it from.
    fn load(&mut self, input: &[f32]) -> Result<(), String>;

    /// Makes the case's call; it may be under way when this returns.
    fn call(&mut self) -> Result<(), String>;

    /// Waits for all calls.
    fn settle(&mut self) -> Result<(), String>;

    /// Waits for all ranks.
    fn barrier(&mut self) -> Result<(), String>;

    /// What the last call gave this rank.
    fn result(&mut self) -> Result<Vec<f32>, String>;
}

pub(crate) fn say(text: &str) {
    println!("{MARK}{text}");
}

/// Plays the part that the environment names.
pub(crate) fn play(role: &str) -> ExitCode {
    let told = listen();
    let end = match role {
        "gpu" => library::describe_gpu(),
        "version" => library::describe_nccl(),
        "mps" => mps::keep(&told),
        "nccl" => join_nccl(&told).and_then(|mut own| serve(&mut own, &told)),
        "ringtree" => Own::join().and_then(|mut own| serve(&mut own, &told)),
        other => Err(format!("{ROLE}={other} is no part of this benchmark")),
    };
    match end {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            say(&format!("failed {why}"));
            ExitCode::FAILURE
        }
    }
}

/// The parent's lines. When the parent is gone, so is this process, whatever it waits for; but
/// the one that has MPS to stop finds the channel's end instead.
fn listen() -> Receiver<String> {
    let (heard, told) = channel();
    let stays = std::env::var(ROLE).is_ok_and(|role| role == "mps");
    std::thread::spawn(move || {
        let mut lines = std::io::stdin().lock().lines().map_while(Result::ok);
        let ended = lines.any(|line| line == "end" || heard.send(line).is_err());
        if !ended && !stays {
            // Not by an exit, which would wait for the GPU.
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
        .map_err(|_| format!("{name}={text} is no number"))
}

/// Rank 0 makes the job's id, and the parent tells it to the others.
fn join_nccl(told: &Receiver<String>) -> Result<Nccl, String> {
    let id = match own_rank()? {
        0 => {
            let id = Nccl::make_id()?;
            say(&format!("id {id}"));
            id
        }
        _ => told.recv().map_err(|_| "the parent is gone".to_owned())?,
    };
    Nccl::join(&id)
}

/// Answers until there is nothing more to do.
fn serve(library: &mut dyn Library, told: &Receiver<String>) -> Result<(), String> {
    let rank = own_rank()?;
    let mut point: Option<Point> = None;
    say(&format!("joined {}", library.path()));
    for line in told {
        let (order, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let unclear = || format!("'{line}' is no order");
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

/// A case, and this rank's part of its predictable inputs.
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

    /// Makes one call and counts wrong elements. Then zeros are in place, to be summed for ever.
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
            return Err(format!("{} elements came out", output.len()));
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

    /// Time of `calls` calls. A root could run ahead, so there only calls between barriers tell.
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
