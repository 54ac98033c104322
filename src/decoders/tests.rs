//! Runs every decoder on its seeds, on modified seeds, and on the fuzzer's corpus. Checks that no
//! decoder panics, breaks a promise or holds more memory than the length of its input justifies.

use super::{DECODERS, Decoder};
use crate::sys::counting::most_held_in;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

/// Number of bytes that a decoder may hold for any input. A sequence reserves at most 1 MiB before
/// its elements are read, and the buffers of links have fixed sizes.
const HELD_BYTES_MAX: usize = 3 << 20;
/// Number of additional bytes for each byte of the input, because a short encoded element can
/// become a large value.
const HELD_PER_BYTE_MAX: usize = 256;

/// Runs `decoder` on `bytes`. If the decoder panics or holds too much memory, panics with a message
/// that contains the input.
fn run(decoder: &Decoder, bytes: &[u8]) {
    let (outcome, held) = most_held_in(|| std::panic::catch_unwind(|| (decoder.run)(bytes)));
    let allowed = HELD_BYTES_MAX + HELD_PER_BYTE_MAX * bytes.len();
    let name = decoder.name;
    assert!(outcome.is_ok(), "{name} on {bytes:02x?}");
    assert!(held <= allowed, "{name} held {held} bytes of {bytes:02x?}");
}

/// Returns the decoder's seeds and the inputs that the fuzzer has found.
fn inputs(decoder: &Decoder) -> Vec<Vec<u8>> {
    let mut inputs = (decoder.seeds)();
    for entry in fs::read_dir(corpus().join(decoder.name)).unwrap() {
        inputs.push(fs::read(entry.unwrap().path()).unwrap());
    }
    inputs
}

fn corpus() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "fuzz", "corpus"]
        .iter()
        .collect()
}

#[test]
fn decoders_and_corpus_directories_match() {
    let directories = fs::read_dir(corpus()).unwrap();
    let directories = directories.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names = DECODERS.iter().map(|decoder| decoder.name.to_owned());
    assert_eq!(directories.collect::<BTreeSet<_>>(), names.collect());
}

#[test]
fn seeds_and_corpus_inputs_never_panic_or_exceed_memory() {
    for decoder in DECODERS {
        for input in inputs(decoder) {
            run(decoder, &input);
        }
    }
}

#[test]
fn truncated_and_modified_seeds_never_panic_or_exceed_memory() {
    for decoder in DECODERS {
        run(decoder, &[]);
        for seed in (decoder.seeds)() {
            // Long inputs repeat themselves, so a few hundred positions of each are sufficient.
            for at in (0..seed.len()).step_by(seed.len() / 256 + 1) {
                run(decoder, &seed[..at]);
                for byte in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut changed = seed.clone();
                    changed[at] = byte;
                    run(decoder, &changed);
                }
            }
        }
    }
}
