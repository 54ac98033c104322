//! ringtree's side. What it measures is decided here and nowhere else.

use crate::arrangement::{Case, Path};
use crate::rank::Library;
use ringtree::plan::Collective;
use ringtree::{Communicator, Error, ReduceOp};

/// What ringtree does on `path`, in words for the table; or why nothing.
pub(crate) fn offer(path: Path) -> Result<&'static str, &'static str> {
    match path {
        Path::Sockets => Ok("ringtree by TCP on HOST buffers"),
        Path::Ipc => Err("nothing: ringtree has no collectives on memory of a GPU yet"),
    }
}

/// What is to be known about [`offer`]'s answer.
pub(crate) const CAVEAT: &str = "ringtree has no collectives on device buffers yet: its times are \
    of host buffers, without the copies between host and GPU that NCCL's times contain";

/// A rank of ringtree.
pub(crate) struct Own {
    comm: Communicator,
    case: Case,
    input: Vec<f32>,
    output: Vec<f32>,
}

fn failed(error: Error) -> String {
    format!("ringtree: {error}")
}

impl Own {
    /// Joins the others, as the environment says.
    pub(crate) fn join() -> Result<Self, String> {
        Ok(Self {
            comm: Communicator::from_env().map_err(failed)?,
            case: Case {
                collective: Collective::AllReduce,
                bytes: 0,
            },
            input: Vec::new(),
            output: Vec::new(),
        })
    }
}

impl Library for Own {
    fn prepare(&mut self, case: Case) -> Result<(), String> {
        let input = if case.is_in_place() { 0 } else { case.input() };
        self.case = case;
        (self.input, self.output) = (vec![0.0; input], vec![0.0; case.output()]);
        Ok(())
    }

    fn load(&mut self, input: &[f32]) -> Result<(), String> {
        match self.case.is_in_place() {
            true => self.output.copy_from_slice(input),
            false => self.input.copy_from_slice(input),
        }
        Ok(())
    }

    fn call(&mut self) -> Result<(), String> {
        let Self {
            comm,
            case,
            input,
            output,
        } = self;
        match case.collective {
            Collective::Broadcast => comm.broadcast(output, 0),
            Collective::AllGather => comm.all_gather_into(input, output),
            Collective::ReduceScatter => comm.reduce_scatter_into(input, output, ReduceOp::Sum),
            _ => comm.all_reduce(output, ReduceOp::Sum),
        }
        .map_err(failed)
    }

    fn settle(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), String> {
        self.comm.barrier().map_err(failed)
    }

    fn result(&mut self) -> Result<Vec<f32>, String> {
        Ok(self.output.clone())
    }
}
