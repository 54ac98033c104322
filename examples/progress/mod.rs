//! Shows one progress bar per host, and the lines of rank 0.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write, stderr, stdout};
use std::time::{Duration, Instant};

/// The progress display of this rank: a bar if standard output is a terminal, and otherwise a few
/// plain lines on standard error. Shows nothing if another rank on the host has the display.
///
/// The bar is drawn on standard output because launchers, including this library's, can pass their
/// standard output on to the ranks. They read the ranks' standard error to report how a rank
/// failed.
pub(crate) struct Progress {
    display: Display,
    step_count: u64,
}

enum Display {
    Bar(ProgressBar),
    Lines { started: Instant, from: u64 },
    Nothing,
}

/// Number of plain lines, no matter how long the run is.
const LINES: u64 = 5;

impl Progress {
    /// Creates the display for `step_count` steps. `local_rank` is the index of this rank on its
    /// host. `from` steps were already done earlier.
    pub(crate) fn new(step_count: u64, from: u64, local_rank: usize) -> Self {
        let display = if local_rank != 0 {
            Display::Nothing
        } else if stdout().is_terminal() {
            let style = ProgressStyle::with_template(
                "{bar:40} {pos} of {len} steps, {elapsed} gone, {eta} left",
            );
            let target = ProgressDrawTarget::stdout();
            let bar = ProgressBar::with_draw_target(Some(step_count), target);
            bar.set_style(style.expect("invariant: the template is well formed"));
            bar.set_position(from);
            // Otherwise, the estimate would treat the earlier steps as done instantly.
            bar.reset_eta();
            Display::Bar(bar)
        } else {
            Display::Lines {
                started: Instant::now(),
                from,
            }
        };
        Progress {
            display,
            step_count,
        }
    }

    /// Updates the display to `done` steps.
    pub(crate) fn advance(&self, done: u64) {
        match &self.display {
            Display::Bar(bar) => bar.set_position(done),
            Display::Lines { started, from } => {
                let lines_due = |steps: u64| steps * LINES / self.step_count;
                if lines_due(done) > lines_due(done - 1) {
                    let left = time_left(started.elapsed(), *from, done, self.step_count);
                    write_line(stderr(), &plain_line(done, self.step_count, left));
                }
            }
            Display::Nothing => {}
        }
    }

    /// Prints `line` on standard output without disrupting the bar.
    pub(crate) fn print(&self, line: &str) {
        match &self.display {
            Display::Bar(bar) => bar.suspend(|| println!("{line}")),
            Display::Lines { .. } | Display::Nothing => println!("{line}"),
        }
    }

    /// Removes the bar at the end of the training.
    pub(crate) fn finish(self) {
        if let Display::Bar(bar) = self.display {
            bar.finish_and_clear();
        }
    }
}

/// Writes `line` and a newline in one call. `eprintln!` writes the newline separately, so another
/// stream's output to the same terminal could appear between the two.
pub(crate) fn write_line(mut stream: impl Write, line: &str) {
    // Training must continue even if the progress cannot be shown.
    let _ = stream.write_all(format!("{line}\n").as_bytes());
}

/// Estimates the time that the steps after `done` will take. The steps since `from` took `elapsed`.
fn time_left(elapsed: Duration, from: u64, done: u64, step_count: u64) -> Duration {
    elapsed.mul_f64((step_count - done) as f64 / (done - from) as f64)
}

fn plain_line(done: u64, step_count: u64, left: Duration) -> String {
    format!(
        "progress: {done} of {step_count} steps, {:.0} s left",
        left.as_secs_f64()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_depends_only_on_steps_since_resume() {
        let left = time_left(Duration::from_secs(10), 90, 100, 120);
        assert_eq!(left, Duration::from_secs(20));
    }
}
