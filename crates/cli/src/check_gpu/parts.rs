//! Runs the parts of the check within the time limit.

use super::group::{Fault, Job, Outcome, Path, run};
use super::report::Table;
use super::{Arguments, Section, machine, speeds, usage_patterns};
use crate::Invocation;
use crate::format::Format;
use std::time::{Duration, Instant};

/// Time limit for each part, in seconds. A part takes longer only if something hangs.
pub(super) const PART_LIMIT_S: u64 = 90;
/// Part of the total time limit that is kept in reserve, so that every part ends before this
/// process has to exit.
const CLOSING: Duration = Duration::from_secs(20);
/// Timeout for calls if no rank is stopped.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for calls if a rank is stopped.
const STOPPED_TIMEOUT: Duration = Duration::from_secs(3);
/// Number of ranks if one of them is killed or stopped.
const KILL_TEST_RANKS: usize = 3;
/// Numbers of ranks in the litmus test. Both are odd, and one is large enough to cover most of a
/// host's GPUs.
const LITMUS_RANKS: [usize; 2] = [3, 7];
/// The mapped path. If it is unavailable, the ranks report why.
const MAPPED: Path = path("mapped", "auto", "auto");
/// The paths that device buffers can take.
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

/// The function that runs a section.
type Act<T> = fn(&mut T);

/// A check in progress.
pub(super) struct Check<'a> {
    arguments: &'a Arguments,
    invocation: &'a Invocation,
    end: Instant,
    /// The smallest number of ranks that could not map each other's memory.
    unmapped_ranks: usize,
    parts: Table,
    failures: Table,
}

impl<'a> Check<'a> {
    pub(super) fn new(
        arguments: &'a Arguments,
        invocation: &'a Invocation,
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
            end: start + time - CLOSING,
            unmapped_ranks: usize::MAX,
            parts: table("checks", &["part", "ranks", "checked", "wrong", "seconds"]),
            failures: table("failures", &["failure"]),
        }
    }

    /// Runs the requested sections, starting with the fastest and most informative ones.
    pub(super) fn all(&mut self) {
        // Write the file even if there are no failures, because an old file would be misleading.
        self.file(&self.failures.clone());
        let sections: [(Section, Act<Self>); 5] = [
            (Section::Probe, Self::probe),
            (Section::Habits, Self::habits),
            (Section::Ends, Self::kill_and_suspend),
            (Section::Speed, Self::measure),
            (Section::Collectives, Self::collectives),
        ];
        for (section, check) in sections {
            if self.arguments.has(section) {
                check(self);
            }
        }
    }

    /// Prints the result and returns the number of failures.
    pub(super) fn conclude(self) -> usize {
        self.parts.print(self.arguments.format);
        let failures = self.failures.rows.len();
        let line = match failures {
            0 if self.unmapped_ranks < usize::MAX => format!(
                "all GPU checks passed; the mapped path was not checked with {} or more ranks",
                self.unmapped_ranks
            ),
            0 => "all GPU checks passed".to_owned(),
            1 => "1 GPU check failure".to_owned(),
            _ => format!("{failures} GPU check failures"),
        };
        match self.arguments.format {
            Format::Table => println!("{line}"),
            Format::Csv | Format::Json => eprintln!("ringtree check-gpu: {line}"),
        }
        failures
    }

    /// Returns the job for a part, which uses the mapped path if that is available.
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
            let job = job.clone();
            self.on_path(what, Job { path, ..job });
        }
    }

    /// Runs a part on the job's path. If the path is unavailable, one line reports this, and it
    /// does not count as a failure.
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

    /// Runs a part and records its outcome.
    fn part(&mut self, what: &str, job: &Job) -> Outcome {
        let ranks = job.ranks;
        let name = format!("{what}, {ranks} ranks");
        let start = Instant::now();
        let left = self.end.saturating_duration_since(start);
        let patience = Duration::from_secs(self.arguments.patience).min(left);
        if patience.is_zero() {
            let minutes = self.arguments.minutes;
            self.fail(&format!(
                "{name}: skipped because the time limit of {minutes} min was reached"
            ));
            return Outcome::default();
        }
        let outcome = run(job, patience);
        for found in &outcome.found {
            self.fail(&format!("{name}: {found}"));
        }
        let what = match &outcome.not_here {
            Some(why) => {
                self.unmapped_ranks = ranks;
                format!("mapped: unavailable: {why}")
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

    /// Reports a failure immediately, because the parent may not wait until this process exits.
    fn fail(&mut self, what: &str) {
        eprintln!("ringtree check-gpu: FAILED: {what}");
        self.failures.rows.push(vec![what.to_owned()]);
        self.file(&self.failures.clone());
    }

    /// Prints a table and writes its file.
    fn show(&mut self, table: &Table) {
        table.print(self.arguments.format);
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

    /// Checks each habit in separate processes, because they may hang.
    fn habits(&mut self) {
        for (turn, habit) in usage_patterns::HABITS.iter().enumerate() {
            let mut job = self.job("habit", 2);
            job.arguments.extend(["--turn".into(), turn.to_string()]);
            self.on_each_path(&format!("habit: {}", habit.name), &job);
        }
    }

    /// Kills or stops a rank while the other ranks' streams are waiting for it.
    fn kill_and_suspend(&mut self) {
        for (part, what, fate) in [
            ("killed", "one rank killed", Fault::Kill),
            ("stopped", "one rank suspended", Fault::Stop),
        ] {
            let mut job = self.job(part, KILL_TEST_RANKS);
            job.fate = Some(fate);
            if fate == Fault::Stop {
                job.timeout = STOPPED_TIMEOUT;
            }
            self.on_each_path(what, &job);
        }
    }

    fn collectives(&mut self) {
        for ranks in LITMUS_RANKS {
            if ranks <= self.arguments.ranks_max.max(KILL_TEST_RANKS) {
                self.on_path("litmus", self.job("litmus", ranks));
            }
        }
        for ranks in 2..=self.arguments.ranks_max {
            // Each path checks different lengths.
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
            let Some(outcome) = self.on_path("all-reduce speed", job) else {
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
