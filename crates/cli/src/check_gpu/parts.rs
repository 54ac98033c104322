//! The check, part by part, within its time.

use super::group::{Fate, Job, Outcome, Path, run};
use super::report::{Format, Table};
use super::{Arguments, Section, habits, machine, speeds};
use crate::Invocation;
use std::time::{Duration, Instant};

/// No part takes more seconds, unless something hangs.
pub(super) const PATIENCE_S: u64 = 90;
/// Kept of the whole time, so that the part has ended before this process is ended.
const CLOSING: Duration = Duration::from_secs(20);
/// How long a call may take where nothing is wrong.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long one may take in which a rank stands still.
const STOPPED_TIMEOUT: Duration = Duration::from_secs(3);
/// Ranks of which one is killed or stopped.
const MORTALS: usize = 3;
/// Ranks of the litmus: odd, and in one case so many that most GPUs of a host take part.
const LITMUS_RANKS: [usize; 2] = [3, 7];
/// The mapped path, where it can be had; elsewhere the ranks say why not.
const MAPPED: Path = path("mapped", "auto", "auto");
/// The ways that device buffers go.
const PATHS: [Path; 3] = [
    MAPPED,
    path("staged over shm", "shm", "staged"),
    path("staged over tcp", "tcp", "staged"),
];

const fn path(name: &'static str, transport: &'static str, device_path: &'static str) -> Path {
    Path {
        name,
        transport,
        device_path,
    }
}

/// What a section does.
type Act<T> = fn(&mut T);

/// A check under way.
pub(super) struct Check<'a> {
    arguments: &'a Arguments,
    invocation: &'a Invocation,
    format: Format,
    end: Instant,
    /// The fewest ranks that were found not to map each other's memory.
    unmapped_ranks: usize,
    parts: Table,
    failures: Table,
}

impl<'a> Check<'a> {
    pub(super) fn new(
        arguments: &'a Arguments,
        invocation: &'a Invocation,
        format: Format,
        start: Instant,
    ) -> Self {
        let table = |name: &str, columns| Table {
            name: name.into(),
            columns,
            rows: Vec::new(),
        };
        let time = Duration::from_secs(60 * arguments.minutes);
        Self {
            arguments,
            invocation,
            format,
            end: start + time - CLOSING,
            unmapped_ranks: usize::MAX,
            parts: table("checks", &["part", "ranks", "checked", "wrong", "seconds"]),
            failures: table("failures", &["failure"]),
        }
    }

