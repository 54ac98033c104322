//! How the command was called, and how it is called again: `bench` and `check-gpu` start
//! themselves as ranks.

use ringtree::{Result, launch};
use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

/// What starts the command line: the program `ringtree`, or an interpreter that is told to.
#[derive(Clone, Debug)]
pub struct Program {
    /// The file that is executed.
    pub file: PathBuf,
    /// What it is told before the command's own arguments.
    pub arguments: Vec<OsString>,
}

/// One call of the command line.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// What was called.
    pub program: Program,
    /// The command's own arguments: `bench`, `all-reduce`.
    pub arguments: Vec<OsString>,
}

impl Invocation {
    /// That of this process, whose program is the command line alone.
    pub fn of_this_process() -> Self {
        let mut words = env::args_os();
        let name = words.next().unwrap_or_default();
        Self {
            program: Program {
                // Where there is no /proc, the name that it was called by.
                file: env::current_exe().unwrap_or_else(|_| PathBuf::from(name)),
                arguments: Vec::new(),
            },
            arguments: words.collect(),
        }
    }

    /// Makes the same call as so many ranks on this host, maybe each in a session of its own; their
    /// exit code.
    ///
    /// # Errors
    /// Those of [`launch::run`].
    pub(super) fn spawn(self, ranks: usize, sessions: bool) -> Result<i32> {
        let Program { file, arguments } = self.program;
        let arguments = [arguments, self.arguments].concat();
        let job = launch::on_this_host(file, arguments, ranks);
        launch::run(&launch::Job { sessions, ..job })
    }
}
