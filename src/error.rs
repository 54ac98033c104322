//! The error type: which rank, in which call, why, and what the caller can do next.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The result of a fallible call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong. Every variant's documentation ends with what the caller can do.
///
/// After any error but [`Error::Usage`] the communicator is unusable: every later call on it
/// returns the same first error, and the contents of the buffers are unspecified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Error {
    /// The call itself was wrong (a root that is no rank, a bit operator on floats, a
    /// message to the rank itself). Nothing was sent. *Correct the call; the communicator is fine.*
    Usage(String),
    /// A setting is missing or malformed. *Correct the setting that the message names.*
    Configuration(String),
    /// The ranks could not be brought together. *The message names what to check; start again.*
    Join(String),
    /// Ranks issued different calls. *Correct the program: all ranks issue the operations of a
    /// communicator in the same order with the same arguments.*
    Mismatch(String),
    /// A rank died, or left while this one still needed it. *Restart the job, from a checkpoint.*
    PeerLost {
        /// The rank that is gone.
        rank: usize,
        /// What was seen, in which call.
        message: String,
    },
    /// A call did not finish by its deadline; the message says who is missing and where.
    /// *Look at that rank; raise the timeout if it is merely slow.*
    Deadline(String),
    /// A peer sent bytes that no plan accounts for. *Report it; the connection was closed.*
    Protocol(String),
    /// The operating system refused something. *The message names the call and the cause.*
    System(String),
    /// There is no GPU that could be used here; the message says why. *Use host memory, or mend
    /// what the message names.*
    NoDevice(String),
    /// A GPU, or its driver, refused or failed something. *The message names the call and the
    /// cause; after a failed kernel the process must be started again.*
    Device(String),
}

impl Error {
    /// The system error `error` that came from doing `what`.
    #[must_use]
    pub fn system(what: impl fmt::Display, error: &std::io::Error) -> Self {
        Error::System(format!("{what}: {error}"))
    }
}

/// Text as a terminal may show it: parts of it may come from other processes, so control
/// characters are written out.
pub(crate) struct Printable<'a>(pub(crate) &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.contains(char::is_control) {
            return formatter.write_str(self.0);
        }
        self.0.chars().try_for_each(|one| match one.is_control() {
            true => write!(formatter, "{}", one.escape_default()),
            false => write!(formatter, "{one}"),
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printable(self.message()).fmt(formatter)
    }
}

impl Error {
    fn message(&self) -> &str {
        match self {
            Error::Usage(message)
            | Error::Configuration(message)
            | Error::Join(message)
            | Error::Mismatch(message)
            | Error::Deadline(message)
            | Error::Protocol(message)
            | Error::System(message)
            | Error::NoDevice(message)
            | Error::Device(message)
            | Error::PeerLost { message, .. } => message,
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_of_a_peer_reaches_a_terminal() {
        let error = Error::Join("host \u{1b}]0;x\u{7}é\n\u{9b}2J is héron".into());
        let line = error.to_string();
        assert_eq!(line, "host \\u{1b}]0;x\\u{7}é\\n\\u{9b}2J is héron");
    }
}
