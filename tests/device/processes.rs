//! Memory and words of one process in another: this test binary starts itself as the peer.

use super::{Bench, bytes, device, devices};
use ringtree::device::{Exported, Fold};
use ringtree::{Dtype, Error, ReduceOp};
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write as _};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const DEVICE: &str = "RINGTREE_TEST_DEVICE";
/// In front of what the peer has to say, among the lines of the test harness.
const MARK: &str = "says: ";
const BYTES: usize = 300_000;

/// A peer: it obeys lines.
struct Peer {
    child: Child,
    telling: ChildStdin,
    hearing: BufReader<ChildStdout>,
}

impl Peer {
    fn start(device: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::child_entry", "--nocapture"])
            .env(DEVICE, device)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let telling = child.stdin.take().unwrap();
        let hearing = BufReader::new(child.stdout.take().unwrap());
        Peer {
            child,
            telling,
            hearing,
        }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.telling, "{line}").unwrap();
    }

    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.hearing.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "the peer ended");
            if let Some((_, said)) = line.split_once(MARK) {
                return said.trim_end().to_owned();
            }
        }
    }

    fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.hear()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It ends when its standard input does; a test that failed does not wait for that.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn as_text(exported: &Exported) -> String {
    let mut text = format!("{} ", exported.offset);
    for byte in exported.handle {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}

fn exported(offset: &str, handle: &str) -> Exported {
    let byte = |at: usize| u8::from_str_radix(&handle[2 * at..][..2], 16).unwrap();
    Exported {
        handle: std::array::from_fn(byte),
        offset: offset.parse().unwrap(),
    }
}

// ---- what the peer does ----

#[test]
fn child_entry() {
    let Ok(name) = std::env::var(DEVICE) else {
        return;
    };
    let bench = Bench::new(&device(&name));
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<_> = line.split(' ').collect();
        match obey(&bench, &words) {
            Ok(said) => println!("{MARK}{said}"),
            Err(Error::Device(why)) => println!("{MARK}refused: {why}"),
            Err(error) => println!("{MARK}{error:?}"),
        }
    }
    std::process::exit(0);
}

fn obey(bench: &Bench, order: &[&str]) -> ringtree::Result<String> {
    let device = &bench.device;
    match *order {
        // Folds own numbers into the parent's memory.
        ["fold", offset, handle, at, length] => {
            let (at, length) = (at.parse().unwrap(), length.parse().unwrap());
            let theirs = device.import(&exported(offset, handle), BYTES)?;
            let own = bench.memory(&bytes(2, length));
            let operands = [theirs.span(at, length)?, own.whole()];
            let fold = Fold::new(Dtype::U8, ReduceOp::Sum, &operands, &operands[..1], None)?;
            bench.stream.fold(&fold)?;
            drop(theirs);
            bench.finish();
            Ok("folded".into())
        }
        ["import", offset, handle, length] => {
            let length = length.parse().unwrap();
            device.import(&exported(offset, handle), length)?;
            Ok("imported".into())
        }
        // Says whether the parent's memory is open while it has it, while a stream that waits for
        // a word still uses it, and in the end.
        ["close", offset, handle] => {
            let theirs = device.import(&exported(offset, handle), BYTES)?;
            let (mapping, own) = (theirs.mapping(), bench.memory(&[0; 10]));
            let words = device.words(1)?;
            let had = mapping.is_open();
            bench.hold_back(&words);
            bench.stream.copy(&theirs.span(0, 10)?, &own.whole())?;
            drop(theirs);
            let used = mapping.is_open();
            Bench::release(&words);
            bench.finish();
            Ok(format!("{had} {used} {}", mapping.is_open()))
        }
        // Waits for the parent's word, copies, writes the next one: all by the stream.
        ["turn", offset, handle, process, descriptor] => {
            let path = format!("/proc/{process}/fd/{descriptor}");
            let file = OpenOptions::new().read(true).write(true).open(path);
            let words = device.open_words(file.unwrap().into())?;
            let theirs = device.import(&exported(offset, handle), BYTES)?;
            let half = BYTES / 2;
            bench.stream.wait_word(&words.word(0)?, 1)?;
            let (from, to) = (theirs.span(0, half)?, theirs.span(half, half)?);
            bench.stream.copy(&from, &to)?;
            bench.stream.write_word(&words.word(1)?, 1)?;
            Ok("enqueued".into())
        }
        _ => panic!("what is {order:?}?"),
    }
}

