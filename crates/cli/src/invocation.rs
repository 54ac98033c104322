//! Describes how the command was invoked so that `bench` and `check-gpu` can start themselves again
//! as ranks.

use ringtree::internal::launch::local_job;
use ringtree::{Result, launch};
use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

/// The program that runs the command line, which is either `ringtree` or an interpreter.
#[derive(Clone, Debug)]
pub struct Program {
    /// The executable file.
    pub file: PathBuf,
    /// The arguments that precede the command's arguments, such as `-m ringtree`.
    pub arguments: Vec<OsString>,
}

/// An invocation of the command line.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// The program that was invoked.
    pub program: Program,
    /// The arguments of the command, such as `bench` and `all-reduce`.
    pub arguments: Vec<OsString>,
}

impl Invocation {
    /// Returns the invocation of this process, whose program is `ringtree` itself.
    pub fn of_this_process() -> Self {
        let mut words = env::args_os();
        let name = words.next().unwrap_or_default();
        Self {
            program: Program {
                // Without /proc, use the name from the command line.
                file: env::current_exe().unwrap_or_else(|_| PathBuf::from(name)),
                arguments: Vec::new(),
            },
            arguments: words.collect(),
        }
    }

    /// Runs this command again, as `ranks` ranks on this host, and returns the exit code. If
    /// `sessions` is set, each rank runs in its own session.
    ///
    /// # Errors
    /// Returns the same errors as [`launch::run`].
    pub(super) fn spawn(self, ranks: usize, sessions: bool) -> Result<i32> {
        let Program { file, arguments } = self.program;
        let arguments = [arguments, self.arguments].concat();
        let job = local_job(file, arguments, ranks);
        launch::run(&launch::Job { sessions, ..job })
    }
}
