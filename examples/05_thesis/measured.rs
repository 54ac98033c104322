//! Measures the step between real processes, each on its own emulated host.

use crate::real::{ALGORITHM, MODEL, STEPS};
use crate::step::{MODELS, Model, WAYS};
use ringtree_network::{Network, Shape};
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Numbers of ranks to measure, including some that are not powers of two.
pub(crate) const RANKS: [usize; 8] = [2, 4, 7, 8, 16, 23, 32, 64];
/// Delay of the emulated links. Through TCP, the links have the latency [`crate::ALPHA`] and the
/// rate [`crate::RATE_MBIT`].
const DELAY: Duration = Duration::from_millis(5);
const WIRE_MBIT: f64 = 10.0;
/// The capacity of a link's queue: enough for all concurrent messages, so that none is lost.
const QUEUE_BYTES: u64 = 8 << 20;
/// The port of rank 0's rendezvous.
const PORT: u16 = 29500;
/// Seconds after which a rank is killed. No point takes that long.
const LIMIT_S: &str = "600";
/// If the switch needs a larger share of a core, it distorts the measurement.
const SWITCH_SHARE_MAX: f64 = 0.5;
/// The header line of the file that contains the points.
const COLUMNS: &str = "model,ranks,algorithm,steps,exposed_ms,least_ms,most_ms,alpha_us,\
                       rate_mbit,chosen,switch_share,switch_mbit,dropped";

/// The measured step of one model, algorithm and number of ranks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Point {
    /// The model's name.
    pub(crate) model: String,
    /// The number of ranks.
    pub(crate) ranks: usize,
    /// One of the names in [`WAYS`].
    pub(crate) way: String,
    /// The number of measured steps.
    steps: usize,
    /// Exposed communication in milliseconds: median, minimum and maximum of the steps.
    pub(crate) exposed_ms: [f64; 3],
    /// The link as the ranks measured it: latency in microseconds, and rate in Mbit/s.
    pub(crate) link: (f64, f64),
    /// The algorithm of the all-reduces.
    pub(crate) chosen: String,
    /// The share of a core that the switch used, and the mean traffic through it in Mbit/s.
    switch: (f64, f64),
    /// Packets that the switch dropped.
    dropped: u64,
}

impl Point {
    /// Returns `true` if the switch kept up, so that the point depends only on the algorithm.
    pub(crate) fn counts(&self) -> bool {
        self.switch.0 <= SWITCH_SHARE_MAX && self.dropped == 0
    }

    pub(crate) fn is(&self, model: &Model, ranks: usize, way: &str) -> bool {
        (&*self.model, self.ranks, &*self.way) == (model.name, ranks, way)
    }

    fn line(&self) -> String {
        let [median, least, most] = self.exposed_ms;
        let ((alpha_us, mbit), (share, carried)) = (self.link, self.switch);
        format!(
            "{},{},{},{},{median:.1},{least:.1},{most:.1},{alpha_us:.0},{mbit:.2},{},{share:.3},\
             {carried:.0},{}",
            self.model, self.ranks, self.way, self.steps, self.chosen, self.dropped
        )
    }

    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split(',').collect();
        let [model, ranks, way, steps, rest @ ..] = &fields[..] else {
            return None;
        };
        let [
            median,
            least,
            most,
            alpha_us,
            mbit,
            chosen,
            share,
            carried,
            dropped,
        ] = rest
        else {
            return None;
        };
        let number = |text: &str| text.parse().ok();
        Some(Self {
            model: (*model).into(),
            ranks: ranks.parse().ok()?,
            way: (*way).into(),
            steps: steps.parse().ok()?,
            exposed_ms: [number(median)?, number(least)?, number(most)?],
            link: (number(alpha_us)?, number(mbit)?),
            chosen: (*chosen).into(),
            switch: (number(share)?, number(carried)?),
            dropped: dropped.parse().ok()?,
        })
    }
}

/// Reads the points from a file that [`complete`] wrote. Returns no points if the file does not
/// exist.
///
/// # Errors
/// Returns a message if the file cannot be read or contains an invalid line.
pub(crate) fn read(path: &Path) -> Result<Vec<Point>, String> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.map_err(|error| format!("cannot read {}: {error}", path.display()))?,
    };
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && *line != COLUMNS);
    lines
        .map(|line| {
            let other = || format!("{}: '{line}' is not a point", path.display());
            Point::parse(line).ok_or_else(other)
        })
        .collect()
}

