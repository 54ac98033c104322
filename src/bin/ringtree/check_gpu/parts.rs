//! The check, part by part, within its time.

use super::benchmarks::{self, Measured};
use super::group::{Fate, Job, Outcome, run};
use super::report::{Format, Table};
use super::{Arguments, Section, latency, machine};
use crate::bench::report::COLUMNS;
use std::time::{Duration, Instant};

/// No part takes more seconds, unless something hangs.
pub(super) const PATIENCE_S: u64 = 90;
/// Kept of the whole time, so that whoever ends this process then finds it ended.
const CLOSING: Duration = Duration::from_secs(20);
/// How long a call may take where nothing is wrong.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long one may take in which a rank stands still.
const STOPPED_TIMEOUT: Duration = Duration::from_secs(3);
/// Ranks of which one is killed or stopped.
const MORTALS: usize = 3;

/// A collective that is measured, and how it travels.
struct Speed {
    /// Of the table.
    name: &'static str,
    what: &'static str,
    part: &'static str,
    transport: &'static str,
    hand_over: &'static str,
}

impl Speed {
    const fn new(
        [name, what]: [&'static str; 2],
        part: &'static str,
        [transport, hand_over]: [&'static str; 2],
    ) -> Self {
        Self {
            name,
            what,
            part,
            transport,
            hand_over,
        }
    }
}

/// The table that a goal is about.
const REGISTERED: &str = "all_reduce_registered";

const SPEEDS: [Speed; 5] = [
    Speed::new(
        ["all_reduce_ipc", "all-reduce, IPC"],
        "all-reduce",
        ["shm", "hosts"],
    ),
    Speed::new(
        ["all_reduce_ipc_streams", "all-reduce, IPC by streams"],
        "all-reduce",
        ["shm", "streams"],
    ),
    Speed::new(
        [REGISTERED, "all-reduce, IPC, registered"],
        "all-reduce-registered",
        ["shm", "hosts"],
    ),
    Speed::new(
        [
            "all_reduce_registered_streams",
            "all-reduce, IPC by streams, registered",
        ],
        "all-reduce-registered",
        ["shm", "streams"],
    ),
    Speed::new(
        ["all_reduce_tcp", "all-reduce, TCP"],
        "all-reduce",
        ["tcp", "hosts"],
    ),
];

/// What a section does.
type Act<T> = fn(&mut T);

/// A check under way.
pub(super) struct Check<'a> {
    arguments: &'a Arguments,
    format: Format,
    end: Instant,
    /// Of the time left, what is not for the part that is next.
    reserved: Duration,
    parts: Table,
    failures: Table,
    measured: Measured,
}

impl<'a> Check<'a> {
    pub(super) fn new(arguments: &'a Arguments, format: Format, start: Instant) -> Self {
        let table = |name, columns| Table {
            name,
            columns,
            rows: Vec::new(),
        };
        let time = Duration::from_secs(60 * arguments.minutes);
        Self {
            arguments,
            format,
            end: start + time - CLOSING,
            reserved: Duration::ZERO,
            parts: table("checks", &["part", "ranks", "checked", "wrong", "seconds"]),
            failures: table("failures", &["failure"]),
            measured: Measured::default(),
        }
    }

    /// All that was asked for, the fast and the telling first.
    pub(super) fn all(&mut self) {
        // Written also if nothing fails: an old one would mislead.
        self.file(&self.failures.clone());
        let sections: [(Section, Act<Self>); 6] = [
            (Section::Probe, Self::probe),
            (Section::Kernels, |check| {
                check.part("kernels", check.job("kernels", 1));
            }),
            (Section::Sanitizer, Self::sanitize),
            (Section::Ends, Self::end_badly),
            (Section::Collectives, Self::collectives),
            (Section::Speed, Self::measure),
        ];
        for (section, check) in sections {
            if self.arguments.has(section) {
                check(self);
            }
        }
    }

