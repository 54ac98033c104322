//! What is handed to the engine: a call that was prepared, and what it takes to carry it out.

use super::gate::Gate;
use super::program::Program;
use crate::protocol::call::Call;
use crate::reduce::Kernel;
use crate::sys::memory::Region;
use crate::transport::LinkError;
use std::sync::Arc;
use std::time::Duration;

/// A call, described once and made any number of times.
pub struct Prepared {
    /// What all ranks must agree on; its sequence number means nothing here.
    pub call: Call,
    /// The call's digest.
    pub digest: u32,
    /// What to do.
    pub program: Arc<Program>,
    /// How to fold.
    pub arithmetic: Arithmetic,
}

impl Prepared {
    /// The call under the number it was given.
    #[must_use]
    pub fn numbered(&self, sequence: u64) -> Call {
        Call {
            sequence,
            ..self.call.clone()
        }
    }
}

/// What it takes to start an operation.
pub struct Posting {
    /// The call.
    pub prepared: Arc<Prepared>,
    /// Its number.
    pub sequence: u64,
    /// What to do it on.
    pub buffer: Region,
    /// How far [`super::Engine::run`] has come with it.
    pub progress: Progress,
    /// How long it may take.
    pub timeout: Duration,
    /// What it waits for before it begins, and opens when it has ended.
    pub gate: Option<Box<dyn Gate>>,
}

/// What an operation does to bytes: its kernel, its element size and what `avg` divides by.
#[derive(Clone, Copy)]
pub struct Arithmetic {
    /// The kernel, where the collective reduces.
    pub kernel: Option<Kernel>,
    /// Bytes per element.
    pub element_bytes: usize,
    /// What the complete result is divided by.
    pub divisor: Option<usize>,
}

/// How far a program has been run in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The place in the order.
    pub(super) at: usize,
    /// For a send to several peers, one by one: which of them it is at.
    pub(super) flow: Option<usize>,
    /// Bytes of this step, or of this flow of it, that are done.
    pub(super) bytes: usize,
}

/// A link that failed an operation.
pub(super) struct Broken {
    pub(super) peer: usize,
    pub(super) error: LinkError,
}
