//! Measures the throughput of one core, in bytes per second, for each task of the polling thread:
//! sending over TCP, receiving over TCP, and folding.
//!
//! Two threads of this process exchange messages over loopback through the library's links. Rates
//! are per second of the thread's CPU time, so waiting costs nothing. Over loopback, the kernel
//! does part of the receiver's protocol work on the sender's core. Only the sum of sending and
//! receiving therefore applies to a network.
//!
//! `cargo bench --bench core` takes ten seconds.

use mio::net::TcpStream;
use ringtree::internal::compute::Kernel;
use ringtree::internal::link::{
    DataStream, Inbox, Link, Message, Payload, Reactor, StreamLink, TcpLink, set_options,
};
use ringtree::{Dtype, ReduceOp};
use rustix::time::{ClockId, clock_gettime};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Bytes of a message, like a block of a large all-reduce.
const MESSAGE_BYTES: usize = 1 << 20;
const MESSAGES: u32 = 2_000;
/// Total number of bytes per operand, over all folds of one measurement.
const FOLDED_BYTES: usize = 4 << 30;
const SLEEP: Duration = Duration::from_millis(100);

/// One end of the connection, with its reactor.
struct End {
    link: StreamLink<TcpLink>,
    reactor: Arc<Reactor>,
}

impl End {
    fn new(stream: std::net::TcpStream) -> Self {
        stream
            .set_nonblocking(true)
            .expect("the socket must support non-blocking mode");
        set_options(&stream).expect("the socket options must be valid");
        let reactor = Arc::new(Reactor::new().expect("epoll must be available"));
        let inbox = Inbox::default();
        inbox.push(DataStream {
            peer: 0,
            stream: TcpStream::from_std(stream),
            hosts: (String::new(), String::new()),
        });
        let of_link = Arc::clone(&reactor);
        let source = Box::new(move || inbox.take(0, &of_link));
        Self {
            link: StreamLink::new((0, 0), source),
            reactor,
        }
    }

    /// Moves all messages with `step`, which receives the message and the number of bytes already
    /// moved. Returns the number of bytes per second of CPU time.
    fn rate(
        &mut self,
        mut step: impl FnMut(&mut StreamLink<TcpLink>, &Message, usize) -> usize,
    ) -> f64 {
        let start = cpu_time();
        for number in 0..MESSAGES {
            let message = Message {
                sequence: 1,
                digest: 0,
                number,
                bytes: MESSAGE_BYTES,
            };
            let mut done = 0;
            while done < MESSAGE_BYTES {
                match step(&mut self.link, &message, done) {
                    0 => self.reactor.sleep(SLEEP),
                    bytes => done += bytes,
                }
            }
        }
        (MESSAGES as usize * MESSAGE_BYTES) as f64 / (cpu_time() - start).as_secs_f64()
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the rates of sending and of receiving, in bytes per second of CPU time.
fn tcp() -> (f64, f64) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback must be available");
    let address = listener
        .local_addr()
        .expect("the listener must have an address");
    let dialed =
        std::net::TcpStream::connect(address).expect("the listener must accept connections");
    let (accepted, _) = listener.accept().expect("the connection must be accepted");
    let sender = thread::spawn(move || {
        let data = vec![1; MESSAGE_BYTES];
        End::new(dialed).rate(|link, message, done| {
            let sent = link.send(message, done, Payload::Bytes(&[&data[done..]]));
            sent.expect("the peer must stay connected")
        })
    });
    let mut data = vec![0; MESSAGE_BYTES];
    let received = End::new(accepted).rate(|link, message, done| {
        let received = link.receive(message, done, &mut data[done..]);
        received.expect("the peer must stay connected")
    });
    let sent = sender.join().expect("the sender must not panic");
    (sent, received)
}

/// Returns the rate at which operands of `bytes` bytes are folded in place.
fn fold(bytes: usize) -> f64 {
    let kernel = Kernel::new(Dtype::F32, ReduceOp::Sum).expect("f32 must support sums");
    let (mut own, other) = (vec![0; bytes], vec![0; bytes]);
    let times = FOLDED_BYTES / bytes;
    let start = cpu_time();
    for _ in 0..times {
        kernel.fold(&mut own, Some(0), &[&other], None);
    }
    (times * bytes) as f64 / (cpu_time() - start).as_secs_f64()
}

fn main() {
    let mut rounds: Vec<(f64, f64)> = (0..5).map(|_| tcp()).collect();
    rounds.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (sent, received) = rounds[rounds.len() / 2];
    let (near, far) = (fold(256 << 10), fold(64 << 20));
    for (job, rate) in [
        ("sends over TCP", sent),
        ("receives over TCP", received),
        ("folds f32 in its cache", near),
        ("folds f32 in memory", far),
    ] {
        println!("a core {job:24}{:6.2} GB/s", rate / 1e9);
    }
    // A core sends and receives each byte of an all-reduce once, and folds half of them.
    let wall = 1.0 / (1.0 / sent + 1.0 / received + 0.5 / near);
    println!(
        "so one core carries an all-reduce at {:.2} GB/s, or {:.0} Gbit/s each way",
        wall / 1e9,
        wall * 8e-9
    );
}
