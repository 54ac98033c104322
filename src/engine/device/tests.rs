//! What an operation does behind a peer that gives up, without one.

use super::links::{DeviceLinks, Path, Staging, slots_bytes};
use super::signals::Signals;
use super::{DeviceOperation, OnDevice};
use crate::device::fake::Fake;
use crate::device::{Device, Words};
use crate::dtype::Dtype;
use crate::engine::posting::{Arithmetic, Broken, Failure, Prepared};
use crate::engine::program::Program;
use crate::engine::turns::Turns;
use crate::plan::{Algorithm, Collective, Request, plan};
use crate::protocol::call::Call;
use crate::transport::{LinkError, Message, Transport};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const BYTES: usize = 64;
const RANKS: usize = 4;
/// Of 100 µs each, at least.
const POLLS_MAX: usize = 10_000;

/// A peer whose tokens are all there, and another that takes whatever is sent.
#[derive(Clone, Default)]
struct Peers {
    sent_bytes: Arc<AtomicUsize>,
    has_withdrawn: Arc<AtomicBool>,
}

type Moved = Result<usize, LinkError>;

impl Transport for Peers {
    fn name(&self) -> &'static str {
        "none"
    }
    fn open(&mut self, _: usize) {}
    fn send(&mut self, _: usize, _: &Message, _: usize, data: &[u8]) -> Moved {
        self.sent_bytes.fetch_add(data.len(), Ordering::Relaxed);
        Ok(data.len())
    }
    fn receive(&mut self, _: usize, _: &Message, _: usize, into: &mut [u8]) -> Moved {
        into.fill(0);
        Ok(into.len())
    }
    fn fetch(&mut self, _: usize, _: &Message, _: usize) -> Moved {
        Ok(0)
    }
    fn view(&self, _: usize, _: usize) -> &[u8] {
        &[]
    }
    fn consume(&mut self, _: usize, _: usize) {}
    fn is_withdrawn(&self, _: usize) -> bool {
        self.has_withdrawn.load(Ordering::Relaxed)
    }
}

/// A rank in the middle of a broadcast's tree, who it has the bytes from, and who gets them.
fn in_the_middle() -> (Program, usize, usize) {
    let program = |rank| {
        let request = Request {
            collective: Collective::Broadcast,
            algorithm: Algorithm::Binomial,
            world_size: RANKS,
            rank,
            root: 0,
            pieces: 1,
            ranks_per_host: 1,
        };
        Program::bind(&plan(&request).unwrap(), BYTES, 1)
    };
    let mut programs = (1..RANKS).map(program);
    let is_middle = |one: &Program| !one.sends.is_empty() && !one.receives.is_empty();
    let program = programs.find(is_middle).unwrap();
    let (from, to) = (program.receives[0].peer, program.sends[0].peer);
    (program, from, to)
}

fn prepared(program: Program) -> Arc<Prepared> {
    let call = Call {
        sequence: 1,
        collective: "broadcast".into(),
        algorithm: "binomial".into(),
        pieces: 1,
        count: BYTES as u64,
        dtype: Dtype::U8,
        op: None,
        root: Some(0),
    };
    Arc::new(Prepared {
        digest: call.digest(),
        call,
        program: Arc::new(program),
        arithmetic: Arithmetic {
            kernel: None,
            element_bytes: 1,
            divisor: None,
        },
    })
}

/// The streams wait for each other on the way in; the way out is through the hosts.
fn links(device: &Arc<dyn Device>, own: &Words, from: usize, to: usize) -> DeviceLinks {
    let slots = || device.allocate(slots_bytes(BYTES)).unwrap().whole();
    let word = |at| own.word(at).unwrap();
    let mut paths: Vec<_> = (0..RANKS).map(|_| None).collect();
    paths[from] = Some(Path::Mapped {
        own: slots(),
        theirs: slots(),
        signals: Some(Box::new(Signals::new(
            [word(0), word(1)],
            [word(2), word(3)],
        ))),
    });
    paths[to] = Some(Path::Staged);
    let acknowledgements = Box::new(Peers::default());
    let links = DeviceLinks::new(Arc::clone(device), BYTES, paths, acknowledgements);
    let mut links = links.unwrap();
    links.install(to, Staging::new(&**device, BYTES).unwrap());
    links
}

/// Whether the bytes were sent on, and who was found to have withdrawn, if anybody, when the stream
/// has been let go on.
fn sent_on(has_withdrawn: bool) -> (bool, Option<usize>) {
    let device: Arc<dyn Device> = Arc::new(Fake::new());
    let own = device.words(2 * Signals::WORDS).unwrap();
    let (program, from, to) = in_the_middle();
    let mut links = links(&device, &own, from, to);
    let on = OnDevice {
        buffer: device.allocate(BYTES).unwrap().whole(),
        dtype: Dtype::U8,
        op: None,
        ready: device.event().unwrap(),
        gate: None,
    };
    let mut operation = DeviceOperation::new(prepared(program), 1, on, &links);
    let (mut peers, mut turns) = (Peers::default(), Turns::new(RANKS));
    turns.begin_pass();
    let mut poll = |peers: &mut Peers| {
        let polled = operation.poll(peers, &turns, &mut links);
        std::thread::sleep(Duration::from_micros(100));
        match polled {
            Err(Failure::Link(Broken { peer, .. })) => Some(peer),
            Err(Failure::Own(error)) => panic!("{error}"),
            Ok(_) => None,
        }
    };
    for _ in 0..50 {
        assert_eq!(poll(&mut peers), None);
    }
    assert_eq!(
        peers.sent_bytes.load(Ordering::Relaxed),
        0,
        "nothing is there"
    );
    peers.has_withdrawn.store(has_withdrawn, Ordering::Relaxed);
    own.word(0).unwrap().store(1);
    let has_come = |peers: &Peers| peers.sent_bytes.load(Ordering::Relaxed) > 0;
    let mut withdrawn = None;
    for _ in 0..POLLS_MAX {
        withdrawn = poll(&mut peers);
        if withdrawn.is_some() || has_come(&peers) {
            break;
        }
    }
    let has_sent = peers.sent_bytes.load(Ordering::Relaxed) > 0;
    (has_sent, withdrawn)
}

#[test]
fn what_came_is_sent_on() {
    let (has_sent, withdrawn) = sent_on(false);
    assert!(has_sent);
    assert_eq!(withdrawn, None);
}

#[test]
fn what_may_be_nonsense_is_not_sent_to_another_host() {
    let (has_sent, withdrawn) = sent_on(true);
    assert!(!has_sent);
    assert!(withdrawn.is_some());
}
