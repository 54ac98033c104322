//! Implements `ringtree bench`, which measures a collective and checks its results.

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
use ringtree::plan::internal::reproducible::is_in_rank_order;
use ringtree::plan::internal::select::scratch_bytes;
use ringtree::plan::{Algorithm, Collective, Hosts, REGISTRY, Request};
use ringtree::{Communicator, Dtype, Error, ErrorKind, ReduceOp};
use std::io;
use std::path::PathBuf;

/// The arguments of `ringtree bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[arg(help = collectives())]
    collective: String,
    /// Number of ranks to start [default: 2]; must equal WORLD_SIZE if this process is already
    /// running as a rank (RANK is set)
    #[arg(long)]
    ranks: Option<usize>,
    /// Transport: auto, tcp or shm [default: RINGTREE_TRANSPORT]
    #[arg(long)]
    transport: Option<String>,
    /// Algorithms: auto, all, or a comma-separated list of names
    #[arg(long, default_value = "auto")]
    algorithm: String,
    /// Smallest buffer size in bytes; the suffixes K, M and G are powers of 1024
    #[arg(long, default_value = "8")]
    begin: String,
    /// Largest buffer size in bytes
    #[arg(long, default_value = "256M")]
    end: String,
    /// Factor between one size and the next
    #[arg(long, default_value_t = 4)]
    factor: usize,
    /// Comma-separated buffer sizes in bytes, such as 8,1K,25M; replaces --begin, --end and
    /// --factor
    #[arg(long, conflicts_with_all = ["begin", "end", "factor"])]
    sizes: Option<String>,
    /// Element type
    #[arg(long, default_value = "f32")]
    dtype: String,
    /// Reduction operator
    #[arg(long, default_value = "sum")]
    op: String,
    /// Root rank for broadcast, reduce, gather and scatter
    #[arg(long, default_value_t = 0)]
    root: usize,
    /// Start each rank in its own session, as torchrun, containers and services do
    #[arg(long)]
    sessions: bool,
    /// Number of calls per batch [default: chosen so that each size takes about half a second]
    #[arg(long)]
    iters: Option<usize>,
    /// Overwrite the input with the result
    #[arg(long)]
    in_place: bool,
    /// Memory for the buffers: host, shared (which the other ranks on the host read in place) or
    /// device (the GPU whose index is LOCAL_RANK modulo the number of GPUs; calls are then always
    /// in place)
    #[arg(long, default_value = "host")]
    memory: String,
    /// For each size, print to standard error why the algorithm was chosen and how its predicted
    /// time breaks down
    #[arg(long)]
    explain: bool,
    /// Write a timeline for ui.perfetto.dev to FILE on rank 0's host; for one additional call per
    /// size and algorithm, it shows when each message was sent and when it arrived, both measured
    /// and predicted
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Output format: table, csv or json
    #[arg(long, default_value = "table")]
    format: String,
}

/// The memory that holds the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Host,
    Shared,
    Device,
}

/// The parsed arguments.
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

/// Runs `ringtree bench` and returns its exit code.
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
                "ringtree bench: --root {} is out of range: it must be less than --ranks {ranks}",
                wanted.root
            );
            return MISUSED;
        }
        // Report a missing GPU once instead of on every rank.
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
            eprintln!("ringtree bench: found {wrong} wrong elements in the results");
            FAILED
        }
        Err(error) => refused(&error),
    }
}

/// Prints the error and returns the exit code.
fn refused(error: &Error) -> u8 {
    eprintln!("ringtree bench: {error}");
    let is_usage = error.kind() == ErrorKind::Usage || error.kind() == ErrorKind::Configuration;
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
                "--memory {other}: unknown kind of memory; use host, shared or device"
            ));
        }
    };
    if arguments.ranks == Some(0) || arguments.iters == Some(0) {
        return Err("--ranks and --iters must be at least 1".into());
    }
    if arguments.trace.is_some() && place == Place::Device {
        return Err("--trace does not support --memory device; use --memory host or shared".into());
    }
    let dtype: Dtype = arguments.dtype.parse()?;
    let op: ReduceOp = arguments.op.parse()?;
    if !op.supports(dtype) {
        return Err(format!(
            "{op} is not defined for {dtype}; bitwise operators require an integer type"
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

/// Returns the transport given in the arguments, or `None` if the environment decides.
fn transport(arguments: &Arguments) -> Result<Option<TransportChoice>, String> {
    let choice = arguments.transport.as_deref().map(str::parse).transpose();
    choice.map_err(|why: String| format!("--transport {why}"))
}

/// Returns the algorithms to measure. `None` stands for `auto`.
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
        return Err(
            "--begin must be at least 1 and at most --end, and --factor must be at least 2".into(),
        );
    }
    let next = |size: &usize| {
        size.checked_mul(arguments.factor)
            .filter(|size| *size <= end)
    };
    Ok(std::iter::successors(Some(begin), next).collect())
}

/// Connects to the other ranks and runs the measurements. Returns the number of wrong elements.
fn run(arguments: &Arguments, wanted: &Wanted) -> ringtree::Result<usize> {
    let mut builder = Builder::from_env()?;
    if let Some(transport) = wanted.transport {
        builder = builder.transport(transport);
    }
    let comm = builder.connect()?;
    let world_size = comm.world_size();
    if let Some(ranks) = arguments.ranks.filter(|ranks| *ranks != world_size) {
        return Err(Error::new(
            ErrorKind::Usage,
            format!("--ranks {ranks} contradicts WORLD_SIZE={world_size}; omit --ranks"),
        ));
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
        eprintln!("wrote the timeline to {path}; open it at https://ui.perfetto.dev");
    }
    Ok(wrong)
}

/// Measures all sizes and algorithms. Returns the number of wrong elements.
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
                    eprintln!("skipped: {why_not}");
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

/// Returns `true` on every rank if rank 0's output still has a reader. If the reader has closed the
/// output (`| head`), the measurements end without an error.
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

/// Returns the reason why `algorithm` must be skipped for calls of `bytes` bytes. If only one
/// algorithm is measured, returns `None`, so that the call itself returns the error.
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
    if comm.info().is_reproducible && !is_in_rank_order(&request) {
        return Some(format!(
            "{algorithm} does not reduce in rank order, which RINGTREE_REPRODUCIBLE=1 requires"
        ));
    }
    scratch_bytes(&request, bytes).err().map(String::from)
}

/// Returns the memory to measure. If the memory is on a GPU, attaches the GPU.
fn memory(comm: &Communicator, wanted: &Wanted) -> ringtree::Result<Memory> {
    Ok(match wanted.place {
        Place::Host => Memory::Host,
        Place::Shared => Memory::Shared,
        Place::Device => gpu::memory(comm)?,
    })
}
