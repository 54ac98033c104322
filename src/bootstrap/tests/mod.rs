//! Tests in which the ranks are threads of one process and connect over loopback.

mod control;
mod join;
mod sharing;
mod strangers;

use super::*;
use crate::bootstrap::join::{Joined, join};
use crate::bootstrap::settings::{Settings, TransportChoice};
use crate::control::{Handler, Membership};
use crate::error::{Error, ErrorKind, Result};
use crate::link::tcp::DataStream;
use crate::protocol::handshake::Secret;
use mio::net::TcpStream;
use socket2::Socket;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// Sockets that reserve the ports that this process uses.
static TAKEN: Mutex<Vec<[Socket; 2]>> = Mutex::new(Vec::new());

/// Reserves a loopback port and the next higher port. Returns the lower of the two.
fn own_port() -> u16 {
    loop {
        let (first, at) = address::reserve(([127, 0, 0, 1], 0).into()).unwrap();
        let next = SocketAddr::new(at.ip(), at.port().saturating_add(1));
        if let Ok((next, _)) = address::reserve(next) {
            TAKEN.lock().unwrap().push([first, next]);
            return at.port();
        }
    }
}

/// Returns the settings of all ranks in a world with a new rendezvous.
fn world(world_size: usize, timeout: Duration) -> Vec<Settings> {
    let rendezvous = format!("127.0.0.1:{}", own_port());
    let one = |rank| {
        let mut settings = Settings::new(rank, world_size, &rendezvous);
        settings.timeout = timeout;
        settings.secret = Some(Secret::new([42; 32]));
        settings
    };
    (0..world_size).map(one).collect()
}

/// Joins with all `settings` concurrently, each after its delay in milliseconds.
fn join_all(settings: Vec<Settings>, delay_ms: impl Fn(usize) -> u64) -> Vec<Result<Joined>> {
    let start = |(at, settings): (usize, Settings)| {
        let delay = Duration::from_millis(delay_ms(at));
        thread::spawn(move || {
            thread::sleep(delay);
            join(&settings)
        })
    };
    let threads: Vec<_> = settings.into_iter().enumerate().map(start).collect();
    threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect()
}

fn join_line(result: Result<Joined>) -> String {
    match result {
        Err(error) if error.kind() == ErrorKind::Join => {
            let line = error.to_string();
            assert!(!line.contains('\n'), "expected a single line: {line}");
            line
        }
        Err(other) => panic!("expected a join error, got {other:?}"),
        Ok(_) => panic!("the join succeeded"),
    }
}

#[derive(Default)]
struct Seen {
    messages: Vec<(usize, u32, Vec<u8>)>,
    lost: Vec<(usize, String)>,
    ended: Vec<usize>,
    streams: Vec<(u32, usize, TcpStream)>,
    failed: Vec<(u32, usize, String)>,
    causes: Vec<Error>,
    awake: usize,
    wants_data_events: bool,
}

/// A handler that records everything.
#[derive(Default)]
struct Recorder {
    seen: Mutex<Seen>,
    changed: Condvar,
}

impl Recorder {
    fn note(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.seen.lock().unwrap());
        self.changed.notify_all();
    }

    /// Waits until `ready` returns a value for the recorded events.
    fn wait<T>(&self, what: &str, mut ready: impl FnMut(&mut Seen) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        let mut seen = self.seen.lock().unwrap();
        loop {
            if let Some(found) = ready(&mut seen) {
                return found;
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "timed out waiting for {what}; lost: {:?}",
                seen.lost
            );
            seen = self.changed.wait_timeout(seen, left).unwrap().0;
        }
    }
}

impl Handler for Recorder {
    fn control(&self, from: usize, group: u32, payload: &[u8]) {
        self.note(|seen| seen.messages.push((from, group, payload.to_vec())));
    }

    fn control_lost(&self, rank: usize, why: String) {
        self.note(|seen| seen.lost.push((rank, why)));
    }

    fn process_ended(&self, rank: usize) {
        self.note(|seen| seen.ended.push(rank));
    }

    fn stream(&self, group: u32, DataStream { peer, stream, .. }: DataStream) {
        self.note(|seen| seen.streams.push((group, peer, stream)));
    }

    fn stream_failed(&self, group: u32, peer: usize, why: String) {
        self.note(|seen| seen.failed.push((group, peer, why)));
    }

    fn fatal_error(&self, cause: Error) {
        self.note(|seen| seen.causes.push(cause));
    }

    fn wake_after(&self) -> Option<Duration> {
        let is_wanted = self.seen.lock().unwrap().wants_data_events;
        is_wanted.then_some(Duration::from_secs(3600))
    }

    fn awake(&self) {
        self.note(|seen| seen.awake += 1);
    }
}

/// Joins a world and starts its control threads.
fn running(world_size: usize) -> Vec<(Membership, Arc<Recorder>)> {
    let joined = join_all(world(world_size, PATIENCE), |_| 0);
    let start = |joined: Result<Joined>| {
        let recorder = Arc::new(Recorder::default());
        let handler: Arc<dyn Handler> = recorder.clone();
        (joined.unwrap().start(handler, None).unwrap(), recorder)
    };
    joined.into_iter().map(start).collect()
}

/// Shuts down all ranks concurrently.
fn shut_down(ranks: &[(Membership, Arc<Recorder>)]) {
    thread::scope(|scope| {
        for (membership, _) in ranks {
            scope.spawn(|| membership.control.shutdown());
        }
    });
}
