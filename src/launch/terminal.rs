//! Opens a pseudo terminal for a rank whose output is shown unchanged.
//!
//! The pseudo terminal has the same size as the launcher's terminal, so progress bars work. The
//! launcher reads what the rank writes and forwards every byte unchanged, so it can also log the
//! output and quote its last lines.

use super::streams::Target;
use rustix::io::Result;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize};
use std::io;
use std::os::fd::OwnedFd;

/// The launcher's end of a pseudo terminal.
#[derive(Debug)]
pub(super) struct PseudoTerminal {
    /// The descriptor from which the launcher reads the rank's output.
    pub(super) own: OwnedFd,
    /// The launcher's stream that the pseudo terminal replaces.
    pub(super) target: Target,
}

impl PseudoTerminal {
    /// Opens a pseudo terminal that replaces `target`. Returns the launcher's end and the rank's
    /// end.
    pub(super) fn open(target: Target) -> Result<(Self, OwnedFd)> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let own = openpt(flags)?;
        grantpt(&own)?;
        unlockpt(&own)?;
        let ranks = ioctl_tiocgptpeer(&own, flags)?;
        // The launcher's terminal translates line feeds, so the pseudo terminal must not.
        let mut attributes = tcgetattr(&ranks)?;
        attributes.make_raw();
        tcsetattr(&ranks, OptionalActions::Now, &attributes)?;
        let terminal = PseudoTerminal { own, target };
        terminal.fit();
        Ok((terminal, ranks))
    }

    /// Sets the size of the pseudo terminal to that of the launcher's terminal.
    pub(super) fn fit(&self) {
        let size = match self.target {
            Target::Stdout => tcgetwinsize(io::stdout()),
            Target::Stderr => tcgetwinsize(io::stderr()),
        };
        if let Ok(size) = size {
            // If this fails, the rank assumes a default size.
            let _ = tcsetwinsize(&self.own, size);
        }
    }
}