    /// All that was asked for, the fast and the telling first.
    pub(super) fn all(&mut self) {
        // Written also if nothing fails: an old one would mislead.
        self.file(&self.failures.clone());
        let sections: [(Section, Act<Self>); 5] = [
            (Section::Probe, Self::probe),
            (Section::Habits, Self::habits),
            (Section::Ends, Self::end_badly),
            (Section::Speed, Self::measure),
            (Section::Collectives, Self::collectives),
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
        let line = match failures {
            0 if self.unmapped_ranks < usize::MAX => format!(
                "all is well on the GPU; the mapped path was not checked with {} or more ranks",
                self.unmapped_ranks
            ),
            0 => "all is well on the GPU".to_owned(),
            1 => "1 failure on the GPU".to_owned(),
            _ => format!("{failures} failures on the GPU"),
        };
        match self.format {
            Format::Table => println!("{line}"),
            Format::Csv => eprintln!("ringtree check-gpu: {line}"),
        }
        failures
    }

    /// A part on the mapped path, or on what there is in its place.
    fn job(&self, part: &str, ranks: usize) -> Job {
        let mut arguments = vec!["check-gpu".to_owned(), "--part".into(), part.into()];
        let bytes_max = self.arguments.bytes_max.to_string();
        arguments.extend(["--bytes-max".into(), bytes_max]);
        Job {
            program: self.invocation.program.clone(),
            arguments,
            ranks,
            path: MAPPED,
            timeout: TIMEOUT,
            fate: None,
        }
    }

    /// Runs a part on each path.
    fn on_each_path(&mut self, what: &str, job: &Job) {
        for path in PATHS {
            self.on_path(
                what,
                Job {
                    path,
                    ..job.clone()
                },
            );
        }
    }

    /// Runs a part on the job's path. Where it cannot be had, one line says so; it is no failure.
    fn on_path(&mut self, what: &str, mut job: Job) -> Option<Outcome> {
        if job.path == MAPPED {
            if job.ranks >= self.unmapped_ranks {
                return None;
            }
            job.arguments.push("--mapped".into());
        }
        let outcome = self.part(&format!("{what}, {}", job.path.name), &job);
        outcome.not_here.is_none().then_some(outcome)
    }

    /// Runs a part and takes down what came of it.
    fn part(&mut self, what: &str, job: &Job) -> Outcome {
        let ranks = job.ranks;
        let name = format!("{what}, {ranks} ranks");
        let start = Instant::now();
        let left = self.end.saturating_duration_since(start);
        let patience = Duration::from_secs(self.arguments.patience).min(left);
        if patience.is_zero() {
            let minutes = self.arguments.minutes;
            self.fail(&format!("{name}: not begun, as {minutes} min were over"));
            return Outcome::default();
        }
        let outcome = run(job, patience);
        for found in &outcome.found {
            self.fail(&format!("{name}: {found}"));
        }
        let what = match &outcome.not_here {
            Some(why) => {
                self.unmapped_ranks = ranks;
                format!("mapped: not here: {why}")
            }
            None => what.to_owned(),
        };
        let is_idle = outcome.checked == 0 && outcome.not_here.is_none();
        if is_idle && outcome.found.is_empty() {
            self.fail(&format!("{name}: nothing was checked"));
        }
        let seconds = start.elapsed().as_secs_f64();
        self.parts.rows.push(vec![
            what,
            ranks.to_string(),
            outcome.checked.to_string(),
            outcome.found.len().to_string(),
            format!("{seconds:.1}"),
        ]);
        self.file(&self.parts.clone());
        outcome
    }

    /// Says at once what is wrong: the parent may not wait for the end of this process.
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
        let outcome = self.part("probe", &self.job("probe", 2));
        let mut rows = outcome.rows;
        rows.extend(machine::facts());
        self.show(&Table {
            name: "probe".into(),
            columns: &["what", "value", "unit"],
            rows,
        });
    }

    /// What users do, each in processes of its own, which may hang.
    fn habits(&mut self) {
        for (turn, habit) in habits::HABITS.iter().enumerate() {
            let mut job = self.job("habit", 2);
            job.arguments.extend(["--turn".into(), turn.to_string()]);
            self.on_each_path(&format!("habit: {}", habit.name), &job);
        }
    }

    /// Ranks are killed, or stand still, while others' streams wait for them.
    fn end_badly(&mut self) {
        for (part, what, fate) in [
            ("killed", "a rank is killed", Fate::Kill),
            ("stopped", "a rank stands still", Fate::Stop),
        ] {
            let mut job = self.job(part, MORTALS);
            job.fate = Some(fate);
            if fate == Fate::Stop {
                job.timeout = STOPPED_TIMEOUT;
            }
            self.on_each_path(what, &job);
        }
    }

    fn collectives(&mut self) {
        for ranks in LITMUS_RANKS {
            if ranks <= self.arguments.ranks_max.max(MORTALS) {
                self.on_path("litmus", self.job("litmus", ranks));
            }
        }
        for ranks in 2..=self.arguments.ranks_max {
            // Each path has other lengths.
            for (nth, path) in PATHS.into_iter().enumerate() {
                let mut job = self.job("cases", ranks);
                job.path = path;
                let turn = (ranks + nth).to_string();
                job.arguments.extend(["--turn".into(), turn]);
                self.on_path("collectives", job);
            }
        }
    }

    fn measure(&mut self) {
        for path in PATHS {
            let job = Job {
                path,
                ..self.job("speed", 2)
            };
            let Some(outcome) = self.on_path("speed of all-reduce", job) else {
                continue;
            };
            self.show(&Table {
                name: format!("all_reduce_{}", path.name.replace(' ', "_")),
                columns: speeds::COLUMNS,
                rows: outcome.rows,
            });
        }
    }
}
