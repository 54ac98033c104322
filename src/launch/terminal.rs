//! A pseudo terminal for a rank whose output is shown as it is.
//!
//! The rank finds a terminal of the size of the launcher's, so its progress bar moves. The launcher
//! reads what the rank writes and passes every byte on unchanged, so it knows the rank's last words
//! and can keep its log.

use super::streams::Target;
use rustix::io::Result;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize};
use std::io;
use std::os::fd::OwnedFd;

/// The launcher's end.
#[derive(Debug)]
pub(super) struct PseudoTerminal {
    /// What the rank writes is read from it.
    pub(super) own: OwnedFd,
    /// The stream of the launcher's in whose place it is.
    pub(super) target: Target,
}

impl PseudoTerminal {
    /// A pseudo terminal in the place of `target`, and the rank's end of it.
    pub(super) fn open(target: Target) -> Result<(Self, OwnedFd)> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let own = openpt(flags)?;
        grantpt(&own)?;
        unlockpt(&own)?;
        let ranks = ioctl_tiocgptpeer(&own, flags)?;
        // The launcher's own terminal makes of a line feed what it needs.
        let mut attributes = tcgetattr(&ranks)?;
        attributes.make_raw();
        tcsetattr(&ranks, OptionalActions::Now, &attributes)?;
        let terminal = PseudoTerminal { own, target };
        terminal.fit();
        Ok((terminal, ranks))
    }

    /// Gives it the size of the launcher's terminal.
    pub(super) fn fit(&self) {
        let size = match self.target {
            Target::Stdout => tcgetwinsize(io::stdout()),
            Target::Stderr => tcgetwinsize(io::stderr()),
        };
        if let Ok(size) = size {
            // A rank that finds no size assumes one.
            let _ = tcsetwinsize(&self.own, size);
        }
    }
}
