//! `ringtree bench`: measure a collective, checking its results while it is measured.

mod buffers;
pub(crate) mod case;
pub(crate) mod measure;
pub(crate) mod report;

use crate::gpu;
use crate::names::{Selection, collectives, parse_collective, parse_selection};
use crate::quantity::parse_size;
use crate::{FAILED, FINE, Invocation, MISUSED};
use case::{Case, Memory};
use measure::Measurement;
use report::Report;
use ringtree::TransportChoice;
use ringtree::comm::builder::Builder;
use ringtree::ddp::Trace;
use ringtree::plan::algorithms::required;
use ringtree::plan::reproducible::is_in_rank_order;
use ringtree::plan::select::scratch_bytes;
use ringtree::plan::{Algorithm, Collective, Hosts, REGISTRY, Request};
use ringtree::{Communicator, Dtype, Error, ReduceOp};
use std::io;
use std::path::PathBuf;

/// The arguments of `ringtree bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[arg(help = collectives())]
    collective: String,
    /// How many ranks to spawn; among ranks already (RANK is set) it must agree
    #[arg(long)]
    ranks: Option<usize>,
    /// What the bytes travel over: auto, tcp or shm; without it RINGTREE_TRANSPORT decides
    #[arg(long)]
    transport: Option<String>,
    /// auto, all, or names separated by commas
    #[arg(long, default_value = "auto")]
    algorithm: String,
    /// The first size
    #[arg(long, default_value = "8")]
    begin: String,
    /// The last size
    #[arg(long, default_value = "256M")]
    end: String,
    /// From one size to the next
    #[arg(long, default_value_t = 4)]
    factor: usize,
    /// The sizes themselves, such as 8,1K,25M
    #[arg(long, conflicts_with_all = ["begin", "end", "factor"])]
    sizes: Option<String>,
    /// Type of the elements
    #[arg(long, default_value = "f32")]
    dtype: String,
    /// Operator
    #[arg(long, default_value = "sum")]
    op: String,
    /// Root of broadcast, reduce, gather and scatter
    #[arg(long, default_value_t = 0)]
    root: usize,
    /// Spawn each rank in a session of its own, as torchrun, containers and services do
    #[arg(long)]
    sessions: bool,
    /// Calls a batch; without it about half a second a size
    #[arg(long)]
    iters: Option<usize>,
    /// The result replaces the input
    #[arg(long)]
    in_place: bool,
    /// Where the buffers live: host, shared: in memory that peers read where it lies, device: on
    /// the GPU number LOCAL_RANK, modulo how many there are, and in place
    #[arg(long, default_value = "host")]
    memory: String,
    /// Say for each size why its algorithm was chosen, and what its time is predicted to be made
    /// of, in one line on standard error
    #[arg(long)]
    explain: bool,
    /// Write a timeline for ui.perfetto.dev to this file of rank 0's host: of one more call of
    /// every point, when each message left and came on every rank, measured and predicted
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// table, csv or json
    #[arg(long, default_value = "table")]
    format: String,
}

/// Where buffers live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Host,
    Shared,
    Device,
}

/// What the arguments ask for.
struct Wanted {
    collective: Collective,
    transport: Option<TransportChoice>,
    algorithms: Vec<Option<Algorithm>>,
    sizes_bytes: Vec<usize>,
    dtype: Dtype,
    op: ReduceOp,
    root: usize,
    iterations: Option<usize>,
    in_place: bool,
    place: Place,
    report: Report,
}

