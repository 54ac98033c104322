//! Answers about GPUs in a build without the feature `cuda`.

use crate::bench::case::Memory;
use ringtree::{Communicator, Error, Result};

/// How to get a program with GPU support.
pub(crate) const PATH: &str = "none in this build: build with `cargo build --release -p \
                               ringtree-cli --features cuda`";

fn absent() -> Error {
    Error::no_device(format!("GPU support: {PATH}"))
}

/// Fails: this build has no GPU support.
pub(crate) fn find() -> Result<()> {
    Err(absent())
}

/// Fails: this build has no GPU support.
pub(crate) fn memory(_: &Communicator) -> Result<Memory> {
    Err(absent())
}

/// Returns how to get a program with GPU support.
pub(crate) fn listed() -> String {
    PATH.to_owned()
}

/// The command `check-gpu`, which explains how to build it.
pub(crate) mod check {
    use crate::{FAILED, Invocation};

    /// The arguments, which are not read.
    #[derive(Debug, clap::Args)]
    pub(crate) struct Arguments {
        #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
        _words: Vec<std::ffi::OsString>,
    }

    /// Explains how to build the command with GPU support, and fails.
    pub(crate) fn execute(_: &Arguments, _: &Invocation) -> u8 {
        eprintln!("ringtree check-gpu: {}", super::absent());
        FAILED
    }
}
