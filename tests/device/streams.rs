//! Streams: in order, asynchronous, ordered among each other by events and words.

use super::{Bench, bytes, devices, until, until_done};
use ringtree::Error;
use ringtree::device::fake::Fake;

#[test]
fn a_stream_is_asynchronous_and_keeps_its_order() {
    for (name, device) in devices() {
        let bench = Bench::new(&device);
        let words = device.words(1).unwrap();
        let memory = bench.memory(&bytes(1, 3000));
        let event = bench.event();
        bench.hold_back(&words);
        // Each copy needs the one before it.
        for step in 0..20 {
            let from = memory.span(step % 3 * 1000, 1000).unwrap();
            let to = memory.span((step + 1) % 3 * 1000, 1000).unwrap();
            bench.stream.copy(&from, &to).unwrap();
        }
        bench.stream.record(&event).unwrap();
        // All of that was accepted while the stream stood still.
        assert!(!event.is_done().unwrap(), "{name}");
        Bench::release(&words);
        until_done(&event);
        let expected = bytes(1, 1000).repeat(3);
        assert_eq!(bench.read(&memory.whole()), expected, "{name}");
    }
}

#[test]
fn an_event_orders_two_streams_and_is_used_again() {
    for (name, device) in devices() {
        let (first, second) = (Bench::new(&device), Bench::new(&device));
        let (there, back) = (first.event(), first.event());
        let memory = first.memory(&vec![0; 64 << 10]);
        let half = 32 << 10;
        let (left, right) = (
            memory.span(0, half).unwrap(),
            memory.span(half, half).unwrap(),
        );
        for round in 0..50 {
            let content = bytes(round, half);
            let mut pinned = device.pin(half).unwrap();
            pinned.bytes_mut().unwrap().copy_from_slice(&content);
            first.stream.wait(&back).unwrap();
            let pinned = pinned.whole();
            first.stream.copy_from_host(&pinned, &left).unwrap();
            first.stream.record(&there).unwrap();
            second.stream.wait(&there).unwrap();
            second.stream.copy(&left, &right).unwrap();
            second.stream.record(&back).unwrap();
            if round % 10 == 9 {
                assert_eq!(second.read(&right), content, "{name}, round {round}");
            }
        }
    }
}

#[test]
fn an_event_is_done_until_it_is_recorded_and_a_wait_means_the_recording_before_it() {
    for (name, device) in devices() {
        let (held, free) = (Bench::new(&device), Bench::new(&device));
        let words = device.words(1).unwrap();
        let event = held.event();
        assert!(event.is_done().unwrap(), "{name}");
        free.stream.wait(&event).unwrap();
        held.hold_back(&words);
        held.stream.record(&event).unwrap();
        // The wait above came before the recording, so this stream goes on.
        free.finish();
        assert!(!event.is_done().unwrap(), "{name}");
        Bench::release(&words);
        until_done(&event);
    }
}

#[test]
fn a_word_is_written_by_streams_and_by_the_host() {
    for (name, device) in devices() {
        let (writer, waiter) = (Bench::new(&device), Bench::new(&device));
        let words = device.words(1000).unwrap();
        let (word, last) = (words.word(7).unwrap(), words.word(999).unwrap());
        let memory = writer.memory(&[0; 256]);
        for round in 1..30_u32 {
            let content = bytes(round.into(), 256);
            let mut pinned = device.pin(256).unwrap();
            pinned.bytes_mut().unwrap().copy_from_slice(&content);
            let pinned = pinned.whole();
            waiter.stream.wait_word(&word, round).unwrap();
            let whole = memory.whole();
            writer.stream.copy_from_host(&pinned, &whole).unwrap();
            writer.stream.write_word(&word, round).unwrap();
            assert_eq!(waiter.read(&whole), content, "{name}, round {round}");
            assert_eq!(word.load(), round, "{name}");
        }
        // The host's deadline: nobody else will write this one.
        let event = waiter.event();
        waiter.stream.wait_word(&last, 5).unwrap();
        waiter.stream.record(&event).unwrap();
        last.store(4);
        writer.finish();
        assert!(!event.is_done().unwrap(), "{name}");
        last.store(6);
        until_done(&event);
    }
}

#[test]
fn a_word_may_wrap_around() {
    for (_, device) in devices() {
        let bench = Bench::new(&device);
        let words = device.words(1).unwrap();
        let word = words.word(0).unwrap();
        word.store(2);
        // 2 comes three after 2³² − 1.
        bench.stream.wait_word(&word, u32::MAX).unwrap();
        bench.finish();
        word.store(u32::MAX);
        let event = bench.event();
        bench.stream.wait_word(&word, 1).unwrap();
        bench.stream.record(&event).unwrap();
        assert!(!event.is_done().unwrap());
        word.store(1);
        until_done(&event);
    }
}