/// Answers `ringtree bench`.
pub(crate) fn execute(arguments: &Arguments, invocation: Invocation) -> u8 {
    let wanted = match wanted(arguments) {
        Ok(wanted) => wanted,
        Err(problem) => {
            eprintln!("ringtree bench: {problem}");
            return MISUSED;
        }
    };
    let is_among_ranks = std::env::var_os("RANK").is_some();
    if !is_among_ranks {
        let ranks = arguments.ranks.unwrap_or(2);
        if wanted.root >= ranks {
            eprintln!(
                "ringtree bench: --root {} is no rank; there are {ranks}",
                wanted.root
            );
            return MISUSED;
        }
        // Reported once here, instead of by every rank.
        if wanted.place == Place::Device
            && let Err(error) = gpu::find()
        {
            return refused(&error);
        }
        return match invocation.spawn(ranks, arguments.sessions) {
            Ok(code) => u8::try_from(code).unwrap_or(FAILED),
            Err(error) => refused(&error),
        };
    }
    match run(arguments, &wanted) {
        Ok(0) => FINE,
        Ok(wrong) => {
            eprintln!("ringtree bench: {wrong} elements were wrong");
            FAILED
        }
        Err(error) => refused(&error),
    }
}

/// Prints what is wrong; the exit code is 2 for wrong usage and 1 for failed work.
fn refused(error: &Error) -> u8 {
    eprintln!("ringtree bench: {error}");
    let is_usage = error.is_usage() || error.is_configuration();
    if is_usage { MISUSED } else { FAILED }
}

fn wanted(arguments: &Arguments) -> Result<Wanted, String> {
    let collective = parse_collective(&arguments.collective)?;
    let place = match arguments.memory.as_str() {
        "host" => Place::Host,
        "shared" => Place::Shared,
        "device" => Place::Device,
        other => {
            return Err(format!(
                "--memory {other}: no such memory; there are host shared device"
            ));
        }
    };
    if arguments.ranks == Some(0) || arguments.iters == Some(0) {
        return Err("--ranks and --iters must be at least 1".into());
    }
    if arguments.trace.is_some() && place == Place::Device {
        return Err("--trace records what the host moves; leave out --memory device".into());
    }
    let dtype: Dtype = arguments.dtype.parse()?;
    let op: ReduceOp = arguments.op.parse()?;
    if !op.supports(dtype) {
        return Err(format!(
            "{op} is not defined for {dtype}; bit operators are for integers"
        ));
    }
    Ok(Wanted {
        collective,
        transport: transport(arguments)?,
        algorithms: algorithms(collective, &arguments.algorithm)?,
        sizes_bytes: sizes(arguments, collective)?,
        dtype,
        op,
        root: arguments.root,
        iterations: arguments.iters,
        in_place: arguments.in_place || (place == Place::Device),
        place,
        report: arguments.format.parse()?,
    })
}

/// The transport asked for here; `None` leaves it to the environment.
fn transport(arguments: &Arguments) -> Result<Option<TransportChoice>, String> {
    let choice = arguments.transport.as_deref().map(str::parse).transpose();
    choice.map_err(|why: String| format!("--transport {why}"))
}

/// The algorithms to measure; `None` is the chooser's.
fn algorithms(collective: Collective, text: &str) -> Result<Vec<Option<Algorithm>>, String> {
    let named = text.split(',').map(|name| {
        Ok(match parse_selection(name)? {
            Selection::Auto => vec![None],
            Selection::All => {
                let all = REGISTRY.iter();
                all.filter(|entry| entry.collectives.contains(&collective))
                    .map(|entry| Some(entry.algorithm))
                    .collect()
            }
            Selection::One(algorithm) => {
                required(collective, algorithm)?;
                vec![Some(algorithm)]
            }
        })
    });
    let named: Vec<Vec<_>> = named.collect::<Result<_, String>>()?;
    Ok(named.concat())
}

fn sizes(arguments: &Arguments, collective: Collective) -> Result<Vec<usize>, String> {
    if collective == Collective::Barrier {
        return Ok(vec![1]);
    }
    if let Some(list) = &arguments.sizes {
        return list.split(',').map(parse_size).collect();
    }
    let (begin, end) = (parse_size(&arguments.begin)?, parse_size(&arguments.end)?);
    if begin == 0 || begin > end || arguments.factor < 2 {
        return Err("--begin must be from 1 to --end, and --factor at least 2".into());
    }
    let next = |size: &usize| {
        size.checked_mul(arguments.factor)
            .filter(|size| *size <= end)
    };
    Ok(std::iter::successors(Some(begin), next).collect())
}

