//! Whatever bytes come from outside, a decoder ends in a value or a refusal, and never takes more
//! than a small multiple of their length in memory: every decoder on its seeds, on the corpus that
//! the fuzzer has found, and on simple changes of both.

#![allow(clippy::unwrap_used)]

use ringtree::decoders::{DECODERS, Decoder};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

/// Counts what this thread holds, and the most that it has held.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.set(HELD.get() + layout.size() as isize);
        MOST.set(MOST.get().max(HELD.get()));
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as isize);
        // SAFETY: the pointer came from `alloc` above, hence from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Bytes that a decoder may hold whatever comes: a sequence reserves at most 1 MiB before its
/// elements are read, and buffers of links have fixed sizes.
const HELD_BYTES_MAX: usize = 3 << 20;
/// And for each byte of its input: a short element is a large value.
const HELD_PER_BYTE_MAX: usize = 256;

/// Runs `decoder` on `bytes`; says which input it was if that goes wrong.
fn run(decoder: &Decoder, bytes: &[u8]) {
    let before = HELD.get();
    MOST.set(before);
    let outcome = std::panic::catch_unwind(|| (decoder.run)(bytes));
    let held = usize::try_from(MOST.get() - before).unwrap();
    let allowed = HELD_BYTES_MAX + HELD_PER_BYTE_MAX * bytes.len();
    let name = decoder.name;
    assert!(outcome.is_ok(), "{name} on {bytes:02x?}");
    assert!(held <= allowed, "{name} held {held} bytes of {bytes:02x?}");
}

/// What the decoder's encoder writes, and what the fuzzer has found.
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
fn every_decoder_has_a_corpus_and_every_corpus_a_decoder() {
    let folders = fs::read_dir(corpus()).unwrap();
    let folders = folders.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names = DECODERS.iter().map(|decoder| decoder.name.to_owned());
    assert_eq!(folders.collect::<BTreeSet<_>>(), names.collect());
}

#[test]
fn the_corpus_ends_in_values_and_refusals() {
    for decoder in DECODERS {
        for input in inputs(decoder) {
            run(decoder, &input);
        }
    }
}

#[test]
fn what_is_cut_or_has_an_extreme_byte_does_too() {
    for decoder in DECODERS {
        run(decoder, &[]);
        for seed in (decoder.seeds)() {
            // Long inputs repeat themselves; a few hundred places of each are enough.
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
