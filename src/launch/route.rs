//! Where what a rank writes goes: which streams it is given, and how the launcher passes them on.

use super::job::Output;
use super::log::Log;
use super::streams::{self, Target};
use super::terminal::PseudoTerminal;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// How what a rank writes reaches the launcher's user.
#[derive(Clone, Debug)]
pub(super) enum Show {
    /// Line by line, each after this.
    Lines(String),
    /// As it comes.
    Unchanged,
    /// Not at all; but the last of it, line by line, if the rank ends the attempt.
    Kept(String),
}

/// Where what one rank writes goes.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) show: Show,
    /// Whether the launcher does not see all of it.
    pub(super) is_partial: bool,
    pub(super) log: Option<Arc<Log>>,
    /// What the rank finds in place of the launcher's terminal.
    pub(super) terminals: Vec<PseudoTerminal>,
}

impl Route {
    /// The route of `rank`, the `local_rank`th of its host, whose command gets the streams for it.
    pub(super) fn lay(
        output: Output,
        (rank, local_rank): (usize, usize),
        log: Option<Arc<Log>>,
        command: &mut Command,
    ) -> Self {
        let prefix = || format!("[{rank}]: ");
        let (stdout, stderr, show) = match output {
            Output::Prefixed => (Stdio::piped(), Stdio::piped(), Show::Lines(prefix())),
            Output::Rank0 if local_rank > 0 => {
                (Stdio::piped(), Stdio::piped(), Show::Kept(prefix()))
            }
            Output::Rank0 => (Stdio::piped(), Stdio::piped(), Show::Unchanged),
            Output::Inherit => (Stdio::inherit(), Stdio::inherit(), Show::Unchanged),
            Output::Plain => (Stdio::inherit(), Stdio::piped(), Show::Unchanged),
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
                streams::say(&format!(
                    "rank {rank} finds no terminal, for no pseudo terminal can be had: {error}"
                ));
            });
        }
        route
    }

    /// Gives the rank a terminal for each of its streams that is one of the launcher's: the same
    /// one for both if they are one, so that what it writes keeps its order.
    fn lead_to_terminals(&mut self, command: &mut Command) -> rustix::io::Result<()> {
        let is_stderr = Target::Stderr.is_terminal();
        if is_stderr && streams::are_one() {
            let (terminal, ranks) = PseudoTerminal::open(Target::Stderr)?;
            command.stdout(ranks.try_clone().map_err(|_| rustix::io::Errno::MFILE)?);
            command.stderr(ranks);
            self.terminals.push(terminal);
            return Ok(());
        }
        if is_stderr {
            let (terminal, ranks) = PseudoTerminal::open(Target::Stderr)?;
            command.stderr(ranks);
            self.terminals.push(terminal);
        }
        if Target::Stdout.is_terminal() {
            let (terminal, ranks) = PseudoTerminal::open(Target::Stdout)?;
            command.stdout(ranks);
            self.terminals.push(terminal);
        }
        Ok(())
    }
}