/// Joins the other ranks and measures; returns how many elements were wrong.
fn run(arguments: &Arguments, wanted: &Wanted) -> ringtree::Result<usize> {
    let mut builder = Builder::from_env()?;
    if let Some(transport) = wanted.transport {
        builder = builder.transport(transport);
    }
    let comm = builder.connect()?;
    let world_size = comm.world_size();
    if let Some(ranks) = arguments.ranks.filter(|ranks| *ranks != world_size) {
        return Err(Error::usage(format!(
            "--ranks {ranks}, but WORLD_SIZE is {world_size}"
        )));
    }
    let trace = match arguments.trace {
        Some(_) => Trace::new(&comm)?,
        None => Trace::off(),
    };
    let wrong = measure_all(arguments, wanted, &comm, &trace)?;
    if let Some(path) = &arguments.trace
        && trace.write(path)?.is_some()
    {
        let path = path.display();
        eprintln!("the timeline is in {path}; https://ui.perfetto.dev opens it");
    }
    Ok(wrong)
}

/// Measures every point; returns how many elements were wrong.
fn measure_all(
    arguments: &Arguments,
    wanted: &Wanted,
    comm: &Communicator,
    trace: &Trace,
) -> ringtree::Result<usize> {
    let memory = memory(comm, wanted)?;
    let mut total_wrong = 0;
    let mut is_first = true;
    for bytes in &wanted.sizes_bytes {
        for algorithm in &wanted.algorithms {
            if let Some(why_not) = not_for(comm, wanted, *algorithm, *bytes) {
                if comm.rank() == 0 {
                    eprintln!("left out: {why_not}");
                }
                continue;
            }
            comm.use_algorithm(*algorithm)?;
            let case = Case {
                collective: wanted.collective,
                dtype: wanted.dtype,
                op: wanted.op,
                root: wanted.root,
                bytes: *bytes,
                iterations: wanted.iterations,
                in_place: wanted.in_place,
                memory: memory.clone(),
            };
            if arguments.explain && comm.rank() == 0 {
                eprintln!("{}", measure::explain(comm, &case)?);
            }
            let measurement: Measurement = measure::measure(comm, &case, trace)?;
            total_wrong += measurement.wrong;
            let mut printed = Ok(());
            if comm.rank() == 0 {
                printed = wanted.report.print(&case, comm, &measurement, is_first);
            }
            if !is_read(comm, printed)? {
                return Ok(total_wrong);
            }
            is_first = false;
        }
    }
    Ok(total_wrong)
}

/// Whether rank 0's output still has a reader: all ranks are told. One that has seen enough
/// (`| head`) is no failure, and ends the measurements.
fn is_read(comm: &Communicator, printed: io::Result<()>) -> ringtree::Result<bool> {
    let mut is_read = [u8::from(printed.is_ok())];
    comm.broadcast(&mut is_read, 0)?;
    match printed {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::io("cannot print the results", &error))
        }
        _ => Ok(is_read[0] != 0),
    }
}

/// Why one of all algorithms does not carry out a call of so many bytes. One that was named is not
/// left out, but refused.
fn not_for(
    comm: &Communicator,
    wanted: &Wanted,
    algorithm: Option<Algorithm>,
    bytes: usize,
) -> Option<String> {
    let algorithm = algorithm.filter(|_| wanted.algorithms.len() > 1)?;
    let request = Request {
        collective: wanted.collective,
        algorithm,
        world_size: comm.world_size(),
        rank: 0,
        root: 0,
        pieces: 1,
        hosts: Hosts::APART,
    };
    if comm.is_reproducible() && !is_in_rank_order(&request) {
        return Some(format!(
            "{algorithm} does not fold in rank order (RINGTREE_REPRODUCIBLE)"
        ));
    }
    scratch_bytes(&request, bytes).err()
}

/// The memory that is asked for; a device is attached.
fn memory(comm: &Communicator, wanted: &Wanted) -> ringtree::Result<Memory> {
    Ok(match wanted.place {
        Place::Host => Memory::Host,
        Place::Shared => Memory::Shared,
        Place::Device => gpu::memory(comm)?,
    })
}
