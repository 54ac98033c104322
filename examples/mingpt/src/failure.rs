//! Defines failures that end the program.

/// A failure: a message for standard error, and an exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit_code: u8,
    pub(crate) message: String,
}

impl Failure {
    /// Creates a failure for wrong usage or a diverging training. The exit code tells launchers not
    /// to restart the program, because it would fail in the same way.
    pub(crate) fn usage(message: String) -> Self {
        Self {
            exit_code: 2,
            message,
        }
    }

    /// Creates a failure that a restart may fix.
    pub(crate) fn work(message: String) -> Self {
        Self {
            exit_code: 1,
            message,
        }
    }
}

impl From<ringtree::Error> for Failure {
    fn from(error: ringtree::Error) -> Self {
        match error.kind() == ringtree::ErrorKind::Usage {
            true => Self::usage(error.to_string()),
            false => Self::work(error.to_string()),
        }
    }
}

impl From<ringtree_candle::Error> for Failure {
    fn from(error: ringtree_candle::Error) -> Self {
        match error {
            ringtree_candle::Error::Ringtree(error) => error.into(),
            other => Self::work(other.to_string()),
        }
    }
}

impl From<candle_core::Error> for Failure {
    fn from(error: candle_core::Error) -> Self {
        Self::work(error.to_string())
    }
}
