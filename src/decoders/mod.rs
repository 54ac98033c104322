//! Lists all decoders of bytes that come from outside this process.
//!
//! *Purpose.* The fuzzer in `fuzz/` and the tests that replay its corpus (`tests`) run the
//! functions in this list. Nothing else compiles this module. A decoder that is not in the list is
//! not fuzzed, so code that reads a new kind of message or file must add an entry.
//!
//! *Invariants.* [`Decoder::run`] accepts any bytes. It panics if the decoder panics or breaks a
//! promise: a decoded value that is encoded and decoded again must not change, and an input that
//! does not prove that its sender holds the secret must not be accepted.
//!
//! *May import* `link`, `sys`, `control`, `bootstrap`, `launch`, `ddp`, `plan`, `protocol` and the
//! base files.

#![forbid(unsafe_code)]

mod control;
mod files;
mod handshake;
mod links;
mod session;
#[cfg(test)]
mod tests;

/// A decoder, the name of its corpus, and initial inputs for it.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    /// The name of the decoder, which is also the name of its corpus directory.
    pub name: &'static str,
    /// Decodes arbitrary bytes and checks the result.
    pub run: fn(&[u8]),
    /// Returns valid or nearly valid inputs, with which the fuzzer begins.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All decoders.
pub const DECODERS: &[Decoder] = &[
    links::FRAME,
    links::STREAM,
    links::CELLS_OF_A_PEER,
    handshake::ACCEPTOR,
    handshake::INITIATOR,
    handshake::TAMPERED,
    handshake::SEALED,
    handshake::FD_MESSAGE,
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

/// The unread part of an input. Numbers and arrays that extend beyond its end are filled with
/// zeros.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// Removes and returns the next `count` bytes, or all bytes if fewer are left.
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
