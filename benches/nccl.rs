//! Compares ringtree with NCCL over sockets and through mapped GPU memory.
//!
//! Ranks are processes. If there are enough GPUs, each rank has its own. In a second arrangement,
//! the ranks share one GPU under MPS. Criterion's samples are batches of back-to-back calls, timed
//! on the slowest rank. The table shows the median over the batches of the mean time per call.
//! Results are checked before and after the batches.
//!
//! `benches/nccl/README.md` explains how to run the benchmark. Without a GPU or NCCL, the benchmark
//! prints a message and exits.

#[path = "nccl/arrangement.rs"]
mod arrangement;
#[path = "nccl/library.rs"]
mod library;
#[path = "nccl/mps.rs"]
mod mps;
#[path = "nccl/nccl.rs"]
mod nccl;
#[path = "nccl/own.rs"]
mod own;
#[path = "nccl/rank.rs"]
mod rank;
#[path = "nccl/table.rs"]
mod table;
#[path = "nccl/world.rs"]
mod world;

use arrangement::{Case, Gpus, Path, RANKS, Version, cases};
use criterion::{BenchmarkId, Criterion, SamplingMode};
use library::Library;
use mps::Mps;
use std::collections::HashSet;
use std::net::TcpListener;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use table::{Row, Table, Timed, median};
use world::World;

/// Environment variable with the role of a process. The parent process has no role.
pub(crate) const ROLE: &str = "RINGTREE_NCCL_ROLE";
/// Environment variable with the path of the CSV file.
const CSV: &str = "RINGTREE_NCCL_CSV";
/// Environment variable with the time limit in minutes. The default is [`MINUTES_DEFAULT`].
const MINUTES: &str = "RINGTREE_NCCL_MINUTES";
/// Default time limit in minutes, for machines that are lent for ten minutes.
const MINUTES_DEFAULT: u64 = 9;
/// Number of batches per case.
const SAMPLES: usize = 10;
/// Environment variable with NCCL's log level.
const DEBUG: &str = "NCCL_DEBUG";
/// Time that is reported to Criterion for a failed call.
const STAND_IN: Duration = Duration::from_millis(20);
/// If one call takes longer, this size and all larger ones are skipped.
const CALL_MAX: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(ROLE) {
        return rank::play(&role);
    }
    let mut criterion = Criterion::default()
        .sample_size(SAMPLES)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600))
        .without_plots()
        .configure_from_args();
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("nccl: without --bench, each point is a single call, whose time means little");
    }
    match beside(&mut criterion) {
        Ok(Outcome::Skipped(why)) => {
            eprintln!("nccl: skipped: {why}");
            ExitCode::SUCCESS
        }
        Ok(Outcome::Measured { failures: 0 }) => {
            criterion.final_summary();
            ExitCode::SUCCESS
        }
        Ok(Outcome::Measured { failures }) => {
            eprintln!("nccl: {failures} of the above failed or gave wrong results");
            ExitCode::FAILURE
        }
        Err(why) => {
            eprintln!("nccl: {why}");
            ExitCode::FAILURE
        }
    }
}

enum Outcome {
    Skipped(String),
    Measured { failures: usize },
}

/// A path between the ranks, and the assignment of ranks to GPUs.
struct Arrangement<'a> {
    path: Path,
    gpus: Gpus,
    /// The MPS daemon if ranks share a GPU.
    mps: Option<Mps>,
    library: &'a Library,
    multiprocessors: usize,
    /// A directory in which clients do not find an MPS daemon.
    nowhere: &'a std::path::Path,
}

fn beside(criterion: &mut Criterion) -> Result<Outcome, String> {
    let named = library::named().transpose()?;
    let end = Instant::now() + minutes()?;
    let found = match library::find_gpu()? {
        Ok(found) => found,
        Err(why) => return Ok(Outcome::Skipped(why)),
    };
    let Some(library) = named.or_else(library::newest) else {
        let setting = library::SETTING;
        return Ok(Outcome::Skipped(format!(
            "no libnccl.so.2 in the loader's path or among python3's packages; set \
             {setting} to the path of one"
        )));
    };
    let (version, file) = (library.version, library.file.display());
    let (count, name) = (found.count, &found.name);
    println!("nccl: NCCL {version} ({file}), {RANKS} ranks; GPUs: {count}, the first: {name}");
    let ways = possible_ways(count, version);
    if ways.is_empty() {
        return Ok(Outcome::Skipped(format!(
            "fewer GPUs than {RANKS} ranks, and no nvidia-cuda-mps-control in the PATH; without \
             MPS, ranks take turns on a GPU, and their times mean little"
        )));
    }
    let nowhere = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut results = Results::default();
    for (nth, (gpus, path)) in ways.iter().copied().enumerate() {
        // Start a new daemon for each arrangement, because a client that fails affects the others.
        let mps = match (gpus == Gpus::Shared).then(Mps::start).transpose() {
            Ok(mps) => mps,
            Err(why) => {
                println!("nccl: {}: skipped: {why}", title(path, gpus));
                continue;
            }
        };
        let arrangement = Arrangement {
            path,
            gpus,
            mps,
            library: &library,
            multiprocessors: found.multiprocessors,
            nowhere: nowhere.path(),
        };
        // Divide the remaining time among the remaining arrangements.
        let left = end.saturating_duration_since(Instant::now());
        let share = left / (ways.len() - nth) as u32;
        arrangement.measure(criterion, Instant::now() + share, &mut results)?;
    }
    Ok(Outcome::Measured {
        failures: results.failures,
    })
}