#[test]
fn a_dropped_stream_still_does_what_it_was_told() {
    for (name, device) in devices() {
        let bench = Bench::new(&device);
        let words = device.words(1).unwrap();
        let memory = bench.memory(&bytes(1, 100));
        let event = {
            let other = Bench::new(&device);
            let event = other.event();
            other.hold_back(&words);
            let (from, to) = (memory.span(0, 50).unwrap(), memory.span(50, 50).unwrap());
            other.stream.copy(&from, &to).unwrap();
            other.stream.record(&event).unwrap();
            event
        };
        assert!(!event.is_done().unwrap(), "{name}");
        Bench::release(&words);
        until_done(&event);
        let expected = bytes(1, 50).repeat(2);
        assert_eq!(bench.read(&memory.whole()), expected, "{name}");
    }
}

#[test]
fn several_threads_share_a_device_and_a_stream() {
    for (name, device) in devices() {
        let shared = Bench::new(&device);
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let (shared, device) = (&shared, &device);
                scope.spawn(move || {
                    let own = Bench::new(device);
                    let memory = own.memory(&bytes(seed, 5000));
                    let copy = device.allocate(5000).unwrap();
                    shared.stream.copy(&memory.whole(), &copy.whole()).unwrap();
                    let event = own.event();
                    shared.stream.record(&event).unwrap();
                    own.stream.wait(&event).unwrap();
                    assert_eq!(own.read(&copy.whole()), bytes(seed, 5000), "{name}");
                });
            }
        });
    }
}

#[test]
fn synchronize_waits_for_everything() {
    for (name, device) in devices() {
        let bench = Bench::new(&device);
        let mut pinned = device.pin(10).unwrap();
        let memory = bench.memory(&bytes(3, 10));
        let (whole, to) = (memory.whole(), pinned.whole());
        bench.stream.copy_to_host(&whole, &to).unwrap();
        drop(to);
        bench.stream.synchronize().unwrap();
        assert_eq!(pinned.bytes_mut().unwrap(), bytes(3, 10), "{name}");
    }
}

#[test]
fn a_captured_stream_is_refused_in_words_that_help() {
    let fake = Fake::new();
    let stream = fake.captured_stream().unwrap();
    let error = stream.refuse_capture().unwrap_err();
    assert!(matches!(error, Error::Usage(_)));
    assert!(error.to_string().contains("before or after the capture"));
    for (_, device) in devices() {
        device.stream().unwrap().refuse_capture().unwrap();
    }
}

#[test]
fn pinned_memory_comes_back_when_the_event_behind_its_copy_was_seen() {
    for (name, device) in devices() {
        let bench = Bench::new(&device);
        let words = device.words(1).unwrap();
        let memory = bench.memory(&bytes(1, 10));
        let mut pinned = device.pin(10).unwrap();
        let event = bench.event();
        bench.hold_back(&words);
        bench
            .stream
            .copy_to_host(&memory.whole(), &pinned.whole())
            .unwrap();
        bench.stream.record(&event).unwrap();
        let error = pinned.bytes_mut().unwrap_err();
        assert!(matches!(error, Error::Usage(_)), "{name}: {error}");
        Bench::release(&words);
        until("the event", || event.is_done().unwrap());
        assert_eq!(pinned.bytes_mut().unwrap(), bytes(1, 10), "{name}");
    }
}

#[test]
fn an_event_lets_go_of_nothing_that_came_after_it() {
    for (name, device) in devices() {
        let bench = Bench::new(&device);
        let words = device.words(1).unwrap();
        let (source, result) = (bench.memory(&bytes(1, 500)), bench.memory(&[0; 500]));
        let mut pinned = device.pin(500).unwrap();
        let (before, behind) = (bench.event(), bench.event());
        bench.stream.copy(&result.whole(), &source.whole()).unwrap();
        bench.stream.record(&before).unwrap();
        bench.hold_back(&words);
        bench.write_later(&result.whole(), &bytes(2, 500));
        let (from, to) = (result.whole(), pinned.whole());
        bench.stream.copy_to_host(&from, &to).unwrap();
        bench.stream.record(&behind).unwrap();
        drop((source, result, from, to));
        until_done(&before);
        assert!(pinned.bytes_mut().is_err(), "{name}");
        Bench::release(&words);
        until_done(&behind);
        assert_eq!(pinned.bytes_mut().unwrap(), bytes(2, 500), "{name}");
    }
}
