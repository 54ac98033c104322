//! Memory: bounds, and when it is freed.

use super::{Bench, bytes, devices, until, until_done};
use ringtree::device::cuda::Cuda;
use ringtree::device::fake::{Fake, Options};
use ringtree::device::{Cast, Device, Fold};
use ringtree::{Dtype, Error, ReduceOp};
use std::sync::Arc;

fn refused<T>(result: ringtree::Result<T>, what: &str) {
    assert!(matches!(result, Err(Error::Usage(_))), "{what}");
}

#[test]
fn what_is_out_of_bounds_or_does_not_fit_is_refused() {
    for (_, device) in devices() {
        let stream = device.stream().unwrap();
        let memory = device.allocate(100).unwrap();
        let pinned = device.pin(100).unwrap();
        let span = |offset, bytes| memory.span(offset, bytes).unwrap();
        refused(memory.span(1, 100), "beyond the end");
        refused(memory.span(usize::MAX, 2), "an offset that overflows");
        refused(span(10, 20).part(10, 11), "beyond the part");
        refused(pinned.span(101, 0), "beyond pinned memory");
        let words = device.words(3).unwrap();
        refused(words.word(words.count()), "beyond the words");
        refused(stream.copy(&span(0, 10), &span(20, 11)), "lengths");
        refused(stream.copy(&span(0, 10), &span(9, 10)), "overlap");
        let part = pinned.span(0, 3).unwrap();
        refused(stream.copy_to_host(&span(0, 4), &part), "lengths");
        refused(stream.copy_from_host(&part, &span(0, 2)), "lengths");
        assert_eq!(span(10, 20).part(5, 15).unwrap().offset(), 15);
        stream.copy(&span(3, 0), &span(3, 0)).unwrap();
        stream.synchronize().unwrap();
    }
}

#[test]
fn folds_and_casts_that_mean_nothing_are_refused() {
    let device = Fake::new();
    let memory = device.allocate(400).unwrap();
    let span = |offset, bytes| memory.span(offset, bytes).unwrap();
    let (a, b, c) = (span(0, 40), span(40, 40), span(80, 40));
    let fold = |dtype, op, operands: &[_], destinations: &[_], divisor| {
        Fold::new(dtype, op, operands, destinations, divisor).map(|_| ())
    };
    let (sum, f32) = (ReduceOp::Sum, Dtype::F32);
    let two = [a.clone(), b.clone()];
    fold(f32, sum, &two, &[c.clone(), a.clone()], Some(2)).unwrap();
    refused(fold(f32, sum, &[], &two, None), "no operand");
    refused(fold(f32, sum, &two, &[], None), "no destination");
    refused(
        fold(f32, ReduceOp::Bxor, &two, &two, None),
        "bits of floats",
    );
    refused(fold(f32, sum, &two, &two, Some(0)), "divided by zero");
    refused(fold(f32, ReduceOp::Max, &two, &two, Some(2)), "divided");
    refused(fold(f32, sum, &two, &[span(0, 44)], None), "lengths");
    refused(
        fold(f32, sum, &[span(0, 6)], &[span(8, 6)], None),
        "half an element",
    );
    refused(fold(f32, sum, &two, &[span(4, 40)], None), "overlap");
    refused(
        fold(f32, sum, &two, &[c.clone(), c.clone()], None),
        "the same destination twice",
    );
    let many = vec![a.clone(); 1000];
    refused(
        fold(f32, sum, &many, std::slice::from_ref(&c), None),
        "many",
    );
    let cast = |from, from_dtype, to, to_dtype| Cast::new(from, from_dtype, to, to_dtype, 1.0);
    let half = span(200, 20);
    cast(&a, f32, &half, Dtype::Bf16).unwrap();
    refused(cast(&a, f32, &b, Dtype::F16), "lengths");
    refused(cast(&a, f32, &b, f32), "no conversion");
    refused(cast(&a, f32, &span(20, 20), Dtype::F16), "overlap");
}

#[test]
fn memory_of_another_gpu_is_refused() {
    let (one, other) = (
        Fake::new(),
        Fake::with(Options {
            gpu: 1,
            ..Options::default()
        }),
    );
    assert_ne!(one.description().unique_id, other.description().unique_id);
    let (here, there) = (one.allocate(4).unwrap(), other.allocate(4).unwrap());
    let stream = one.stream().unwrap();
    refused(stream.copy(&there.whole(), &here.whole()), "another GPU");
}

/// Pairs of devices, of which the first reaches the second.
fn neighbours() -> Vec<[Arc<dyn Device>; 2]> {
    let fake = |gpu, peers| -> Arc<dyn Device> {
        Arc::new(Fake::with(Options {
            gpu,
            peers,
            ..Options::default()
        }))
    };
    let mut pairs = vec![[fake(0, &[1]), fake(1, &[])]];
    if let (Ok(one), Ok(other)) = (Cuda::open(0), Cuda::open(1)) {
        pairs.push([Arc::new(one), Arc::new(other)]);
    }
    pairs.retain(|[one, other]| one.can_reach(&other.description().unique_id));
    pairs
}

