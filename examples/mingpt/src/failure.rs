//! What ends the program early.

/// A line for standard error and an exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit_code: u8,
    pub(crate) message: String,
}

impl Failure {
    /// The program was started wrongly, or the training diverges: to start it again as it is would
    /// end in the same way, and launchers do not.
    pub(crate) fn usage(message: String) -> Self {
        Self {
            exit_code: 2,
            message,
        }
    }

    /// The work failed.
    pub(crate) fn work(message: String) -> Self {
        Self {
            exit_code: 1,
            message,
        }
    }
}

impl From<ringtree::Error> for Failure {
    fn from(error: ringtree::Error) -> Self {
        match error.is_usage() {
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
