//! Tests the polling token, leaving work to the background thread, and closing the [`Host`].

use super::*;
use crate::dtype::Dtype;
use crate::engine::cache::{MessageEnd, Prepared};
use crate::engine::group::{Memory, Order, Start};
use crate::engine::log::Clock;
use crate::engine::medium::host::Links;
use crate::limits::{DEVICE_LOOKS, DEVICE_SLEEP};
use crate::link::Link;
use crate::link::stream::StreamLink;
use crate::link::tcp::TcpLink;
use crate::protocol::members::Members;
use crate::protocol::session::To;
use crate::sys::memory::Region;
use std::sync::Arc;

/// A [`Host`] that counts how often work was left to the background thread, and records how many
/// messages had been sent when it was closed, and the longest pause that was allowed.
#[derive(Default)]
struct Recorder {
    handed_over: Arc<AtomicUsize>,
    sent: AtomicUsize,
    sent_before_close: Arc<Mutex<Option<usize>>>,
    longest_pause: Mutex<Duration>,
}

impl Host for Recorder {
    fn now(&self) -> Duration {
        Duration::ZERO
    }
    fn clock(&self) -> Clock {
        Box::new(|| Duration::ZERO)
    }
    fn pause_polling(&self, _: u32, at_most: Duration) -> Waited {
        let mut longest = self.longest_pause.lock().unwrap();
        *longest = at_most.max(*longest);
        Waited::Briefly
    }
    fn wake(&self) {}
    fn background_work(&self, _: bool) {
        self.handed_over.fetch_add(1, Ordering::Relaxed);
    }
    fn links(
        &self,
        _: u32,
        _: usize,
        members: &Members,
        _: Duration,
    ) -> crate::error::Result<[Links; 2]> {
        Ok([0, 1].map(|channel| {
            let connect = move |_| -> Box<dyn Link> {
                Box::new(StreamLink::<TcpLink>::new((channel, 0), Box::new(|| None)))
            };
            Links::new(members.count(), Box::new(connect))
        }))
    }
    fn send_control(&self, _: To, _: u32, _: &[u8]) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }
    fn close(&self) {
        let sent = self.sent.load(Ordering::Relaxed);
        *self.sent_before_close.lock().unwrap() = Some(sent);
    }
}

/// A device wakes no thread, and a host may sleep instead of yielding.
#[test]
fn pause_while_device_is_busy_is_short() {
    let host = Recorder::default();
    for idle_passes in 1..=DEVICE_LOOKS {
        assert_eq!(host.pause_for_device(idle_passes), Waited::Briefly);
    }
    assert_eq!(*host.longest_pause.lock().unwrap(), DEVICE_SLEEP);
    assert_eq!(host.pause_for_device(DEVICE_LOOKS + 1), Waited::Asleep);
}

#[test]
fn last_goodbye_closes_host_while_runtime_is_shared() {
    let host = Recorder::default();
    let closed = Arc::clone(&host.sent_before_close);
    let runtime = Arc::new(Runtime::new(Box::new(host)));
    for number in [0, 1] {
        let members = Members::everyone(2);
        runtime
            .add_group(number, 0, &members, false, Duration::ZERO)
            .unwrap();
    }
    let held_elsewhere = Arc::clone(&runtime);
    runtime.leave(0, Duration::ZERO);
    assert_eq!(
        *closed.lock().unwrap(),
        None,
        "the host must stay open while a group remains"
    );
    runtime.leave(1, Duration::MAX);
    assert_eq!(
        *closed.lock().unwrap(),
        Some(3),
        "the goodbyes of both groups and of the process must be sent before the host closes"
    );
    drop(held_elsewhere);
}

#[test]
fn has_ended_leaves_work_to_background_thread() {
    let host = Recorder::default();
    let handed_over = Arc::clone(&host.handed_over);
    let runtime = Runtime::new(Box::new(host));
    let members = Members::everyone(2);
    runtime
        .add_group(0, 0, &members, false, Duration::ZERO)
        .unwrap();
    let prepared = Prepared::message(0, MessageEnd::From(1), (1, Dtype::U8), 0).unwrap();
    let mut memory = Memory::in_place(Region::own(vec![0u8]));
    let mut start = Start {
        prepared: &Arc::new(prepared),
        sequence: 0,
        memory: &mut memory,
        timeout: Duration::MAX,
        gate: None,
    };
    let ticket = runtime.post(0, Order::Pairs, &mut start).unwrap();
    for times in 1..4 {
        assert_eq!(handed_over.load(Ordering::Relaxed), times);
        assert!(!runtime.has_ended(ticket));
    }
}

#[test]
fn failed_take_does_not_release_token() {
    let runtime = Runtime::new(Box::new(Recorder::default()));
    let held = runtime.take_token();
    assert!(held.is_some());
    for _ in 0..2 {
        assert!(runtime.take_token().is_none());
    }
    drop(held);
    assert!(runtime.take_token().is_some());
}
