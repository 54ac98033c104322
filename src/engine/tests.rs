use super::*;
use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind};
use crate::limits::GOODBYE_GRACE;
use crate::link::{Link, LinkError, Payload};
use crate::plan::{Algorithm, Collective, Topology, TuningTable};
use crate::protocol::call::Call;
use crate::protocol::message::Message;
use crate::sys::memory::Region;
use bind::Placement;
use cache::{Cache, Key, MessageEnd, Prepared};
use group::Start;
use medium::host::Links;
use std::sync::Arc;

/// A link on which no bytes ever move.
struct Unconnected;

type Moved = std::result::Result<usize, LinkError>;

impl Link for Unconnected {
    fn send(&mut self, _: &crate::link::Message, _: usize, _: Payload<'_>) -> Moved {
        Ok(0)
    }
    fn receive(&mut self, _: &crate::link::Message, _: usize, _: &mut [u8]) -> Moved {
        Ok(0)
    }
    fn fetch(&mut self, _: &crate::link::Message, _: usize) -> Moved {
        Ok(0)
    }
    fn view(&self, _: usize) -> &[u8] {
        &[]
    }
    fn consume(&mut self, _: usize) -> std::result::Result<(), LinkError> {
        Ok(())
    }
}

fn unconnected(rank: usize, world_size: usize) -> Group {
    let links = || Links::new(world_size, Box::new(|_| Box::new(Unconnected)));
    Group::new(rank, world_size, links(), links())
}

/// Returns the engine of rank 1 of 3, with an all-gather of one byte per rank in flight, and the
/// ticket of the all-gather.
fn waiting(timeout: Duration) -> (Engine, Ticket) {
    let topology = Topology::apart(3);
    let mut cache = Cache::new(1, topology, TuningTable::default(), Vec::new());
    let key = Key {
        call: Call::new(Collective::AllGather, 3)
            .dtype(Dtype::U8)
            .by(Algorithm::Flat),
        placement: Placement::InPlace,
        is_exposed: false,
    };
    let mut memory = Memory::in_place(Region::own(vec![0u8; 3]));
    let mut start = Start {
        prepared: cache.get(key).unwrap(),
        sequence: 1,
        memory: &mut memory,
        timeout,
        gate: None,
    };
    let mut group = unconnected(1, 3);
    let order = Order::Collectives;
    let ticket = Ticket {
        group: 0,
        order,
        slot: group.post(order, &mut start).unwrap(),
    };
    let mut engine = Engine::default();
    engine.add_group(0, group);
    (engine, ticket)
}

fn take(engine: &mut Engine, ticket: Ticket) -> Option<group::End> {
    engine.group(0).unwrap().take(ticket.order, ticket.slot)
}

#[test]
fn failed_link_is_reported_and_coordinator_decides_error() {
    let (mut engine, ticket) = waiting(Duration::from_secs(60));
    engine.link_failed(0, 2, "connection refused");
    engine.tick(Duration::ZERO);
    engine.tick(Duration::from_millis(200));
    engine.poll();
    assert!(
        take(&mut engine, ticket).is_none(),
        "the operation must wait for the coordinator's answer"
    );
    let (_, to, report) = engine.next_control().unwrap();
    assert_eq!(to, To::Rank(0));
    let Some(Message::Report(error)) = decode(&report) else {
        panic!("{report:?}");
    };
    assert!(
        error.kind() == ErrorKind::PeerLost && error.peer() == Some(2),
        "{error:?}"
    );
    let message = error.to_string();
    assert!(message.contains("during all-gather #1"), "{message}");
    assert!(message.contains("connection refused"), "{message}");

    let first = Error::deadline("an earlier error of another rank");
    engine.control(0, 0, &encode(&Message::FirstError(first.clone())));
    let (_, end) = take(&mut engine, ticket).unwrap();
    assert_eq!(end, Err(first));
}

