//! Represents the exchange of one value over PMI-1, the protocol between the launchers of MPI and
//! the processes that they start.
//!
//! Every request and every answer is a line of words of the form `name=value`, beginning with
//! `cmd`. Rank 0 puts a value, every rank waits at the barrier, and every rank gets the value.
//! Launchers differ in the order of the words, in whether `rc` is present, and in the value that
//! they return for a missing key, so only `rc` decides. Some of them end the whole job if a process
//! has initialized PMI and ends without finalizing it, so the exchange does both.

/// Maximum length of a line. Slurm loses longer ones and prints the remainder, which may contain
/// the secret, to the log of the job.
pub(crate) const LINE_BYTES_MAX: usize = 512;
/// The key of the value. Hydra loses keys of more than 63 bytes.
const KEY: &str = "ringtree";

/// What to do after a line has been received.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send this line, which includes the line break.
    Send(String),
    /// The exchange has ended with this value.
    Done(String),
}

#[derive(Clone, Copy, Debug)]
enum State {
    Initializing,
    Naming,
    Putting,
    Waiting,
    Getting,
    Finalizing,
}

impl State {
    /// Returns the command of the answer that the launcher owes.
    fn answer(self) -> &'static str {
        match self {
            State::Initializing => "response_to_init",
            State::Naming => "my_kvsname",
            State::Putting => "put_result",
            State::Waiting => "barrier_out",
            State::Getting => "get_result",
            State::Finalizing => "finalize_ack",
        }
    }
}

/// One process's end of the exchange.
pub(crate) struct Exchange {
    state: State,
    /// `true` if an MPI library of this process has initialized PMI, and will finalize it.
    is_shared: bool,
    /// Name of the launcher's table of values.
    table: String,
    /// The value: on rank 0 from the beginning, on the others once they have got it.
    value: Option<String>,
}

impl Exchange {
    /// Creates the exchange, and returns it with the first line to send. `value` is the value that
    /// rank 0 passes, and `None` on the other ranks. It must not contain spaces or line breaks.
    #[must_use]
    pub(crate) fn new(value: Option<String>, is_shared: bool) -> (Self, String) {
        let (state, line) = match is_shared {
            true => (State::Naming, "cmd=get_my_kvsname\n"),
            false => (
                State::Initializing,
                "cmd=init pmi_version=1 pmi_subversion=1\n",
            ),
        };
        let exchange = Self {
            state,
            is_shared,
            table: String::new(),
            value,
        };
        (exchange, line.to_owned())
    }

    /// Processes a line from the launcher.
    ///
    /// # Errors
    /// Returns a message if the launcher reports an error or sends an unexpected line.
    pub(crate) fn receive(&mut self, line: &str) -> Result<Next, String> {
        let word = |wanted: &str| {
            let words = line.split(' ').filter_map(|word| word.split_once('='));
            words
                .clone()
                .find(|(name, _)| *name == wanted)
                .map(|(_, value)| value.trim())
        };
        let expected = self.state.answer();
        // The line may contain the secret, so the message omits the rest of it.
        let command = word("cmd").unwrap_or("nothing");
        if command != expected {
            return Err(format!("it answered {command:?} instead of {expected:?}"));
        }
        if let Some(code) = word("rc").filter(|code| *code != "0") {
            return Err(format!("it answered {expected} with the error code {code}"));
        }
        let (state, request) = match self.state {
            State::Initializing => (State::Naming, "get_my_kvsname".to_owned()),
            State::Naming => {
                self.table = word("kvsname").unwrap_or_default().to_owned();
                match &self.value {
                    Some(value) => {
                        let request = format!("put kvsname={} key={KEY} value={value}", self.table);
                        (State::Putting, request)
                    }
                    None => (State::Waiting, "barrier_in".to_owned()),
                }
            }
            State::Putting => (State::Waiting, "barrier_in".to_owned()),
            State::Waiting => {
                let request = format!("get kvsname={} key={KEY}", self.table);
                (State::Getting, request)
            }
            State::Getting => {
                self.value = word("value").map(str::to_owned);
                if self.is_shared {
                    return self.end();
                }
                (State::Finalizing, "finalize".to_owned())
            }
            State::Finalizing => return self.end(),
        };
        let line = format!("cmd={request}\n");
        if line.len() > LINE_BYTES_MAX {
            return Err("the name of its table of values is too long".to_owned());
        }
        self.state = state;
        Ok(Next::Send(line))
    }

    fn end(&mut self) -> Result<Next, String> {
        let value = self.value.take();
        value
            .map(Next::Done)
            .ok_or_else(|| "it did not return rank 0's address".to_owned())
    }
}

#[cfg(test)]
mod tests;
