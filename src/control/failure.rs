//! Defines the reasons why a connection to another process can fail.

use crate::protocol::handshake::{Hello, Refusal};
use std::fmt;
use std::io::{self, ErrorKind};

/// The reason why a handshake failed.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// One end refused the other. The hello is included if this end refused an authenticated
    /// initiator.
    Refused(Refusal, Option<Hello>),
    /// No process listens at the address.
    NoListener,
    /// The connection could not be established or was broken.
    Broken(String),
    /// This process has too many open files to look up the user at the other end. Contains the
    /// system's error number.
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
