//! Tests the events that ranks print or pass to a `tracing` subscriber, and the counts of calls.

use crate::ranks::{Links, ROLE, Suite, exit, wait_for_resume};
use ringtree::{Communicator, ReduceOp, Result};
use std::fmt;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Starts ranks that run this module's `child_entry`.
const SUITE: Suite = Suite(module_path!());

#[test]
fn child_entry() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    exit(act(&role).map(|()| "all well".to_owned()))
}

fn act(role: &str) -> Result<()> {
    match role {
        "repeats" => repeats(&Communicator::from_env()?),
        "late" => late(&Communicator::from_env()?),
        "subscribed" => subscribed(),
        "counted" => counted(&Communicator::from_env()?),
        "failing" => failing(&Communicator::from_env()?),
        other => panic!("unknown role {other}"),
    }
}

/// Makes calls of two classes several times. Ends after the test has read the events.
fn repeats(comm: &Communicator) -> Result<()> {
    for _ in 0..3 {
        comm.all_reduce(&mut [1f32; 1000], ReduceOp::Sum)?;
        comm.broadcast(&mut [1u8; 8], 0)?;
    }
    wait_for_resume();
    Ok(())
}

/// Makes rank 0 wait until the test has seen its warning and resumes rank 1.
fn late(comm: &Communicator) -> Result<()> {
    comm.barrier()?;
    if comm.rank() == 1 {
        wait_for_resume();
    }
    comm.barrier()
}

/// Rank 1 exits without a goodbye, and rank 0's call fails.
fn failing(comm: &Communicator) -> Result<()> {
    if comm.rank() == 1 {
        comm.barrier()?;
        std::process::exit(0);
    }
    // The other ranks may notice the death before the first barrier has ended.
    let end = comm.barrier().and_then(|()| comm.barrier());
    wait_for_resume();
    end
}

/// Makes calls over each transport, and reports what was counted. Rank 3 makes its last call late.
fn counted(comm: &Communicator) -> Result<()> {
    for _ in 0..2 {
        comm.all_reduce(&mut [1f32; 1000], ReduceOp::Sum)?;
    }
    match comm.rank() {
        0 => (1..4).try_for_each(|peer| comm.send(&[1u8; 10], peer))?,
        _ => comm.recv(&mut [0u8; 10], 0)?,
    }
    if comm.rank() == 3 {
        std::thread::sleep(Duration::from_secs(1));
    }
    comm.barrier()?;
    let rows = comm.stats();
    let lines = rows.iter().map(|row| {
        let (call, transport, calls, bytes) = (row.call, row.transport, row.calls, row.bytes);
        let has_waited = row.waited >= Duration::from_millis(500);
        format!("{call} {transport} {calls} {bytes} {has_waited}")
    });
    eprintln!("{}", lines.collect::<Vec<_>>().join("; "));
    wait_for_resume();
    Ok(())
}

/// A subscriber that calls the library about each stall, as a monitor may.
struct Monitor(Sender<String>);

static COMM: Mutex<Option<Communicator>> = Mutex::new(None);

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Monitor {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "ringtree"
    }

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        if event.metadata().name() == "stall" {
            let comm = COMM.lock().unwrap().clone().expect("a call waits");
            // This call needs the engine's lock.
            let world_size = comm.info().world_size;
            self.0.send(format!("{world_size}: {}", message.0)).ok();
        }
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

fn subscribed() -> Result<()> {
    let (tell, told) = channel();
    tracing::subscriber::set_global_default(Monitor(tell)).expect("no subscriber is set");
    let comm = Communicator::from_env()?;
    *COMM.lock().unwrap() = Some(comm.clone());
    std::thread::spawn(move || told.iter().for_each(|message| eprintln!("heard {message}")));
    let end = late(&comm);
    // A rank that exits without dropping its communicator looks dead to the others.
    *COMM.lock().unwrap() = None;
    end
}

