//! NCCL beside ringtree, ranks as processes that share one GPU: over sockets, and, where this NCCL
//! can, through memory that the ranks map from each other; with and without MPS.
//!
//! `CONTRIBUTING.md` says how to run it. Without a GPU or NCCL it says so in one line. Criterion
//! drives the measurement: its samples are batches of calls back to back, each the slowest rank's
//! time; the table's time is the median of their means. Results are checked before and after.

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

use arrangement::{Case, Path, RANKS, cases};
use criterion::{BenchmarkId, Criterion, SamplingMode};
use library::Library;
use mps::Mps;
use std::collections::HashSet;
use std::net::TcpListener;
use std::process::ExitCode;
use std::time::Duration;
use table::{Row, Table, Timed, median};
use world::World;

/// Which part a process plays; the one without is the parent of the others.
pub(crate) const ROLE: &str = "RINGTREE_NCCL_ROLE";
/// Where the user wants the CSV.
const CSV: &str = "RINGTREE_NCCL_CSV";
/// Batches a point.
const SAMPLES: usize = 10;
/// A size is left out, and all above it, if one call takes longer.
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

/// What an arrangement gave, and what ended it early.
struct Measured {
    table: Table,
    failure: Option<String>,
}

/// A path, taken with MPS or without.
struct Arrangement<'a> {
    path: Path,
    mps: Option<&'a Mps>,
    library: &'a Library,
    multiprocessors: usize,
    /// A directory in which no daemon of MPS is.
    nowhere: &'a std::path::Path,
}

fn beside(criterion: &mut Criterion) -> Result<Outcome, String> {
    let named = library::named().transpose()?;
    let (multiprocessors, gpu) = match library::find_gpu() {
        Ok(found) => found,
        Err(why) => return Ok(Outcome::Skipped(why)),
    };
    let Some(library) = named.or_else(library::newest) else {
        let setting = library::SETTING;
        return Ok(Outcome::Skipped(format!(
            "no libnccl.so.2 in the loader's path or among python3's packages; if there is one, \
             name it in {setting}"
        )));
    };
    let (version, file) = (library.version, library.file.display());
    println!("nccl: NCCL {version} ({file}), {RANKS} ranks on one GPU ({gpu})");
    let nowhere = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut results = Results::default();
    for with_mps in [false, true] {
        let mps = match with_mps.then(start_mps).transpose() {
            Ok(mps) => mps,
            Err(why) => {
                println!("nccl: with MPS: left out: {why}");
                continue;
            }
        };
        for path in [Path::Sockets, Path::Ipc] {
            let arrangement = Arrangement {
                path,
                mps: mps.as_ref(),
                library: &library,
                multiprocessors,
                nowhere: nowhere.path(),
            };
            match path.refusal(version) {
                Some(why) => println!("nccl: {}: left out: {why}", arrangement.title()),
                None => results.add(&arrangement.title(), arrangement.measure(criterion))?,
            }
        }
    }
    Ok(Outcome::Measured {
        failures: results.failures,
    })
}

/// What has been told so far.
#[derive(Default)]
struct Results {
    csv: String,
    failures: usize,
}

impl Results {
    /// Tells what came of an arrangement.
    fn add(&mut self, title: &str, measured: Result<Measured, String>) -> Result<(), String> {
        let failure = match measured {
            Ok(Measured { table, failure }) => {
                print!("{}", table.text());
                self.csv.push_str(&table.csv());
                self.failures += usize::from(table.wrong() > 0);
                failure
            }
            Err(why) => Some(why),
        };
        if let Some(why) = failure {
            eprintln!("nccl: {title}: {why}");
            self.failures += 1;
        }
        let Some(file) = std::env::var_os(CSV) else {
            return Ok(());
        };
        let csv = [Table::CSV_HEADER, &self.csv].concat();
        std::fs::write(&file, csv).map_err(|error| format!("{CSV}={}: {error}", file.display()))
    }
}

fn start_mps() -> Result<Mps, String> {
    match mps::is_found() {
        true => Mps::start(),
        false => Err("there is no nvidia-cuda-mps-control in the PATH".into()),
    }
}

