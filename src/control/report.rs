//! Writes and reads a rank's reports to its launcher, which are stored in a file that the rank
//! inherits.
//!
//! The launcher creates the file and sets `RINGTREE_REPORT_FD` to its descriptor. The rank appends
//! its reports, and the launcher reads them when the rank has ended. If the rank was killed while
//! writing a report, the incomplete report is ignored.

use crate::error::Error;
use crate::limits::REPORTS_BYTES_MAX;
use crate::protocol::members::Members;
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::fd::RawFd;

/// Environment variable that contains the descriptor of the file.
pub(crate) const REPORT_FD: &str = "RINGTREE_REPORT_FD";
/// Name by which a rank recognizes the file.
pub(crate) const FILE_NAME: &str = "ringtree-report";
/// Maximum number of characters recorded from an error message. They suffice to distinguish the
/// error from any other, and they fit in the first KiB of a line, which is the part that a launcher
/// reads.
const TEXT_CHARACTERS_MAX: usize = 200;

/// A report from a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The table of link speeds that rank 0 has measured, as text.
    Table(String),
    /// An error that the rank's program receives.
    Failed {
        /// World rank of the lost rank that the error names, if that is another rank.
        blames: Option<u32>,
        /// The beginning of the error message.
        text: String,
    },
}

impl Report {
    /// Creates the report in which world rank `own` states that its group of `members` failed with
    /// `error`.
    pub(crate) fn failed(error: &Error, members: &Members, own: usize) -> Self {
        let lost = error
            .peer()
            .filter(|_| error.kind() == crate::ErrorKind::PeerLost);
        let lost = lost.map(|rank| members.world_rank(rank));
        let blames = lost.filter(|rank| *rank != own);
        let line = error.to_string();
        let text = line.chars().take(TEXT_CHARACTERS_MAX).collect::<String>();
        Report::Failed {
            blames: blames.and_then(|rank| u32::try_from(rank).ok()),
            text: text.trim().to_owned(),
        }
    }

    /// Appends the report to the launcher's file, to which `descriptor` refers.
    ///
    /// # Errors
    /// Returns an error of kind [`ErrorKind::InvalidInput`] if the descriptor does not refer to
    /// such a file, an error of kind [`ErrorKind::FileTooLarge`] if the file is full, or the
    /// system's error.
    pub(crate) fn append(&self, descriptor: RawFd) -> io::Result<()> {
        // The descriptor may refer to another file by now, so compare the name. Opening the file
        // again does not affect the inherited descriptor.
        let path = format!("/proc/self/fd/{descriptor}");
        let name = fs::read_link(&path)?;
        if !name
            .to_string_lossy()
            .starts_with(&format!("/memfd:{FILE_NAME}"))
        {
            return Err(ErrorKind::InvalidInput.into());
        }
        let bytes = postcard::to_stdvec(self).map_err(io::Error::other)?;
        let mut file = File::options().append(true).open(&path)?;
        let length = file.metadata()?.len() + bytes.len() as u64;
        // The system kills a process that exceeds its file size limit (SIGXFSZ).
        let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        if length > limit.min(REPORTS_BYTES_MAX as u64) {
            return Err(ErrorKind::FileTooLarge.into());
        }
        file.write_all(&bytes)
    }

    /// Removes and returns the complete reports at the beginning of `bytes`.
    pub(crate) fn take_all(bytes: &mut Vec<u8>) -> Vec<Self> {
        let (mut reports, mut rest) = (Vec::new(), &bytes[..]);
        while let Ok((report, after)) = postcard::take_from_bytes(rest) {
            reports.push(report);
            rest = after;
        }
        let taken = bytes.len() - rest.len();
        bytes.drain(..taken);
        reports
    }
}

#[cfg(test)]
mod tests;