/// Returns the possible arrangements. For each of the others, prints why it is impossible.
fn possible_ways(gpu_count: usize, version: Version) -> Vec<(Gpus, Path)> {
    let ways = [Gpus::Each, Gpus::Shared];
    let ways = ways.map(|gpus| [Path::Sockets, Path::Ipc].map(|path| (gpus, path)));
    let is_possible = |(gpus, path): &(Gpus, Path)| {
        let missing = match gpus {
            Gpus::Each if gpu_count < RANKS => Some("fewer GPUs than ranks"),
            Gpus::Shared if !mps::is_found() => Some("no nvidia-cuda-mps-control in the PATH"),
            _ => None,
        };
        let missing = missing.map(str::to_owned);
        let refusal = missing.or_else(|| path.refusal(*gpus, version));
        if let Some(why) = &refusal {
            println!("nccl: {}: skipped: {why}", title(*path, *gpus));
        }
        refusal.is_none()
    };
    ways.into_iter().flatten().filter(is_possible).collect()
}

/// Returns the time limit.
fn minutes() -> Result<Duration, String> {
    let minutes = match std::env::var(MINUTES) {
        Err(_) => MINUTES_DEFAULT,
        Ok(text) => {
            let minutes = text
                .parse()
                .ok()
                .filter(|minutes| (1..=600).contains(minutes));
            minutes.ok_or_else(|| format!("{MINUTES}={text} is out of range: use 1 to 600"))?
        }
    };
    Ok(Duration::from_secs(60 * minutes))
}

fn title(path: Path, gpus: Gpus) -> String {
    format!("{}, {}", path.name(), gpus.name())
}

/// The results reported so far.
#[derive(Default)]
struct Results {
    csv: String,
    failures: usize,
}

impl Results {
    /// Prints the results and the failures of a finished arrangement.
    fn add(&mut self, table: &Table, failures: &[String]) {
        print!("{}", table.text());
        self.csv.push_str(&table.csv());
        self.failures += failures.len() + usize::from(table.wrong() > 0);
        for why in failures {
            eprintln!("nccl: {}: {why}", table.title);
        }
    }

    /// Writes all rows so far, including those of the unfinished `table`.
    fn write(&self, table: &Table) -> Result<(), String> {
        let Some(file) = std::env::var_os(CSV) else {
            return Ok(());
        };
        let csv = [Table::CSV_HEADER, &self.csv, &table.csv()].concat();
        std::fs::write(&file, csv).map_err(|error| format!("{CSV}={}: {error}", file.display()))
    }
}

