//! Defines the error type of this crate.

use std::fmt;

/// The result of a fallible call in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error in distributed training. The `?` operator converts it to a [`candle_core::Error`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// An error from ringtree, such as a lost rank or different models on different ranks. The
    /// message names the rank and says what to do next.
    Ringtree(ringtree::Error),
    /// An error from candle.
    Candle(candle_core::Error),
    /// A usage error concerning the model or its replica. Correct the program.
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
