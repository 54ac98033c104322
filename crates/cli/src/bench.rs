//! Implements `ringtree bench`, which measures a collective and checks its results.

mod buffers;
pub(crate) mod case;
pub(crate) mod measure;
pub(crate) mod report;

use crate::format::Format;
use crate::gpu;
use crate::names::{Selection, algorithms, one_of, parse_selection};
use crate::quantity::{count, parse_size};
use crate::{EXIT_OK, EXIT_USAGE, FAILED, Invocation, exit_code};
use case::{Case, Memory};
use measure::Measurement;
use ringtree::Builder;
use ringtree::ddp::Trace;
use ringtree::internal::limits::WORLD_SIZE_MAX;
use ringtree::plan::internal::reproducible::is_in_rank_order;
use ringtree::plan::internal::select::scratch_bytes;
use ringtree::plan::required;
use ringtree::plan::{Algorithm, Collective, REGISTRY, Request, Topology};
use ringtree::start::TransportChoice;
use ringtree::{Communicator, Dtype, Error, ErrorKind, ReduceOp};
use std::io;
use std::path::PathBuf;

/// The arguments of `ringtree bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Name of the collective
    #[arg(value_parser = one_of(Collective::ALL, Collective::name))]
    collective: Collective,
    /// Number of ranks to start [default: 2]; if a launcher has already started the ranks, must
    /// equal their number
    #[arg(short = 'n', long, value_name = "N", value_parser = count(1, WORLD_SIZE_MAX))]
    ranks: Option<usize>,
    /// Transport [default: RINGTREE_TRANSPORT]
    #[arg(long, value_parser = one_of(TRANSPORTS, TransportChoice::name))]
    transport: Option<TransportChoice>,
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "auto"
    )]
    #[arg(help = algorithms("Algorithms: auto, all, or a comma-separated list of names"))]
    #[arg(value_parser = parse_selection)]
    algorithm: Vec<Selection>,
    /// Smallest buffer size in bytes; the suffixes K, M and G are powers of 1024
    #[arg(long, value_name = "BYTES", default_value = "8", value_parser = parse_size)]
    begin: usize,
    /// Largest buffer size in bytes
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = parse_size)]
    end: usize,
    /// Factor between one size and the next
    #[arg(long, default_value = "4", value_parser = count(2, u32::MAX as usize))]
    factor: usize,
    /// Comma-separated buffer sizes in bytes, such as 8,1K,25M; replaces --begin, --end and
    /// --factor
    #[arg(long, value_delimiter = ',', value_parser = parse_size)]
    #[arg(conflicts_with_all = ["begin", "end", "factor"])]
    sizes: Vec<usize>,
    /// Element type
    #[arg(long, default_value = "f32", value_parser = one_of(Dtype::ALL, Dtype::name))]
    dtype: Dtype,
    /// Reduction operator
    #[arg(long, default_value = "sum", value_parser = one_of(ReduceOp::ALL, ReduceOp::name))]
    op: ReduceOp,
    /// Root rank for broadcast, reduce, gather and scatter
    #[arg(long, value_name = "R", default_value = "0", value_parser = count(0, WORLD_SIZE_MAX - 1))]
    root: usize,
    /// Start each rank in its own session, as torchrun, containers and services do
    #[arg(long)]
    sessions: bool,
    /// Number of calls per batch [default: chosen so that each size takes about half a second]
    #[arg(long, value_name = "N", value_parser = count(1, u32::MAX as usize))]
    iters: Option<usize>,
    /// Overwrite the input with the result
    #[arg(long)]
    in_place: bool,
    /// Memory for the buffers
    #[arg(long, default_value = "host")]
    memory: Place,
    /// For each size, print to standard error why the algorithm was chosen and how its predicted
    /// time breaks down
    #[arg(long)]
    explain: bool,
    /// Write a timeline for ui.perfetto.dev to FILE on rank 0's host; for one additional call per
    /// size and algorithm, it shows when each message was sent and when it arrived, both measured
    /// and predicted
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Output format
    #[arg(long, default_value = "table")]
    format: Format,
}

/// The transports that `--transport` accepts.
const TRANSPORTS: &[TransportChoice] = &[
    TransportChoice::Auto,
    TransportChoice::Tcp,
    TransportChoice::Shm,
];

/// The memory that holds the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Place {
    /// Host memory
    Host,
    /// Host memory that the other ranks on the host read in place
    Shared,
    /// The GPU whose index is LOCAL_RANK modulo the number of GPUs; calls are always in place
    Device,
}

/// The measurements that the arguments describe.
struct BenchPlan<'a> {
    arguments: &'a Arguments,
    /// `None` stands for `auto`.
    algorithms: Vec<Option<Algorithm>>,
    sizes_bytes: Vec<usize>,
}

