//! Every decoder of bytes that come from outside this process, as one list.
//!
//! *Purpose.* The fuzzer in `fuzz/` and the test that replays its corpus (`replay`) run the same
//! functions on the same list. Only they compile this module. A decoder that is not on the list is
//! not fuzzed: what reads a new kind of message or file adds a line.
//!
//! *Invariants.* [`Decoder::run`] takes any bytes. It panics if the code under it does, or if it
//! breaks a promise: what decodes is decoded again from its own encoding to an equal value; what
//! proves nothing is never believed.
//!
//! *May import* `link`, `sys`, `control`, `bootstrap`, `launch`, `ddp`, `plan`, `protocol` and the
//! base files.

#![forbid(unsafe_code)]

mod control;
mod files;
mod handshake;
mod links;
#[cfg(test)]
mod replay;
mod session;

/// A decoder, the name of its corpus, and inputs that it accepts.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    /// What it decodes, in words that may be a folder's name.
    pub name: &'static str,
    /// Decodes any bytes, and checks what came of it.
    pub run: fn(&[u8]),
    /// What the encoders write: where a fuzzer starts.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const DECODERS: &[Decoder] = &[
    links::FRAME,
    links::STREAM,
    links::CELLS_OF_A_PEER,
    handshake::ACCEPTOR,
    handshake::INITIATOR,
    handshake::TAMPERED,
    handshake::SEALED,
    handshake::HAND_OVER,
    control::RELAY,
    control::JOIN,
    control::UNIQUE_ID,
    control::LAUNCHERS,
    control::REPORTS,
    session::MESSAGE,
    session::SESSION,
    session::NOTICES,
    files::TUNING,
    files::MANIFEST,
    files::TENSORS,
    files::NAMES,
    files::RECORDING,
];

/// What is left of an input: its bytes as numbers, zeros once it is used up.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// At most `count` bytes.
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.take(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
