//! The fake shows what goes wrong, by itself or planted.

use super::{Bench, bytes, until_done};
use ringtree::device::fake::{Fake, Faults, Options};
use ringtree::device::{Device, Fold};
use ringtree::{Dtype, ReduceOp};
use std::sync::Arc;

/// Whether `right`'s bytes are `left`'s after a copy on another stream that `waits`, or not.
fn is_ordered(options: Options, waits: bool) -> bool {
    let device: Arc<dyn Device> = Arc::new(Fake::with(options));
    let (first, second) = (Bench::new(&device), Bench::new(&device));
    let memory = first.memory(&[0; 2000]);
    let (left, right) = (
        memory.span(0, 1000).unwrap(),
        memory.span(1000, 1000).unwrap(),
    );
    let mut is_right = true;
    for round in 0..10 {
        let mut pinned = device.pin(1000).unwrap();
        let content = bytes(round, 1000);
        pinned.bytes_mut().unwrap().copy_from_slice(&content);
        let event = first.event();
        let pinned = pinned.whole();
        first.stream.copy_from_host(&pinned, &left).unwrap();
        first.stream.record(&event).unwrap();
        if waits {
            second.stream.wait(&event).unwrap();
        }
        second.stream.copy(&left, &right).unwrap();
        is_right &= second.read(&right) == content;
        until_done(&event);
    }
    is_right
}

#[test]
fn a_missing_wait_shows_as_a_wrong_result() {
    let options = |seed| Options {
        pauses: Some(seed),
        ..Options::default()
    };
    assert!((0..5).all(|seed| is_ordered(options(seed), true)));
    assert!(!(0..20).all(|seed| is_ordered(options(seed), false)));
}

#[test]
fn a_planted_release_shows_as_a_wrong_result() {
    let is_right = |seed| {
        let options = Options {
            pauses: Some(seed),
            faults: Faults {
                skip_wait: Some(seed % 10),
                ..Faults::default()
            },
            ..Options::default()
        };
        is_ordered(options, true)
    };
    assert!(!(0..60).all(is_right));
}

#[test]
fn a_planted_skip_leaves_out_one_fold() {
    let fake = Fake::with(Options {
        faults: Faults {
            skip_fold: Some(1),
            ..Faults::default()
        },
        ..Options::default()
    });
    let device: Arc<dyn Device> = Arc::new(fake.clone());
    let bench = Bench::new(&device);
    let memory = bench.memory(&[1, 10]);
    let (one, other) = (memory.span(0, 1).unwrap(), memory.span(1, 1).unwrap());
    let operands = [one.clone(), other];
    for expected in [11, 11, 21] {
        let fold = Fold::new(
            Dtype::U8,
            ReduceOp::Sum,
            &operands,
            std::slice::from_ref(&one),
            None,
        );
        bench.stream.fold(&fold.unwrap()).unwrap();
        assert_eq!(bench.read(&one), [expected]);
    }
    assert_eq!(fake.folds_and_waits(), (3, 0));
}

#[test]
fn a_device_without_word_operations_says_so() {
    let fake = Fake::with(Options {
        word_operations: false,
        ..Options::default()
    });
    assert!(!fake.description().word_operations);
    let (stream, words) = (fake.stream().unwrap(), fake.words(1).unwrap());
    assert!(stream.wait_word(&words.word(0).unwrap(), 1).is_err());
    assert!(stream.write_word(&words.word(0).unwrap(), 1).is_err());
}