impl Arrangement<'_> {
    fn title(&self) -> String {
        title(self.path, self.gpus)
    }

    /// Returns the variables that both libraries' ranks need: the MPS directory and the GPU.
    fn of_rank(&self, rank: usize) -> [(String, String); 2] {
        let pipes = self.mps.as_ref().map_or(self.nowhere, |mps| &mps.pipes);
        let gpu = self.gpus.of_rank(rank).to_string();
        [
            (mps::PIPES.into(), pipes.to_string_lossy().into_owned()),
            (rank::GPU.into(), gpu),
        ]
    }

    fn start_nccl(&self) -> Result<World, String> {
        let world = World::start("nccl", |rank| {
            let mut settings = self.path.of_nccl(self.gpus, rank, self.multiprocessors);
            settings.push(self.library.setting());
            settings.extend(self.of_rank(rank));
            if std::env::var_os(DEBUG).is_none() {
                settings.push((DEBUG.into(), "WARN".into()));
            }
            settings
        })?;
        match &self.mps {
            Some(mps) if !mps.is_used() => Err("NCCL's ranks do not use MPS".into()),
            _ => Ok(world),
        }
    }

    fn start_own(&self) -> Result<World, String> {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let rendezvous = free.map_err(|error| error.to_string())?.to_string();
        World::start("ringtree", |rank| {
            let mut settings = self.path.of_ringtree(rank, &rendezvous);
            settings.extend(self.of_rank(rank));
            settings
        })
    }

    /// Measures all cases, alternating between the libraries, until both fail or time is up.
    fn measure(
        &self,
        criterion: &mut Criterion,
        end: Instant,
        results: &mut Results,
    ) -> Result<(), String> {
        let mut nccl = Side::new("NCCL", self.start_nccl());
        let mut own = Side::new("ringtree", self.start_own());
        let title = self.title();
        let mut table = Table {
            path: self.path,
            gpus: self.gpus,
            title: title.clone(),
            nccl: format!("NCCL {}", self.library.version),
            ringtree: own.world.as_ref().map_or_else(
                |_| "ringtree".into(),
                |world| format!("ringtree, {}", world.path),
            ),
            rows: Vec::new(),
        };
        for case in cases() {
            let Case { collective, bytes } = case;
            if Instant::now() > end {
                println!("nccl: {title}: skipped from {collective} of {bytes} B on: time is up");
                break;
            }
            let name = format!("{collective} over {title}");
            let nccl = nccl.measure(criterion, &name, case);
            let ringtree = own.measure(criterion, &name, case);
            if nccl.is_some() || ringtree.is_some() {
                let row = Row {
                    case,
                    nccl,
                    ringtree,
                };
                table.rows.push(row);
                results.write(&table)?;
            }
        }
        let failures: Vec<_> = [nccl, own].into_iter().filter_map(Side::failure).collect();
        results.add(&table, &failures);
        Ok(())
    }
}

/// The ranks of one library, or the failure that ended them, and the collectives for which larger
/// sizes are too slow.
struct Side {
    name: &'static str,
    world: Result<World, String>,
    slow: HashSet<String>,
}

impl Side {
    fn new(name: &'static str, world: Result<World, String>) -> Self {
        let slow = HashSet::new();
        Self { name, world, slow }
    }

    /// Returns the failure that ended the ranks early, if any.
    fn failure(self) -> Option<String> {
        self.world.err()
    }

    /// Measures one case. Returns `None` if it is not selected, is too slow or fails.
    fn measure(&mut self, criterion: &mut Criterion, group: &str, case: Case) -> Option<Timed> {
        let timed = self.try_measure(criterion, group, case);
        timed.unwrap_or_else(|why| {
            let Case { collective, bytes } = case;
            self.world = Err(format!("{collective} of {bytes} B: {why}"));
            None
        })
    }

    fn try_measure(
        &mut self,
        criterion: &mut Criterion,
        group: &str,
        case: Case,
    ) -> Result<Option<Timed>, String> {
        let collective = case.collective.to_string();
        let Ok(world) = &mut self.world else {
            return Ok(None);
        };
        if self.slow.contains(&collective) {
            return Ok(None);
        }
        let mut wrong = world.prepare(case)?;
        let once = world.batch(1)?;
        let means = match once > CALL_MAX {
            true => {
                let Case { bytes, .. } = case;
                println!(
                    "{group}: {} skipped from {bytes} B on: {once:.1?} per call",
                    self.name
                );
                self.slow.insert(collective);
                Vec::new()
            }
            false => sample(criterion, group, self.name, case, world)?,
        };
        wrong += world.check()?;
        match median(means) {
            Some(time_s) => Ok(Some(Timed { time_s, wrong })),
            None if wrong > 0 => Err(format!("{wrong} elements are wrong")),
            None => Ok(None),
        }
    }
}

/// Returns the mean time per call of each batch, in seconds. The list is empty if Criterion's
/// filter does not select the case.
fn sample(
    criterion: &mut Criterion,
    group: &str,
    name: &str,
    case: Case,
    world: &mut World,
) -> Result<Vec<f64>, String> {
    let mut means = Vec::new();
    let mut failure = None;
    let mut group = criterion.benchmark_group(group);
    group.sampling_mode(SamplingMode::Flat);
    group.bench_function(BenchmarkId::new(name, case.bytes), |bencher| {
        bencher.iter_custom(|calls| {
            let calls = calls.max(1);
            let elapsed = match failure {
                None => world.batch(calls),
                Some(_) => Err(String::new()),
            };
            elapsed
                .inspect(|elapsed| means.push(elapsed.as_secs_f64() / calls as f64))
                .unwrap_or_else(|why| {
                    failure.get_or_insert(why);
                    // Criterion cannot report a failure. It needs a time, and that much time must
                    // really pass.
                    std::thread::sleep(STAND_IN);
                    STAND_IN * u32::try_from(calls).unwrap_or(u32::MAX)
                })
        });
    });
    group.finish();
    if let Some(why) = failure {
        return Err(why);
    }
    // Skip the first batches, which are Criterion's warm-up.
    Ok(means.split_off(means.len().saturating_sub(SAMPLES)))
}
