//! Why there is no connection to another process.

use crate::protocol::handshake::{Hello, Refusal};
use std::fmt;
use std::io::{self, ErrorKind};

/// Why a handshake brought no connection.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// One end refused the other. If this end did, with what the other end had proven to be.
    Refused(Refusal, Option<Hello>),
    /// No process listens at the address.
    NoListener,
    /// The connection did not last.
    Broken(String),
    /// This process has too many files open to find out whose process is at the other end: the
    /// system's number of the error.
    Starved(i32),
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused(refusal, _) => refusal.fmt(formatter),
            Failure::NoListener => io::Error::from(ErrorKind::ConnectionRefused).fmt(formatter),
            Failure::Broken(why) => formatter.write_str(why),
            Failure::Starved(code) => io::Error::from_raw_os_error(*code).fmt(formatter),
        }
    }
}

impl From<&io::Error> for Failure {
    fn from(error: &io::Error) -> Self {
        match error.kind() {
            ErrorKind::ConnectionRefused => Failure::NoListener,
            _ => Failure::Broken(error.to_string()),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::from(&error)
    }
}
