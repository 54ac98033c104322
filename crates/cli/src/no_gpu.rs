//! Replaces the GPU functions in builds without the `cuda` feature.

use crate::bench::case::Memory;
use ringtree::{Communicator, Error, ErrorKind, Result};

/// The path that GPU buffers take, as shown by `ringtree doctor`.
pub(crate) const PATH: &str = "not included in this build or in the Python package; build the \
                               command from a checkout of the repository with `cargo build \
                               --release -p ringtree-cli --features cuda`";

fn absent() -> Error {
    Error::new(ErrorKind::NoDevice, format!("GPU support: {PATH}"))
}

/// Returns an error because this build has no GPU support.
pub(crate) fn find() -> Result<()> {
    Err(absent())
}

/// Returns an error because this build has no GPU support.
pub(crate) fn memory(_: &Communicator) -> Result<Memory> {
    Err(absent())
}

/// Returns a line that explains how to build with GPU support.
pub(crate) fn listed() -> String {
    PATH.to_owned()
}

/// Replaces the command `check-gpu`.
pub(crate) mod check {
    use crate::{FAILED, Invocation};

    /// The arguments of `ringtree check-gpu`, which are ignored.
    #[derive(Debug, clap::Args)]
    pub(crate) struct Arguments {
        #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
        _words: Vec<std::ffi::OsString>,
    }

    /// Explains how to build with GPU support and returns the exit code for a failure.
    pub(crate) fn execute(_: &Arguments, _: &Invocation) -> u8 {
        eprintln!("ringtree check-gpu: {}", super::absent());
        FAILED
    }
}