// ---- the tests ----

#[test]
fn a_peer_folds_into_our_memory_and_closing_it_frees_nothing() {
    for (name, device) in devices() {
        let bench = Bench::new(&device);
        let mut peer = Peer::start(name);
        let memory = bench.memory(&bytes(1, BYTES));
        let text = as_text(&device.export(&memory).unwrap());
        let mut expected = bytes(1, BYTES);
        for (at, length) in [(0, BYTES), (17, 1001), (BYTES - 1, 1)] {
            assert_eq!(peer.ask(&format!("fold {text} {at} {length}")), "folded");
            for (byte, more) in expected[at..].iter_mut().zip(bytes(2, length)) {
                *byte = byte.wrapping_add(more);
            }
            assert!(bench.read(&memory.whole()) == expected, "{name}");
        }
    }
}

#[test]
fn two_processes_take_turns_by_words_and_their_streams_alone() {
    for (name, device) in devices() {
        if !device.description().word_operations {
            eprintln!("{name}: no word operations, not tested");
            continue;
        }
        let bench = Bench::new(&device);
        let mut peer = Peer::start(name);
        let memory = bench.memory(&vec![0; BYTES]);
        let words = device.words(2).unwrap();
        let text = as_text(&device.export(&memory).unwrap());
        let (process, descriptor) = (std::process::id(), words.file().as_raw_fd());
        let order = format!("turn {text} {process} {descriptor}");
        assert_eq!(peer.ask(&order), "enqueued");
        // The peer's stream waits by now; nobody there does anything more.
        let half = BYTES / 2;
        let content = bytes(4, half);
        let mut pinned = device.pin(half).unwrap();
        pinned.bytes_mut().unwrap().copy_from_slice(&content);
        let left = memory.span(0, half).unwrap();
        bench.stream.copy_from_host(&pinned.whole(), &left).unwrap();
        bench.stream.write_word(&words.word(0).unwrap(), 1).unwrap();
        bench.stream.wait_word(&words.word(1).unwrap(), 1).unwrap();
        let right = memory.span(half, half).unwrap();
        assert!(bench.read(&right) == content, "{name}");
    }
}

#[test]
fn a_peer_knows_when_it_has_closed_our_memory() {
    for (name, device) in devices() {
        let mut peer = Peer::start(name);
        let memory = device.allocate(BYTES).unwrap();
        assert!(!memory.mapping().is_open(), "it is our own");
        let text = as_text(&device.export(&memory).unwrap());
        let said = peer.ask(&format!("close {text}"));
        assert_eq!(said, "true true false", "{name}");
    }
}

#[test]
fn what_cannot_be_imported_is_refused() {
    for (name, device) in devices() {
        let mut peer = Peer::start(name);
        let memory = device.allocate(BYTES).unwrap();
        let exported = device.export(&memory).unwrap();
        let text = as_text(&exported);
        assert_eq!(peer.ask(&format!("import {text} {BYTES}")), "imported");
        let longer = peer.ask(&format!("import {text} {}", 1_usize << 40));
        assert!(longer.starts_with("refused: "), "{name}: {longer}");
        // One's own memory needs no import.
        let own = device.import(&exported, BYTES);
        assert!(matches!(own, Err(Error::Device(_))), "{name}");
        drop(memory);
        let freed = peer.ask(&format!("import {text} {BYTES}"));
        assert!(freed.starts_with("refused: "), "{name}: {freed}");
        let garbage = as_text(&Exported {
            handle: [7; 64],
            offset: 0,
        });
        let garbage = peer.ask(&format!("import {garbage} {BYTES}"));
        assert!(garbage.starts_with("refused: "), "{name}: {garbage}");
    }
}

#[test]
fn a_peer_that_dies_with_our_memory_open_disturbs_nobody() {
    for (name, device) in devices() {
        let bench = Bench::new(&device);
        let mut peer = Peer::start(name);
        let memory = bench.memory(&bytes(1, BYTES));
        let text = as_text(&device.export(&memory).unwrap());
        peer.tell(&format!("fold {text} 0 {BYTES}"));
        drop(peer);
        let own = bench.memory(&bytes(1, 100));
        assert_eq!(bench.read(&own.whole()), bytes(1, 100));
        drop(memory);
    }
}