    /// Says how it ended; how many failures there were.
    pub(super) fn conclude(self) -> usize {
        self.parts.print(self.format);
        let failures = self.failures.rows.len();
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
            (1, _) => self.note(&format!("1 failure on {device}")),
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
        let bytes_max = self.arguments.bytes_max().to_string();
        arguments.extend(["--bytes-max".into(), bytes_max]);
        Job {
            arguments,
            ranks,
            transport: "shm",
            hand_over: "hosts",
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
        let left = self.end.saturating_duration_since(Instant::now());
        left.saturating_sub(self.reserved)
    }

    /// Why something is not begun.
    fn over(&self) -> String {
        match self.arguments.minutes {
            1 => "as its share of the minute was over".into(),
            minutes => format!("as its share of the {minutes} minutes was over"),
        }
    }

    /// Leaves the next part one of `parts` equal shares of the time.
    fn share(&mut self, parts: u32) {
        self.reserved = Duration::ZERO;
        let left = self.left();
        self.reserved = left - left / parts;
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
        let patience = Duration::from_secs(self.arguments.patience).min(self.left());
        if patience.is_zero() {
            self.fail(&format!("{name}: not begun, {}", self.over()));
            return Outcome::default();
        }
        let outcome = run(job, patience);
        for found in &outcome.found {
            self.fail(&format!("{name}: {found}"));
        }
        let seconds = start.elapsed().as_secs_f64();
        self.parts.rows.push(vec![
            what.into(),
            ranks.to_string(),
            outcome.checked.to_string(),
            outcome.found.len().to_string(),
            format!("{seconds:.1}"),
        ]);
        self.file(&self.parts.clone());
        outcome
    }

    /// Says at once what is wrong: whoever waits for this process may not wait for its end.
    fn fail(&mut self, what: &str) {
        eprintln!("ringtree check-gpu: FAILED: {what}");
        self.failures.rows.push(vec![what.to_owned()]);
        self.file(&self.failures.clone());
    }

    /// Prints a table and writes its file.
    fn show(&mut self, table: &Table) {
        table.print(self.format);
        self.file(table);
    }

    fn file(&mut self, table: &Table) {
        if let Some(folder) = &self.arguments.out
            && let Err(why) = table.write(folder)
            && self.failures.rows.iter().all(|row| row[0] != why)
        {
            eprintln!("ringtree check-gpu: FAILED: {why}");
            self.failures.rows.push(vec![why]);
        }
    }

    fn probe(&mut self) {
        let outcome = self.part("probe", self.job("probe", 2));
        let mut rows = outcome.rows;
        if !self.arguments.fake {
            rows.extend(machine::facts());
        }
        self.measured.probe.clone_from(&rows);
        self.show(&Table {
            name: "probe",
            columns: &["what", "value", "unit"],
            rows,
        });
        let outcome = self.part("latency of 8 B", self.job("latency", 2));
        self.measured.latency.clone_from(&outcome.rows);
        self.show(&Table {
            name: "latency",
            columns: latency::COLUMNS,
            rows: outcome.rows,
        });
    }

    /// The kernels under compute-sanitizer. Of calls that the driver refuses it is not to tell:
    /// asking an event that is not done yet is such a call.
    fn sanitize(&mut self) {
        let Some(tool) = machine::sanitizer() else {
            self.note("compute-sanitizer is not here: the kernels were not run under it");
            return;
        };
        let mut job = self.job("few-kernels", 1);
        job.runner = [
            &*tool,
            "--error-exitcode",
            "99",
            "--report-api-errors",
            "no",
        ]
        .map(str::to_owned)
        .to_vec();
        let outcome = self.part("kernels under compute-sanitizer", job);
        let is_wrong = !outcome.found.is_empty();
        let rows: Vec<_> = outcome.unheard.into_iter().map(|line| vec![line]).collect();
        let table = Table {
            name: "sanitizer",
            columns: &["compute-sanitizer said"],
            rows,
        };
        match is_wrong {
            true => self.show(&table),
            false => self.file(&table),
        }
    }

    /// Ranks are killed, or stand still, while others' streams wait for them.
    fn end_badly(&mut self) {
        for (way, transport, hand_over) in [
            ("IPC", "shm", "hosts"),
            ("IPC by streams", "shm", "streams"),
            ("TCP", "tcp", "hosts"),
        ] {
            for (part, what, fate) in [
                ("killed", "a rank is killed", Fate::Kill),
                ("stopped", "a rank stands still", Fate::Stop),
            ] {
                let mut job = self.job(part, MORTALS);
                job.transport = transport;
                job.hand_over = hand_over;
                job.fate = Some(fate);
                if fate == Fate::Stop {
                    job.timeout = STOPPED_TIMEOUT;
                }
                self.part(&format!("{what}, {way}"), job);
            }
        }
    }

    /// In as much time as leaves enough for the speeds.
    fn collectives(&mut self) {
        if self.arguments.has(Section::Speed) {
            self.reserved = Duration::from_secs(60 * self.arguments.minutes / 4);
        }
        for ranks in 2..=self.arguments.ranks_max {
            if self.left().is_zero() {
                self.fail(&format!(
                    "collectives of {ranks} ranks and more: not begun, {}",
                    self.over()
                ));
                break;
            }
            for (nth, (what, transport, hand_over)) in [
                ("collectives, threads", None, "hosts"),
                ("collectives, processes, IPC", Some("shm"), "hosts"),
                (
                    "collectives, processes, IPC by streams",
                    Some("shm"),
                    "streams",
                ),
                ("collectives, processes, TCP", Some("tcp"), "hosts"),
            ]
            .into_iter()
            .enumerate()
            {
                let mut job = match transport {
                    Some(_) => self.job("cases", ranks),
                    None => self.job("threads", 1),
                };
                job.transport = transport.unwrap_or("auto");
                job.hand_over = hand_over;
                let numbers = [("--turn", ranks + nth), ("--ranks-max", ranks)];
                let numbers = numbers.map(|(name, number)| [name.into(), number.to_string()]);
                job.arguments.extend(numbers.into_iter().flatten());
                self.ranked(what, ranks, &job);
            }
        }
        self.reserved = Duration::ZERO;
    }

    fn measure(&mut self) {
        self.share(6);
        let outcome = self.part("speed of folds", self.job("folds", 1));
        self.measured.folds.clone_from(&outcome.rows);
        self.show(&benchmarks::folds(&outcome.rows));
        for (nth, speed) in SPEEDS.iter().enumerate() {
            let mut job = self.job(speed.part, 2);
            (job.transport, job.hand_over) = (speed.transport, speed.hand_over);
            // Fewer of them than 2^32.
            self.share((SPEEDS.len() - nth) as u32);
            let outcome = self.part(&format!("speed of {}", speed.what), job);
            if speed.name == REGISTERED {
                self.measured.registered.clone_from(&outcome.rows);
            }
            self.show(&Table {
                name: speed.name,
                columns: COLUMNS,
                rows: outcome.rows,
            });
        }
        self.show(&benchmarks::goals(&self.measured));
    }
}