/// Runs `ringtree bench` and returns its exit code.
pub(crate) fn execute(arguments: &Arguments, invocation: Invocation) -> u8 {
    let wanted = match wanted(arguments) {
        Ok(wanted) => wanted,
        Err(problem) => {
            eprintln!("ringtree bench: {problem}");
            return EXIT_USAGE;
        }
    };
    let is_among_ranks = ringtree::launch::is_rank();
    if !is_among_ranks {
        let ranks = arguments.ranks.unwrap_or(2);
        if arguments.root >= ranks {
            eprintln!(
                "ringtree bench: --root {} is out of range: it must be less than --ranks {ranks}",
                arguments.root
            );
            return EXIT_USAGE;
        }
        // Report a missing GPU once instead of on every rank.
        if arguments.memory == Place::Device
            && let Err(error) = gpu::find()
        {
            return refused(&error);
        }
        return match invocation.spawn(ranks, arguments.sessions) {
            Ok(code) => u8::try_from(code).unwrap_or(FAILED),
            Err(error) => refused(&error),
        };
    }
    match run(&wanted) {
        Ok(0) => EXIT_OK,
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
    exit_code(error)
}

fn wanted(arguments: &Arguments) -> Result<BenchPlan<'_>, String> {
    if arguments.trace.is_some() && arguments.memory == Place::Device {
        return Err("--trace does not support --memory device; use --memory host or shared".into());
    }
    // Report an unknown name once instead of on every rank.
    let name = std::env::var("RINGTREE_ALGORITHM").unwrap_or_default();
    let preset = match name.trim() {
        "" | "auto" => None,
        name => Some(
            name.parse()
                .map_err(|error| format!("RINGTREE_ALGORITHM: {error}"))?,
        ),
    };
    let (dtype, op) = (arguments.dtype, arguments.op);
    if !op.supports(dtype) {
        return Err(format!(
            "{op} is not defined for {dtype}; bitwise operators require an integer type"
        ));
    }
    Ok(BenchPlan {
        arguments,
        algorithms: named(arguments.collective, &arguments.algorithm, preset)?,
        sizes_bytes: sizes(arguments)?,
    })
}

/// Returns the algorithms to measure. `auto` stands for `preset` if that algorithm implements the
/// collective, and for `None` otherwise.
fn named(
    collective: Collective,
    names: &[Selection],
    preset: Option<Algorithm>,
) -> Result<Vec<Option<Algorithm>>, String> {
    let preset = preset.filter(|algorithm| required(collective, *algorithm).is_ok());
    let mut named = Vec::new();
    for name in names {
        match *name {
            Selection::Auto => named.push(preset),
            Selection::All => {
                let all = REGISTRY.iter();
                let all = all.filter(|entry| entry.collectives.contains(&collective));
                named.extend(all.map(|entry| Some(entry.algorithm)));
            }
            Selection::One(algorithm) => {
                required(collective, algorithm)?;
                named.push(Some(algorithm));
            }
        }
    }
    Ok(named)
}

fn sizes(arguments: &Arguments) -> Result<Vec<usize>, String> {
    if arguments.collective == Collective::Barrier {
        return Ok(vec![1]);
    }
    if !arguments.sizes.is_empty() {
        return Ok(arguments.sizes.clone());
    }
    let Arguments {
        begin, end, factor, ..
    } = *arguments;
    if begin == 0 || begin > end {
        return Err("--begin must be at least 1 and at most --end".into());
    }
    let next = |size: &usize| size.checked_mul(factor).filter(|size| *size <= end);
    Ok(std::iter::successors(Some(begin), next).collect())
}

/// Connects to the other ranks and runs the measurements. Returns the number of wrong elements.
fn run(wanted: &BenchPlan) -> ringtree::Result<usize> {
    let arguments = wanted.arguments;
    let mut builder = Builder::from_env()?;
    if let Some(transport) = arguments.transport {
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
    let wrong = measure_all(wanted, &comm, &trace)?;
    if let Some(path) = &arguments.trace
        && trace.write(path)?.is_some()
    {
        let path = path.display();
        eprintln!("wrote the timeline to {path}; open it at https://ui.perfetto.dev");
    }
    Ok(wrong)
}

/// Measures all sizes and algorithms. Returns the number of wrong elements.
fn measure_all(wanted: &BenchPlan, comm: &Communicator, trace: &Trace) -> ringtree::Result<usize> {
    let arguments = wanted.arguments;
    let memory = memory(comm, arguments.memory)?;
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
                collective: arguments.collective,
                dtype: arguments.dtype,
                op: arguments.op,
                root: arguments.root,
                bytes: *bytes,
                iterations: arguments.iters,
                in_place: arguments.in_place || arguments.memory == Place::Device,
                memory: memory.clone(),
            };
            if arguments.explain && comm.rank() == 0 {
                eprintln!("{}", measure::explain(comm, &case)?);
            }
            let measurement: Measurement = measure::measure(comm, &case, trace)?;
            total_wrong += measurement.wrong;
            let printed = match comm.rank() {
                0 => report::print(arguments.format, &case, comm, &measurement, is_first),
                _ => Ok(()),
            };
            if !is_read(comm, printed)? {
                return Ok(total_wrong);
            }
            is_first = false;
        }
    }
    Ok(total_wrong)
}

/// Returns `true` on every rank if rank 0's output still has a reader. If the reader has closed the
/// output (`| head`), the measurements end, and this is not an error.
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
    wanted: &BenchPlan,
    algorithm: Option<Algorithm>,
    bytes: usize,
) -> Option<String> {
    let algorithm = algorithm.filter(|_| wanted.algorithms.len() > 1)?;
    let ranks = Topology::apart(comm.world_size());
    let request = Request::new(wanted.arguments.collective, algorithm, &ranks);
    if comm.info().is_reproducible && !is_in_rank_order(&request) {
        return Some(format!(
            "{algorithm} does not reduce in rank order, which RINGTREE_REPRODUCIBLE=1 requires"
        ));
    }
    scratch_bytes(&request, bytes).err().map(String::from)
}

/// Returns the memory to measure. If the memory is on a GPU, attaches the GPU.
fn memory(comm: &Communicator, place: Place) -> ringtree::Result<Memory> {
    Ok(match place {
        Place::Host => Memory::Host,
        Place::Shared => Memory::Shared,
        Place::Device => gpu::memory(comm)?,
    })
}