#[test]
fn memory_of_a_gpu_that_is_reached_is_used_once_it_is_adopted() {
    for [one, other] in neighbours() {
        let (here, there) = (Bench::new(&one), Bench::new(&other));
        let (own, theirs) = (here.memory(&[0; 1000]), there.memory(&bytes(1, 1000)));
        let refused_copy = here.stream.copy(&theirs.whole(), &own.whole());
        refused(refused_copy, "it was not adopted");
        let adopted = one.adopt(&theirs).unwrap();
        // The other device may forget it.
        drop(theirs);
        here.stream.copy(&adopted.whole(), &own.whole()).unwrap();
        assert_eq!(here.read(&own.whole()), bytes(1, 1000));
        assert!(one.adopt(&own).unwrap().is_same(&own));
    }
}

#[test]
fn memory_of_a_gpu_that_is_not_reached_is_not_adopted() {
    let device = |gpu| {
        Fake::with(Options {
            gpu,
            ..Options::default()
        })
    };
    let theirs = device(1).allocate(4).unwrap();
    let error = device(0).adopt(&theirs).unwrap_err();
    assert!(matches!(error, Error::Device(_)), "{error}");
}

#[test]
fn a_device_has_no_more_memory_than_it_says() {
    for (name, device) in devices() {
        let bytes = device.description().memory_bytes;
        let error = device.allocate(bytes.saturating_mul(2)).unwrap_err();
        assert!(matches!(error, Error::Device(_)), "{name}: {error}");
        device.allocate(0).unwrap();
        let one = device.allocate(1).unwrap();
        assert_eq!(one.bytes(), 1);
    }
}

#[test]
fn dropped_memory_lives_until_no_operation_uses_it() {
    for (name, device) in devices() {
        let bench = Bench::new(&device);
        let words = device.words(1).unwrap();
        let result = bench.memory(&[0; 1000]);
        let source = bench.memory(&bytes(5, 1000));
        bench.hold_back(&words);
        bench.stream.copy(&source.whole(), &result.whole()).unwrap();
        drop(source);
        let event = bench.event();
        bench.stream.record(&event).unwrap();
        // What comes now must not get the memory that the copy will still read.
        let others: Vec<_> = (0..10).map(|_| device.allocate(1000).unwrap()).collect();
        Bench::release(&words);
        until_done(&event);
        assert_eq!(bench.read(&result.whole()), bytes(5, 1000), "{name}");
        drop(others);
    }
}

#[test]
fn nothing_dropped_is_kept_for_ever() {
    let fake = Fake::new();
    let device: Arc<dyn Device> = Arc::new(fake.clone());
    let bench = Bench::new(&device);
    let words = device.words(1).unwrap();
    let memory = bench.memory(&[1; 1000]);
    bench.hold_back(&words);
    let (from, to) = (memory.span(0, 10).unwrap(), memory.span(10, 10).unwrap());
    bench.stream.copy(&from, &to).unwrap();
    drop((memory, from, to));
    assert_eq!(fake.allocated_bytes(), 1000);
    drop(bench);
    Bench::release(&words);
    until("the memory is freed", || fake.allocated_bytes() == 0);
}

#[test]
fn memory_may_be_dropped_while_a_stream_waits_and_is_freed_after_it() {
    for (name, device) in devices() {
        let bench = Bench::new(&device);
        let words = device.words(1).unwrap();
        let memory = bench.memory(&bytes(1, 1000));
        let others: Vec<_> = (0..3).map(|_| device.allocate(1000).unwrap()).collect();
        let (pinned, unused) = (device.pin(10).unwrap(), device.words(1).unwrap());
        bench.hold_back(&words);
        // The driver may wait for the stream before it frees; this must not wait for the driver.
        drop((others, pinned, unused));
        Bench::release(&words);
        assert_eq!(bench.read(&memory.whole()), bytes(1, 1000), "{name}");
    }
}

#[test]
fn what_was_dropped_while_a_stream_waited_can_be_allocated_again() {
    let devices = devices().into_iter().filter(|(name, _)| *name == "cuda");
    for (_, device) in devices {
        let bench = Bench::new(&device);
        let quarter = device.description().memory_bytes / 4;
        // Twice what there is.
        for _ in 0..8 {
            let words = device.words(1).unwrap();
            bench.hold_back(&words);
            // Streams of other tests may be waiting for a while.
            until("there is room", || device.allocate(quarter).is_ok());
            Bench::release(&words);
            bench.finish();
        }
    }
}

#[test]
fn operations_that_nobody_looks_at_are_forgotten_too() {
    let fake = Fake::new();
    let mut devices = devices();
    devices.push(("counted", Arc::new(fake.clone())));
    for (name, device) in devices {
        let bench = Bench::new(&device);
        let memory = bench.memory(&bytes(1, 100));
        for _ in 0..2000 {
            let passing = device.allocate(100).unwrap();
            bench
                .stream
                .copy(&memory.whole(), &passing.whole())
                .unwrap();
        }
        assert_eq!(bench.read(&memory.whole()), bytes(1, 100), "{name}");
    }
    assert_eq!(fake.allocated_bytes(), 0);
}
