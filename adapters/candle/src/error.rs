//! What can go wrong: the communication, candle, or the way both are used.

use std::fmt;

/// The result of a fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of distributed training. It becomes a [`candle_core::Error`] by `?`.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A rank is gone, or ranks do not agree: the message says which, and what to do.
    Ringtree(ringtree::Error),
    /// candle refused something.
    Candle(candle_core::Error),
    /// The model and its replica are not used as they are meant to be. *Correct the program.*
    Usage(String),
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ringtree(error) => error.fmt(formatter),
            Self::Candle(error) => error.fmt(formatter),
            Self::Usage(message) => formatter.write_str(message),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Ringtree(error) => Some(error),
            Self::Candle(error) => Some(error),
            Self::Usage(_) => None,
        }
    }
}

impl From<ringtree::Error> for Error {
    fn from(error: ringtree::Error) -> Self {
        Self::Ringtree(error)
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Self::Candle(error)
    }
}

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Candle(error) => error,
            other => Self::wrap(other),
        }
    }
}
