use super::*;
use std::sync::mpsc::{Receiver as Incoming, Sender, channel};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};

/// A subscriber that calls a function with the fields of each event as text.
struct Listener<F>(F);

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!("{}={value:?} ", field.name());
    }
}

impl<F: Fn(String) + Send + Sync + 'static> Subscriber for Listener<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "ringtree"
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields(format!("{} ", event.metadata().level()));
        event.record(&mut fields);
        (self.0)(fields.0);
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

fn stall(rank: usize) -> Event {
    let text = format!("rank {rank} waits");
    Event::Stall { rank, text }
}

/// Creates a queue whose subscriber waits for a message before it takes each event.
fn slow_queue() -> (EventQueue, Sender<()>, Incoming<String>) {
    let ((proceed, may_proceed), (tell, told)) = (channel(), channel());
    let may_proceed = Mutex::new(may_proceed);
    let listener = Listener(move |text| {
        lock(&may_proceed).recv().ok();
        tell.send(text).ok();
    });
    let queue = dispatcher::with_default(&Dispatch::new(listener), EventQueue::new);
    (queue, proceed, told)
}

#[test]
fn text_from_peers_is_escaped() {
    let (queue, proceed, told) = slow_queue();
    proceed.send(()).unwrap();
    let name = "\u{1b}]0;owned\u{7}\u{1b}[2J\nrank 2: all is well";
    queue.push(Event::SlowPeers {
        rank: 1,
        call: "all-reduce #7".into(),
        peers: format!("rank 2 on {name}"),
        waited_s: 1.0,
    });
    let fields = told.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(!fields.contains(char::is_control), "{fields:?}");
    assert_eq!(
        fields.matches("\\nrank 2: all is well").count(),
        2,
        "{fields}"
    );
}

#[test]
fn setting_accepts_names_of_levels_only() {
    assert_eq!(level("off"), Some(LevelFilter::OFF));
    assert_eq!(level(" debug "), Some(LevelFilter::DEBUG));
    for wrong in ["", "3", "INFO", "verbose", "ringtree=info"] {
        assert_eq!(level(wrong), None, "{wrong}");
    }
}

#[test]
fn subscriber_gets_events_with_fields() {
    let (queue, proceed, told) = slow_queue();
    proceed.send(()).unwrap();
    queue.push(Event::SlowPeers {
        rank: 2,
        call: "all-reduce #7".into(),
        peers: "rank 3".into(),
        waited_s: 1.5,
    });
    let fields = told.recv_timeout(Duration::from_secs(60)).unwrap();
    let parts = ["DEBUG ", "rank=2 ", "peers=rank 3 ", "waited_s=1.5 "];
    assert!(parts.iter().all(|part| fields.contains(part)), "{fields}");
    assert!(fields.contains("message=rank 2 has waited 1.5 s in all-reduce #7 for rank 3"));
}

#[test]
fn slow_subscriber_delays_no_other_thread_and_learns_how_many_events_were_dropped() {
    let (queue, proceed, told) = slow_queue();
    // The queue's thread removes the first event at some time, so one more event may fit.
    let sent = EVENTS_QUEUED_MAX + 10;
    (0..sent).for_each(|rank| queue.push(stall(rank)));
    let mut last = String::new();
    let mut received = 0;
    while !last.contains("events were dropped") {
        proceed.send(()).unwrap();
        last = told.recv_timeout(Duration::from_secs(60)).unwrap();
        received += 1;
    }
    let kept = received - 1;
    assert!([EVENTS_QUEUED_MAX, EVENTS_QUEUED_MAX + 1].contains(&kept));
    assert!(
        last.contains(&format!("message={} events", sent - kept)),
        "{last}"
    );
}

#[test]
fn panic_in_subscriber_does_not_reach_emitter() {
    let panics = Dispatch::new(Listener(|_| panic!("the subscriber is broken")));
    dispatcher::with_default(&panics, || stall(0).emit());
}