#[test]
fn log_prints_join_and_each_choice_of_algorithm_once() {
    let mut ranks = SUITE.start(Links::Tcp, "repeats", 2, &[("RINGTREE_LOG", "debug")]);
    let joined = ranks.next_reports(&[0]).0;
    let start = "ringtree: info: rank 0 of 2 joined on ";
    assert!(joined[0].starts_with(start), "{joined:?}");
    for part in ["TCP to all ranks", "listens on 127.0.0.1:"] {
        assert!(joined[0].contains(part), "{joined:?}");
    }
    for class in ["all-reduce of 1000 f32", "broadcast of 8 u8"] {
        let chosen = ranks.next_reports(&[0]).0;
        let start = "ringtree: debug: rank 0 chose ";
        let part = format!(" for {class}; predicted ");
        assert!(
            chosen[0].starts_with(start) && chosen[0].contains(&part),
            "{chosen:?}"
        );
    }
    // The later calls cause no events.
    ranks.resume(&[0, 1]);
    assert_eq!(ranks.next_reports(&[0]).0, ["all well"]);
}

#[test]
fn log_prints_failure_once() {
    let mut ranks = SUITE.start(Links::Tcp, "failing", 2, &[("RINGTREE_LOG", "info")]);
    let joined = ranks.next_reports(&[0]).0;
    assert!(joined[0].contains(" joined "), "{joined:?}");
    let failed = ranks.next_reports(&[0]).0;
    let start = "ringtree: info: rank 0: the communicator failed: ";
    assert!(failed[0].starts_with(start), "{failed:?}");
    ranks.resume(&[0]);
    let end = ranks.next_reports(&[0]).0;
    assert!(end[0].starts_with("lost 1: "), "{end:?}");
}

#[test]
fn stall_warning_is_printed_unless_log_is_off() {
    let soon = ("RINGTREE_STALL_WARNING_S", "2");
    let off = [soon, ("RINGTREE_LOG", "off")];
    let mut silent = SUITE.start(Links::Tcp, "late", 2, &off);
    let mut warned = SUITE.start(Links::Tcp, "late", 2, &[soon]);
    let warning = warned.next_reports(&[0]).0;
    let start = "ringtree: rank 0 has waited ";
    assert!(warning[0].starts_with(start), "{warning:?}");
    for ranks in [&mut warned, &mut silent] {
        ranks.resume(&[1]);
        assert_eq!(ranks.next_reports(&[0]).0, ["all well"]);
    }
}

#[test]
fn subscriber_may_call_library_while_call_waits() {
    let soon = [("RINGTREE_STALL_WARNING_S", "2")];
    let mut ranks = SUITE.start(Links::Tcp, "subscribed", 2, &soon);
    let heard = ranks.next_reports(&[0]).0;
    let start = "heard 2: rank 0 has waited ";
    assert!(heard[0].starts_with(start), "{heard:?}");
    ranks.resume(&[1]);
    assert_eq!(ranks.next_reports(&[0]).0, ["all well"]);
}

#[test]
fn calls_are_counted_by_transport_with_time_waited() {
    let ranks = SUITE.start(Links::Both, "counted", 4, &[]);
    let counted = ranks.next_reports(&[0, 1, 2]).0;
    let parts = [
        // Only the sends tell which peers are on the same host.
        ["send shm 1 10 ", "send tcp 2 20 "],
        ["recv shm 1 10 ", "all-reduce "],
        ["recv tcp 1 10 ", "all-reduce "],
    ];
    for (line, parts) in counted.iter().zip(parts) {
        assert!(parts.iter().all(|part| line.contains(part)), "{line}");
        assert!(
            line.contains(" 2 8000 ") && line.contains("barrier "),
            "{line}"
        );
    }
    // The barrier ends after rank 3 has entered it.
    assert!(
        counted[0]
            .split("; ")
            .any(|row| row.starts_with("barrier ") && row.ends_with("true"))
    );
}
