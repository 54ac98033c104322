//! The check, part by part, within its time.

use super::Arguments;
use super::benchmarks;
use super::group::{Fate, Job, Outcome, run};
use super::machine;
use super::report::{Format, Table};
use std::time::{Duration, Instant};

/// No part takes longer, unless something hangs.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a call may take where nothing is wrong.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long one may take in which a rank stands still.
const STOPPED_TIMEOUT: Duration = Duration::from_secs(3);
/// Ranks of which one is killed or stopped.
const MORTALS: usize = 3;

/// A check under way.
pub(super) struct Check<'a> {
    arguments: &'a Arguments,
    format: Format,
    end: Instant,
    parts: Table,
    failures: Vec<String>,
    probed: Vec<Vec<String>>,
}

impl<'a> Check<'a> {
    pub(super) fn new(arguments: &'a Arguments, format: Format) -> Self {
        Self {
            arguments,
            format,
            end: Instant::now() + Duration::from_secs(60 * arguments.minutes),
            parts: Table {
                name: "checks",
                columns: &["part", "ranks", "checked", "wrong", "seconds"],
                rows: Vec::new(),
            },
            failures: Vec::new(),
            probed: Vec::new(),
        }
    }

    /// All of it, the fast and the telling first.
    pub(super) fn all(&mut self) {
        let arguments = self.arguments;
        self.probe();
        self.part("kernels", self.job("kernels", 1));
        for (way, transport) in [("IPC", "shm"), ("TCP", "tcp")] {
            for (part, what, fate) in [
                ("killed", "a rank is killed", Fate::Kill),
                ("stopped", "a rank stands still", Fate::Stop),
            ] {
                let mut job = self.job(part, MORTALS);
                job.transport = transport;
                job.fate = Some(fate);
                if fate == Fate::Stop {
                    job.timeout = STOPPED_TIMEOUT;
                }
                self.part(&format!("{what}, {way}"), job);
            }
        }
        for ranks in 2..=arguments.ranks_max {
            for (nth, (what, transport)) in [
                ("collectives, threads", None),
                ("collectives, processes, IPC", Some("shm")),
                ("collectives, processes, TCP", Some("tcp")),
            ]
            .into_iter()
            .enumerate()
            {
                let mut job = match transport {
                    Some(_) => self.job("cases", ranks),
                    None => self.job("threads", 1),
                };
                job.transport = transport.unwrap_or("auto");
                let numbers = [("--turn", ranks + nth), ("--ranks-max", ranks)];
                let numbers = numbers.map(|(name, number)| [name.into(), number.to_string()]);
                job.arguments.extend(numbers.into_iter().flatten());
                self.ranked(what, ranks, &job);
            }
        }
        if !arguments.fake {
            self.sanitize();
            self.measure();
        }
    }

    /// Says how it ended; how many failures there were.
    pub(super) fn conclude(mut self) -> usize {
        let parts = self.parts.clone();
        self.show(&parts);
        for failure in &self.failures {
            eprintln!("ringtree check-gpu: FAILED: {failure}");
        }
        let failures = self.failures.len();
        let device = if self.arguments.fake {
            "the fake device"
        } else {
            "the GPU"
        };
        match (failures, self.arguments.plant) {
            (0, None) => self.note(&format!("all is well on {device}")),
            (0, Some(plant)) => {
                eprintln!(
                    "ringtree check-gpu: {} was planted, and nothing was found",
                    plant.name()
                );
            }
            _ => self.note(&format!("{failures} failures on {device}")),
        }
        failures
    }

    fn job(&self, part: &str, ranks: usize) -> Job {
        let mut arguments = vec!["check-gpu".to_owned(), "--part".into(), part.into()];
        if self.arguments.fake {
            arguments.push("--fake".into());
        }
        if let Some(plant) = self.arguments.plant {
            arguments.extend(["--plant".into(), plant.name().into()]);
        }
        Job {
            arguments,
            ranks,
            transport: "shm",
            timeout: TIMEOUT,
            fate: None,
            runner: Vec::new(),
        }
    }

    /// Says a line that belongs to no table.
    fn note(&self, line: &str) {
        match self.format {
            Format::Table => println!("{line}"),
            Format::Csv => eprintln!("ringtree check-gpu: {line}"),
        }
    }

    fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    fn part(&mut self, what: &str, job: Job) -> Outcome {
        let ranks = job.ranks;
        self.ranked(what, ranks, &job)
    }

    /// Runs a part and takes down what came of it.
    fn ranked(&mut self, what: &str, ranks: usize, job: &Job) -> Outcome {
        let name = match ranks {
            1 => what.to_owned(),
            _ => format!("{what}, {ranks} ranks"),
        };
        let start = Instant::now();
        let patience = PATIENCE.min(self.left());
        if patience.is_zero() {
            let minutes = self.arguments.minutes;
            self.failures.push(format!(
                "{name}: not begun when the {minutes} minutes were over"
            ));
            return Outcome::default();
        }
        let outcome = run(job, patience);
        let found = outcome.found.iter().map(|found| format!("{name}: {found}"));
        self.failures.extend(found);
        let seconds = start.elapsed().as_secs_f64();
        self.parts.rows.push(vec![
            what.into(),
            ranks.to_string(),
            outcome.checked.to_string(),
            outcome.found.len().to_string(),
            format!("{seconds:.1}"),
        ]);
        outcome
    }

    /// Prints a table and writes its file.
    fn show(&mut self, table: &Table) {
        table.print(self.format);
        self.file(table);
    }

    fn file(&mut self, table: &Table) {
        if let Some(folder) = &self.arguments.out
            && let Err(why) = table.write(folder)
        {
            self.failures.push(why);
        }
    }

    fn probe(&mut self) {
        let outcome = self.part("probe", self.job("probe", 2));
        let mut rows = outcome.rows;
        if !self.arguments.fake {
            rows.extend(machine::facts());
        }
        self.probed.clone_from(&rows);
        self.show(&Table {
            name: "probe",
            columns: &["what", "value", "unit"],
            rows,
        });
    }

    /// The kernels under compute-sanitizer.
    fn sanitize(&mut self) {
        let Some(tool) = machine::sanitizer() else {
            self.note("compute-sanitizer is not here: the kernels were not run under it");
            return;
        };
        let mut job = self.job("few-kernels", 1);
        job.runner = [&*tool, "--error-exitcode", "99"]
            .map(str::to_owned)
            .to_vec();
        self.part("kernels under compute-sanitizer", job);
    }

    fn measure(&mut self) {
        if self.left() < benchmarks::SECONDS_MIN {
            let minutes = self.arguments.minutes;
            let why = format!("speeds: not measured when the {minutes} minutes were over");
            self.failures.push(why);
            return;
        }
        let outcome = self.part("folds", self.job("folds", 1));
        self.show(&benchmarks::folds(&outcome.rows));
        let mut by_ipc = Vec::new();
        for (name, transport) in [("all_reduce_ipc", "cuda"), ("all_reduce_tcp", "tcp")] {
            match benchmarks::all_reduce(name, transport, self.left()) {
                Ok(table) => {
                    self.show(&table);
                    if transport == "cuda" {
                        by_ipc = table.rows;
                    }
                }
                Err(why) => self.failures.push(format!("{name}: {why}")),
            }
        }
        self.show(&benchmarks::goals(&self.probed, &outcome.rows, &by_ipc));
    }
}