/// Measures the points for up to `ranks_max` ranks that the file does not contain, and appends each
/// of them to the file.
///
/// # Errors
/// Returns a message if hosts cannot be emulated, a rank fails, or the file cannot be written.
pub(crate) fn complete(path: &Path, ranks_max: usize, steps: usize) -> Result<(), String> {
    let known = read(path)?;
    for ranks in RANKS.into_iter().filter(|ranks| *ranks <= ranks_max) {
        for model in &MODELS {
            for (way, _) in WAYS {
                if known.iter().any(|point| point.is(model, ranks, way)) {
                    continue;
                }
                let point = measure(model, ranks, way, steps)
                    .map_err(|error| format!("{way} on {ranks} hosts: {error}"))?;
                println!("{}", point.line());
                append(path, &point)
                    .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
            }
        }
    }
    Ok(())
}

fn append(path: &Path, point: &Point) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    if file.metadata()?.len() == 0 {
        writeln!(file, "{COLUMNS}")?;
    }
    writeln!(file, "{}", point.line())
}

fn measure(model: &Model, ranks: usize, way: &str, steps: usize) -> io::Result<Point> {
    let network = Network::open(&Shape {
        delay: DELAY,
        queue_bytes: QUEUE_BYTES,
        is_slow_motion: true,
        ..Shape::new(ranks, WIRE_MBIT * 1e6 / 8.0)
    })?;
    let program = std::env::current_exe()?;
    let started = network.start_ranks(&vec![1; ranks], PORT, |_host| {
        // `timeout` kills a rank that hangs.
        let mut command = Command::new("timeout");
        command.arg(LIMIT_S).arg(&program).stdout(Stdio::piped());
        command
            .env(MODEL, model.name)
            .env(ALGORITHM, way)
            .env(STEPS, steps.to_string());
        command
    })?;
    let (said, switch) = listen(&network, started)?;
    let broken = || io::Error::other("rank 0 reported no measurement");
    let (table, times) = said.split_first().ok_or_else(broken)?;
    let [alpha_us, mbit, chosen] = table.split(',').collect::<Vec<_>>()[..] else {
        return Err(broken());
    };
    let times: Result<Vec<f64>, _> = times.iter().map(|line| line.parse()).collect();
    let mut times = times.map_err(io::Error::other)?;
    times.sort_unstable_by(f64::total_cmp);
    let (Some(least), Some(most)) = (times.first(), times.last()) else {
        return Err(broken());
    };
    Ok(Point {
        model: model.name.into(),
        ranks,
        way: way.into(),
        steps: times.len(),
        exposed_ms: [times[times.len() / 2], *least, *most],
        link: (
            alpha_us.parse().map_err(io::Error::other)?,
            mbit.parse().map_err(io::Error::other)?,
        ),
        chosen: chosen.into(),
        switch,
        dropped: network.close()?.dropped,
    })
}

/// Waits until all ranks have exited. Returns the lines that rank 0 printed, and two averages over
/// the time between its first and its last line: the share of a core that the switch used, and the
/// traffic through the switch in Mbit/s.
///
/// # Errors
/// Returns an error if a rank fails.
fn listen(network: &Network, mut ranks: Vec<Child>) -> io::Result<(Vec<String>, (f64, f64))> {
    let output = ranks[0].stdout.take();
    let output = output.ok_or_else(|| io::Error::other("rank 0 has no output"))?;
    let now = || (network.clock(), network.busy(), network.carried_bytes());
    let (mut said, mut begin, mut end) = (Vec::new(), None, now());
    for line in BufReader::new(output).lines() {
        said.push(line?);
        end = now();
        begin.get_or_insert(end);
    }
    for rank in &mut ranks {
        if !rank.wait()?.success() {
            return Err(io::Error::other("a rank failed"));
        }
    }
    let begin = begin.unwrap_or(end);
    let seconds = (end.0 - begin.0).as_secs_f64();
    let share = (end.1 - begin.1).as_secs_f64() / seconds;
    Ok((said, (share, (end.2 - begin.2) as f64 * 8e-6 / seconds)))
}