impl Arrangement<'_> {
    fn title(&self) -> String {
        let with = if self.mps.is_some() {
            "with"
        } else {
            "without"
        };
        format!("{}, {with} MPS", self.path.name())
    }

    fn start_nccl(&self) -> Result<World, String> {
        let pipes = self.mps.map_or(self.nowhere, |mps| &mps.pipes);
        let world = World::start("nccl", |rank| {
            let mut settings = self.path.of_nccl(rank, self.multiprocessors);
            settings.push(self.library.setting());
            settings.push((mps::PIPES.into(), pipes.to_string_lossy().into_owned()));
            settings
        })?;
        match self.mps {
            Some(mps) if !mps.is_used() => Err("NCCL's ranks run without MPS all the same".into()),
            _ => Ok(world),
        }
    }

    fn start_own(&self) -> Result<World, String> {
        let pipes = self.mps.map_or(self.nowhere, |mps| &mps.pipes);
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let rendezvous = free.map_err(|error| error.to_string())?.to_string();
        World::start("ringtree", |rank| {
            let mut settings = self.path.of_ringtree(rank, &rendezvous);
            settings.push((mps::PIPES.into(), pipes.to_string_lossy().into_owned()));
            settings
        })
    }

    /// All cases, both libraries in turns, until one fails.
    fn measure(&self, criterion: &mut Criterion) -> Result<Measured, String> {
        let mut nccl = Side::new("NCCL", self.start_nccl()?);
        let mut own = Side::new("ringtree", self.start_own()?);
        let mut measured = Measured {
            table: Table {
                title: self.title(),
                nccl: format!("NCCL {}", self.library.version),
                ringtree: own::offer(self.path).to_owned(),
                rows: Vec::new(),
            },
            failure: None,
        };
        for case in cases() {
            let name = format!("{} over {}", case.collective, self.title());
            let both = nccl.measure(criterion, &name, case);
            let both = both.and_then(|nccl| Ok((nccl, own.measure(criterion, &name, case)?)));
            match both {
                Ok((None, None)) => {}
                Ok((nccl, ringtree)) => measured.table.rows.push(Row {
                    case,
                    nccl,
                    ringtree,
                }),
                Err(why) => {
                    let Case { collective, bytes } = case;
                    measured.failure = Some(format!("{collective} of {bytes} B: {why}"));
                    break;
                }
            }
        }
        Ok(measured)
    }
}

/// A library's ranks, and what of them was found too slow.
struct Side {
    name: &'static str,
    world: World,
    slow: HashSet<String>,
}

impl Side {
    fn new(name: &'static str, world: World) -> Self {
        let slow = HashSet::new();
        Self { name, world, slow }
    }

    /// Measures one case, unless it is not wanted or takes too long.
    fn measure(
        &mut self,
        criterion: &mut Criterion,
        group: &str,
        case: Case,
    ) -> Result<Option<Timed>, String> {
        let collective = case.collective.to_string();
        if self.slow.contains(&collective) {
            return Ok(None);
        }
        let world = &mut self.world;
        let mut wrong = world.prepare(case)?;
        let once = world.batch(1)?;
        if once > CALL_MAX {
            let Case { bytes, .. } = case;
            println!(
                "{group}: {} from {bytes} B on left out: {once:.1?} a call",
                self.name
            );
            self.slow.insert(collective);
            return Ok(None);
        }
        let means = sample(criterion, group, self.name, case, world);
        wrong += world.check()?;
        Ok(median(means).map(|time_s| Timed { time_s, wrong }))
    }
}

/// Seconds a call of each batch that criterion asked for; none if this point is not wanted.
fn sample(
    criterion: &mut Criterion,
    group: &str,
    name: &str,
    case: Case,
    world: &mut World,
) -> Vec<f64> {
    let mut means = Vec::new();
    let mut group = criterion.benchmark_group(group);
    group.sampling_mode(SamplingMode::Flat);
    group.bench_function(BenchmarkId::new(name, case.bytes), |bencher| {
        bencher.iter_custom(|calls| {
            let elapsed = world.batch(calls).unwrap_or_else(|why| {
                // Criterion knows no failures. The ranks go when this process does.
                eprintln!("nccl: {name}: {why}");
                std::process::exit(1);
            });
            means.push(elapsed.as_secs_f64() / calls as f64);
            elapsed
        });
    });
    group.finish();
    // Before them came those of warming up.
    means.split_off(means.len().saturating_sub(SAMPLES))
}