#[test]
fn overdue_operation_waits_for_goodbye_but_not_for_comparison() {
    let link_failed = |engine: &mut Engine| engine.link_failed(0, 2, "connection refused");
    let mismatched = |engine: &mut Engine| {
        let call = Call::new(Collective::Barrier, 0).numbered(1);
        engine.group(0).unwrap().session.mismatched(2, &call, 1, 0);
    };
    let timeout = Duration::from_secs(1);
    let cases: [(fn(&mut Engine), _); 3] = [
        (link_failed, timeout),
        (mismatched, timeout / 2),
        (mismatched, Duration::ZERO),
    ];
    for (fail, failed_at) in cases {
        let (mut engine, _) = waiting(timeout);
        if failed_at > Duration::ZERO {
            engine.tick(Duration::ZERO);
        }
        fail(&mut engine);
        let reported_at = timeout.max(failed_at + GOODBYE_GRACE);
        for (now, is_reported) in [
            (failed_at, false),
            (reported_at - Duration::from_millis(1), false),
            (reported_at, true),
        ] {
            engine.tick(now);
            let sent = std::iter::from_fn(|| engine.next_control());
            let reports =
                sent.filter(|(.., sent)| matches!(decode(sent), Some(Message::Report(_))));
            assert_eq!(reports.count() == 1, is_reported, "{now:?}");
        }
    }
}

#[test]
fn waiting_rank_sleeps_until_next_notice_or_deadline() {
    let at = Duration::from_millis;
    let (mut engine, ticket) = waiting(at(60_000));
    let tick = |engine: &mut Engine, now| {
        engine.tick(at(now));
        engine.sleep_max(|| at(now))
    };
    assert_eq!(tick(&mut engine, 0), IDLE_SLEEP);
    assert_eq!(tick(&mut engine, 900), IDLE_SLEEP);
    assert_eq!(tick(&mut engine, 1000), NOTIFIED_SLEEP);
    assert_eq!(tick(&mut engine, 1950), at(50));
    for second in 2..60 {
        assert_eq!(tick(&mut engine, second * 1000), NOTIFIED_SLEEP);
    }
    assert_eq!(tick(&mut engine, 59_990), at(10));
    assert!(take(&mut engine, ticket).is_none());
    // The timeout has been reported to the coordinator, and the engine is waiting for the answer.
    assert_eq!(tick(&mut engine, 60_000), IDLE_SLEEP);
}

#[test]
fn maximum_timeout_does_not_overflow() {
    let (mut engine, ticket) = waiting(Duration::MAX);
    engine.tick(Duration::from_secs(1));
    engine.tick(Duration::from_secs(1 << 40));
    assert!(take(&mut engine, ticket).is_none());
}

/// Rank 1 makes its calls in a group and leaves before rank 0 adds the group.
#[test]
fn goodbye_before_group_is_added_prevents_failure() {
    for says_goodbye in [true, false] {
        let mut engine = Engine::default();
        engine.request_group(0, &Members::everyone(2));
        if says_goodbye {
            let goodbye = Message::Goodbye {
                calls: 1,
                failed_beside: None,
            };
            engine.control(1, 1, &encode(&goodbye));
        }
        engine.control_lost(1, "it closed its control connection");
        engine.add_group(1, unconnected(0, 2));
        engine.tick(Duration::ZERO);
        engine.poll();
        assert_eq!(engine.next_failure().is_none(), says_goodbye);
    }
}

#[test]
fn messages_on_one_link_send_one_question_per_interval() {
    let mut group = unconnected(1, 3);
    for end in [MessageEnd::To(0), MessageEnd::From(2)] {
        let prepared = Arc::new(Prepared::message(1, end, (1, Dtype::U8), 0).unwrap());
        for _ in 0..100 {
            let mut start = Start {
                prepared: &prepared,
                sequence: 0,
                memory: &mut Memory::in_place(Region::own(vec![0u8])),
                timeout: Duration::from_secs(60),
                gate: None,
            };
            group.post(Order::Pairs, &mut start).unwrap();
        }
    }
    for second in 0..3 {
        group.tick(Duration::from_secs(second));
        let sent = std::iter::from_fn(|| group.next_control());
        let asked = sent.filter(|(_, message)| matches!(message, Message::Waiting(_)));
        let asked: Vec<_> = asked.map(|(to, _)| to).collect();
        let expected = match second {
            0 => vec![],
            _ => vec![To::Rank(0), To::Rank(2)],
        };
        assert_eq!(asked, expected, "after {second} s");
    }
}
