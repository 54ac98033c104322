//! The error type: which rank, in which call, why, and what the caller can do next.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The result of a fallible call.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong. Every variant's documentation ends with what the caller can do.
///
/// After any error but [`Error::Usage`] the communicator is unusable: every later call on it
/// returns the same first error, and the contents of the buffers are unspecified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Error {
    /// The call itself was wrong (a root that is no rank, a bit operator on floats, two threads in
    /// one communicator). Nothing was sent. *Correct the call; the communicator is fine.*
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

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
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
            | Error::PeerLost { message, .. } => formatter.write_str(message),
        }
    }
}

impl std::error::Error for Error {}
