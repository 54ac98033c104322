//! What every device does, pretended or real. The suite runs on the fake always, with and without
//! random pauses; on a GPU where there is one; and through the calls of CUDA on a pretended driver.

#![allow(clippy::unwrap_used)]

mod faults;
mod folds;
mod memory;
mod pretended;
mod processes;
mod slices;
mod streams;

use ringtree::Error;
use ringtree::device::cuda::Cuda;
use ringtree::device::fake::{Fake, Options};
use ringtree::device::{Device, Event, Memory, Span, Stream, Words};
use std::io::Write;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

/// Nothing here takes this long, on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The devices to test: each with the name by which a child process makes one like it.
fn devices() -> Vec<(&'static str, Arc<dyn Device>)> {
    let mut names = vec!["fake", "pausing"];
    names.extend(gpu().map(|_| "cuda"));
    names.into_iter().map(|name| (name, device(name))).collect()
}

/// The GPU, if there is one.
fn gpu() -> Option<Cuda> {
    match Cuda::open(0) {
        Ok(gpu) => return Some(gpu),
        Err(why) if std::env::var_os(pretended::REQUIRED).is_some() => panic!("{why}"),
        Err(why @ Error::Device(_)) => panic!("there is a GPU, but {why}"),
        // Said once, past the harness, which keeps to itself what a test that passes prints.
        Err(why) => SKIPPED.call_once(|| {
            let _ = writeln!(std::io::stderr(), "not tested on a GPU: {why}");
        }),
    }
    None
}

static SKIPPED: Once = Once::new();

fn device(name: &str) -> Arc<dyn Device> {
    match name {
        "fake" => Arc::new(Fake::new()),
        "pausing" => Arc::new(Fake::with(Options {
            pauses: Some(1),
            ..Options::default()
        })),
        "cuda" => Arc::new(Cuda::open(0).unwrap()),
        other => panic!("no device is called {other}"),
    }
}

/// A device and a stream of it, with the few lines that every test would repeat.
struct Bench {
    device: Arc<dyn Device>,
    stream: Arc<dyn Stream>,
}

impl Bench {
    fn new(device: &Arc<dyn Device>) -> Self {
        let stream = device.stream().unwrap();
        let device = device.clone();
        Bench { device, stream }
    }

    /// New memory with this content.
    fn memory(&self, content: &[u8]) -> Memory {
        let memory = self.device.allocate(content.len()).unwrap();
        self.write(&memory.whole(), content);
        memory
    }

    fn write(&self, span: &Span, content: &[u8]) {
        self.write_later(span, content);
        self.finish();
    }

    /// Enqueues the copy, and drops what it copies from.
    fn write_later(&self, span: &Span, content: &[u8]) {
        let mut pinned = self.device.pin(content.len()).unwrap();
        pinned.bytes_mut().unwrap().copy_from_slice(content);
        self.stream.copy_from_host(&pinned.whole(), span).unwrap();
    }

    /// What is there when all that this stream was told is done.
    fn read(&self, span: &Span) -> Vec<u8> {
        let mut pinned = self.device.pin(span.bytes()).unwrap();
        self.stream.copy_to_host(span, &pinned.whole()).unwrap();
        self.finish();
        pinned.bytes_mut().unwrap().to_vec()
    }

    fn event(&self) -> Event {
        self.device.event().unwrap()
    }

    fn finish(&self) {
        let event = self.event();
        self.stream.record(&event).unwrap();
        until_done(&event);
    }

    /// Holds the stream back until the words' first is written.
    fn hold_back(&self, words: &Words) {
        self.stream.wait_word(&words.word(0).unwrap(), 1).unwrap();
    }

    fn release(words: &Words) {
        words.word(0).unwrap().store(1);
    }
}

fn until_done(event: &Event) {
    until("an event is done", || event.is_done().unwrap());
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Bytes that differ from their neighbours, and between seeds.
fn bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..count).map(next).collect()
}
