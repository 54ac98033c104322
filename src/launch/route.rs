//! Chooses which streams a rank gets and how the launcher shows the rank's output.

use super::job::Output;
use super::log::Log;
use super::streams::{self, Target};
use super::terminal::PseudoTerminal;
use std::io;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// The mode in which the launcher shows a rank's output.
#[derive(Clone, Debug)]
pub(super) enum Show {
    /// Shows each line with this prefix in front of it.
    Lines(String),
    /// Shows the output unchanged.
    Unchanged,
    /// Shows nothing unless the rank fails. If it fails, shows the last lines, each with this
    /// prefix in front of it.
    Kept(String),
}

/// The destinations of a rank's output.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) show: Show,
    /// `true` if the launcher does not see all of the output.
    pub(super) is_partial: bool,
    pub(super) log: Option<Arc<Log>>,
    /// The pseudo terminals that stand in for the launcher's terminal.
    pub(super) terminals: Vec<PseudoTerminal>,
}

impl Route {
    /// Creates the route for `rank`, whose local rank is `local_rank`, and sets the streams of its
    /// `command`.
    pub(super) fn lay(
        output: Output,
        (rank, local_rank): (usize, usize),
        log: Option<Arc<Log>>,
        command: &mut Command,
    ) -> Self {
        let prefix = format!("[{rank}]: ");
        let show = match output {
            Output::Prefixed => Show::Lines(prefix),
            Output::Rank0 if local_rank > 0 => Show::Kept(prefix),
            Output::Rank0 | Output::Inherit | Output::Plain => Show::Unchanged,
        };
        let (stdout, stderr) = match output {
            Output::Prefixed | Output::Rank0 => (Stdio::piped(), Stdio::piped()),
            Output::Inherit => (Stdio::inherit(), Stdio::inherit()),
            Output::Plain => (Stdio::inherit(), Stdio::piped()),
        };
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        let mut route = Route {
            show,
            is_partial: matches!(output, Output::Inherit | Output::Plain),
            log,
            terminals: Vec::new(),
        };
        if (output, local_rank) == (Output::Rank0, 0) {
            route.lead_to_terminals(command).unwrap_or_else(|error| {
                streams::print_line(&format!(
                    "rank {rank} has no terminal: cannot open a pseudo-terminal: {error}"
                ));
            });
        }
        route
    }

    /// Gives the rank a pseudo terminal for each stream that is a terminal in the launcher. If both
    /// streams are the same terminal, the rank gets a single pseudo terminal for both, which keeps
    /// its output in order.
    fn lead_to_terminals(&mut self, command: &mut Command) -> io::Result<()> {
        let are_one = streams::are_one();
        if Target::Stderr.is_terminal() {
            let (terminal, ranks) = PseudoTerminal::open(Target::Stderr)?;
            if are_one {
                command.stdout(ranks.try_clone()?);
            }
            command.stderr(ranks);
            self.terminals.push(terminal);
        }
        if Target::Stdout.is_terminal() && !are_one {
            let (terminal, ranks) = PseudoTerminal::open(Target::Stdout)?;
            command.stdout(ranks);
            self.terminals.push(terminal);
        }
        Ok(())
    }
}
