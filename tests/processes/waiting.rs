//! Tests the behavior of ranks while they wait. User code may call the library wherever the library
//! calls user code. No call waits for the reader of standard error. A send or receive that waits
//! for a rank that has left cleanly fails immediately and names the rank.

use crate::threads::{LINKS, within, world};
use ringtree::Work;
use ringtree::comm::WorkError;
use ringtree::comm::{Memory, MemoryMut};
use ringtree::{
    Buffer, BufferMut, Builder, Communicator, Error, ErrorKind, Layout, ReduceOp, Result,
};
use std::future::Future;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);
/// Longer than any timeout in these tests. A call that has not returned after this time hangs.
const HANG_LIMIT: Duration = Duration::from_secs(60);

fn plain(_: usize, builder: Builder) -> Builder {
    builder
}

/// A buffer that calls a closure when it is dropped.
struct Loud<F: FnMut() + Send + 'static>(Vec<f32>, F);

impl<F: FnMut() + Send + 'static> Buffer for Loud<F> {
    type Element = f32;

    fn memory(&self) -> Memory<'_, f32> {
        Memory::Host(&self.0)
    }

    fn layout(&self) -> Layout<'_> {
        Layout::Even
    }
}

impl<F: FnMut() + Send + 'static> BufferMut for Loud<F> {
    fn memory_mut(&mut self) -> MemoryMut<'_, f32> {
        MemoryMut::Host(&mut self.0)
    }
}

impl<F: FnMut() + Send + 'static> Drop for Loud<F> {
    fn drop(&mut self) {
        (self.1)();
    }
}

/// A buffer calls the library when it is dropped: together with its `Work` after its operation has
/// ended, or on the thread that ends its operation.
#[test]
fn buffer_drop_may_call_library() {
    for transport in LINKS {
        for has_ended in [false, true] {
            let end = within(HANG_LIMIT, move || {
                world(2, (transport, 10 * SECOND), plain, |comm| {
                    let comm = Arc::new(comm);
                    let side = comm.duplicate().unwrap();
                    let mut last_handle = Some((comm.duplicate().unwrap(), Arc::clone(&comm)));
                    let (sender, receiver) = channel();
                    let buffer = Loud(vec![1.0; 1 << 20], move || {
                        if let Some((own, comm)) = last_handle.take() {
                            assert!(comm.error().is_none());
                            assert_eq!(comm.use_algorithm(None), Ok(()));
                            drop(own);
                            sender.send(()).unwrap();
                        }
                    });
                    if comm.rank() == 1 && !has_ended {
                        comm.recv(&mut [0u8], 0).unwrap();
                    }
                    let work = side.start_all_reduce(buffer, ReduceOp::Sum).unwrap();
                    while has_ended && !work.is_finished() {}
                    drop(work);
                    if comm.rank() == 0 && !has_ended {
                        comm.send(&[1u8], 1).unwrap();
                    }
                    comm.barrier().unwrap();
                    receiver.recv().unwrap();
                })
            });
            let how = (transport.name(), has_ended);
            assert!(end.is_some(), "{how:?}: a thread waits for itself");
        }
    }
}

/// A waker calls the library without blocking, like the waker of an executor that runs its task
/// immediately.
#[test]
fn waker_may_call_library() {
    type Started = Result<Work<Vec<f32>>, WorkError<Vec<f32>>>;
    struct Starts(Communicator, Sender<Started>);
    impl Wake for Starts {
        fn wake(self: Arc<Self>) {
            let started = self.0.start_all_reduce(vec![2.0], ReduceOp::Sum);
            self.1.send(started).unwrap();
        }
    }
    for transport in LINKS {
        let end = within(HANG_LIMIT, move || {
            world(2, (transport, 10 * SECOND), plain, |comm| {
                let side = comm.duplicate().unwrap();
                if comm.rank() == 1 {
                    comm.recv(&mut [0u8], 0).unwrap();
                    comm.all_reduce(&mut [1.0f32; 4], ReduceOp::Sum).unwrap();
                    side.all_reduce(&mut [2.0f32], ReduceOp::Sum).unwrap();
                    return;
                }
                let (sender, receiver) = channel();
                let work = comm.start_all_reduce(vec![1.0f32; 4], ReduceOp::Sum);
                let mut work = Box::pin(work.unwrap());
                let waker = Waker::from(Arc::new(Starts(side, sender)));
                let polled = work.as_mut().poll(&mut Context::from_waker(&waker));
                assert!(polled.is_pending(), "rank 1 has not made the call yet");
                comm.send(&[1u8], 1).unwrap();
                assert_eq!(receiver.recv().unwrap().unwrap().wait(), Ok(vec![4.0]));
            })
        });
        let how = transport.name();
        assert!(end.is_some(), "{how}: a thread waits for itself");
    }
}

/// A waker, or the drop of an abandoned buffer, blocks until rank 0 has made two calls: a barrier
/// that succeeds, and a barrier that fails with the error of rank 2, which rank 0 relays. Between
/// these calls, rank 0 takes part in the operation on `late` without making a call.
#[test]
fn blocking_user_code_does_not_delay_calls_or_messages() {
    for transport in LINKS {
        for is_waker in [false, true] {
            let ends = within(HANG_LIMIT, move || {
                world(3, (transport, 20 * SECOND), plain, |comm| {
                    run_with_blocked_code(&comm, is_waker)
                })
            });
            let how = (transport.name(), is_waker);
            let ends = ends.unwrap_or_else(|| panic!("{how:?}: a thread waits for itself"));
            for end in ends {
                let error = end.unwrap_err().to_string();
                assert!(error.contains("rank 2 has no disk"), "{how:?}: {error}");
            }
        }
    }
}

fn run_with_blocked_code(comm: &Communicator, is_waker: bool) -> Result<()> {
    struct Blocks(Mutex<Receiver<()>>, Sender<()>);
    impl Wake for Blocks {
        fn wake(self: Arc<Self>) {
            self.1.send(()).unwrap();
            let _ = self.0.lock().unwrap().recv();
        }
    }
    let [side, late, failing] = [(); 3].map(|()| comm.duplicate().unwrap());
    let is_late = comm.rank() > 0;
    let (release, released) = channel();
    let (begin, begun) = channel();
    let blocks = Arc::new(Blocks(Mutex::new(released), begin));
    let mut works = None;
    if !is_late {
        let late = late.start_all_reduce(vec![1.0f32], ReduceOp::Sum)?;
        let sum = if is_waker {
            let mut sum = Box::pin(side.start_all_reduce(vec![1.0f32], ReduceOp::Sum)?);
            let waker = Waker::from(Arc::clone(&blocks));
            let polled = sum.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
            Some(sum)
        } else {
            let blocks = Arc::clone(&blocks);
            let buffer = Loud(vec![1.0], move || Arc::clone(&blocks).wake());
            drop(side.start_all_reduce(buffer, ReduceOp::Sum)?);
            None
        };
        works = Some((sum, late));
        comm.send(&[1u8], 1)?;
        comm.send(&[1u8], 2)?;
    } else {
        comm.recv(&mut [0u8], 0)?;
        side.all_reduce(&mut [1.0f32], ReduceOp::Sum)?;
    }
    comm.barrier()?;
    if is_late {
        late.all_reduce(&mut [1.0f32], ReduceOp::Sum)?;
    } else {
        begun.recv().unwrap();
    }
    if comm.rank() == 2 {
        failing.abort(&Error::new(ErrorKind::System, "rank 2 has no disk"));
    }
    let end = failing.barrier();
    drop(release);
    drop(works);
    end
}

/// The callback that can interrupt a wait makes a call itself, like a signal handler that agrees on
/// a checkpoint. Rank 1 answers this call, or does not make it before the deadline.
#[test]
fn call_in_interrupt_callback_completes_or_times_out() {
    for transport in LINKS {
        for answers in [true, false] {
            let end = within(HANG_LIMIT, move || call_in_callback(transport, answers));
            let (end, took) = end.expect("rank 0 waits for itself");
            match answers {
                true => assert_eq!(end, Ok(())),
                false => assert!(end.is_err_and(|error| error.kind() == ErrorKind::Deadline)),
            }
            assert!(
                took < 10 * SECOND,
                "a call with a timeout of 2 s took {took:?}"
            );
        }
    }
}

fn call_in_callback(
    transport: ringtree::start::TransportChoice,
    answers: bool,
) -> (Result<()>, Duration) {
    let side = OnceLock::<Communicator>::new();
    let nested = Arc::new(OnceLock::new());
    let side = Arc::new(side);
    let setting = |rank: usize, builder: Builder| {
        let (side, nested) = (Arc::clone(&side), Arc::clone(&nested));
        let is_armed = AtomicBool::new(rank == 0);
        let is_inside = AtomicBool::new(false);
        builder.interrupt(move || {
            if is_inside.swap(true, Ordering::SeqCst) && rank == 0 {
                let again = Error::new(
                    ErrorKind::Usage,
                    "the callback was called again within its own call",
                );
                let _ = nested.set((Err(again), Duration::ZERO));
            }
            if let Some(side) = side.get()
                && is_armed.swap(false, Ordering::SeqCst)
            {
                let start = Instant::now();
                let end = side.with_timeout(2 * SECOND).barrier();
                let _ = nested.set((end, start.elapsed()));
            }
            is_inside.store(false, Ordering::SeqCst);
            false
        })
    };
    world(2, (transport, 20 * SECOND), setting, |comm| {
        let answering = comm.duplicate().unwrap();
        let outer = comm.duplicate().unwrap();
        if comm.rank() == 0 {
            assert!(side.set(answering).is_ok());
            // This call waits for rank 1, and the library calls the callback meanwhile.
            let _ = outer.barrier();
        } else if answers {
            answering.barrier().unwrap();
            outer.barrier().unwrap();
        } else {
            // Join the barrier after rank 0's nested call has ended.
            while nested.get().is_none() {
                thread::yield_now();
            }
            let _ = outer.barrier();
        }
    });
    nested
        .get()
        .cloned()
        .expect("the library calls the callback")
}

/// Allocations are serialized, so a nested allocation would wait for itself.
#[test]
fn nested_alloc_in_interrupt_callback_is_rejected() {
    let end = within(HANG_LIMIT, || {
        let side = Arc::new(OnceLock::<Communicator>::new());
        let nested = Arc::new(OnceLock::new());
        let setting = |rank: usize, builder: Builder| {
            let (side, nested) = (Arc::clone(&side), Arc::clone(&nested));
            builder.interrupt(move || {
                if rank == 0
                    && nested.get().is_none()
                    && let Some(side) = side.get()
                {
                    let _ = nested.set(side.alloc::<u8>(64).map(drop));
                }
                false
            })
        };
        world(2, (LINKS[1], 20 * SECOND), setting, |comm| {
            if comm.rank() == 0 {
                assert!(side.set(comm.with_timeout(20 * SECOND)).is_ok());
            } else {
                while nested.get().is_none() {
                    thread::yield_now();
                }
            }
            comm.alloc::<u8>(64).unwrap();
        });
        nested.get().cloned()
    });
    let nested = end.expect("rank 0 waits for itself");
    let error = nested.expect("the library calls the callback").unwrap_err();
    assert!(error.kind() == ErrorKind::Usage, "{error}");
}

/// Each rank has two threads. One thread of rank 0 is in a call on `left`, which the other thread
/// of rank 1 has not made yet. On `right`, the roles of the ranks are reversed. The two late
/// threads do not wait for anything.
#[test]
fn no_deadlock_is_reported_before_first_call_of_thread() {
    for transport in LINKS {
        let ends = world(2, (transport, 20 * SECOND), plain, |comm| {
            let [left, right, known] = [(); 3].map(|()| comm.duplicate().unwrap());
            // This call makes the late thread known to the library.
            thread::scope(|scope| scope.spawn(|| known.barrier()).join().unwrap())?;
            let early = [&left, &right][comm.rank()];
            early.with_timeout(2 * SECOND).barrier()
        });
        for end in ends {
            // The error is this rank's own timeout, or that of the other rank, which then leaves.
            let text = end.unwrap_err().to_string();
            assert!(text.contains("timed out in"), "{text}");
            assert!(!text.contains("wait for each other"), "{text}");
        }
    }
}

/// Rank 1 leaves cleanly. Then rank 0 makes a call that waits for rank 1.
#[test]
fn pending_messages_immediately_name_departed_rank() {
    type Act = fn(&Communicator) -> Result<()>;
    let acts: [(&str, Act); 6] = [
        ("recv", |comm| comm.recv(&mut [0u32; 4], 1)),
        ("large recv", |comm| comm.recv(&mut vec![0u32; 1 << 20], 1)),
        ("recv_any", |comm| comm.recv_any(&mut [0u32; 4]).map(drop)),
        ("large send", |comm| comm.send(&vec![0u32; 16 << 20], 1)),
        ("recv without timeout", |comm| {
            comm.without_timeout().recv(&mut [0u32; 4], 1)
        }),
        ("recv on a new tag", |comm| {
            comm.with_tag(7).recv(&mut [0u32; 4], 1)
        }),
    ];
    for transport in LINKS {
        for is_linked in [true, false] {
            for (name, act) in acts {
                let end = within(HANG_LIMIT, move || {
                    let ends = world(2, (transport, 30 * SECOND), plain, |comm| {
                        if comm.rank() == 1 {
                            // A message that rank 1 sent before it left still arrives.
                            return is_linked.then(|| comm.send(&[7u32; 4], 0));
                        }
                        if is_linked {
                            let mut numbers = [0u32; 4];
                            comm.recv(&mut numbers, 1).unwrap();
                            assert_eq!(numbers, [7; 4]);
                        }
                        Some(act(&comm))
                    });
                    ends.into_iter().next().flatten().unwrap()
                });
                let how = format!("{name} over {}, linked: {is_linked}", transport.name());
                let error = end
                    .unwrap_or_else(|| panic!("{how}: the call hangs"))
                    .unwrap_err();
                assert!(
                    error.kind() == ErrorKind::PeerLost && error.peer() == Some(1),
                    "{how}: {error}"
                );
                let text = error.to_string();
                assert!(text.contains("left after call #0"), "{how}: {text}");
            }
        }
    }
}

/// A message that a rank sent before it left is received, no matter how late the receive is posted.
#[test]
fn messages_sent_before_departure_are_received() {
    for transport in LINKS {
        for count in [1usize, 1000] {
            let ends = world(3, (transport, 30 * SECOND), plain, |comm| {
                if comm.rank() > 0 {
                    let numbers = vec![comm.rank() as u32; count];
                    return comm.send(&numbers, 0).and_then(|()| comm.send(&numbers, 0));
                }
                let mut numbers = vec![0u32; count];
                for rank in [2, 1] {
                    comm.recv(&mut numbers, rank)?;
                    assert_eq!(numbers, vec![rank as u32; count]);
                }
                let mut senders = [comm.recv_any(&mut numbers)?, comm.recv_any(&mut numbers)?];
                senders.sort_unstable();
                assert_eq!(senders, [1, 2]);
                comm.recv_any(&mut numbers).map(drop)
            });
            let [Err(last), Ok(()), Ok(())] = &ends[..] else {
                panic!("{ends:?}");
            };
            assert!(last.kind() == ErrorKind::PeerLost, "{last}");
        }
    }
}

/// Receives in a group that was created later, whose links are opened on demand.
#[test]
fn recv_any_in_new_group_receives_message() {
    for transport in LINKS {
        let ends = world(3, (transport, 30 * SECOND), plain, |comm| {
            let group = comm.duplicate()?;
            if comm.rank() == 2 {
                group.send(&[7u32], 0)?;
            }
            let mut number = [0u32];
            if comm.rank() == 0 {
                assert_eq!(group.recv_any(&mut number)?, 2);
            }
            comm.barrier().map(|()| number[0])
        });
        assert_eq!(ends, [Ok(7), Ok(0), Ok(0)], "{}", transport.name());
    }
}

/// Set in a copy of this test whose standard error is a full pipe that nobody reads.
const BLOCKED: &str = "RINGTREE_TEST_BLOCKED";

#[test]
fn unread_standard_error_does_not_block_ranks() {
    if std::env::var_os(BLOCKED).is_some() {
        // The ranks warn that they are waiting, and continue nevertheless.
        let warned = |_, builder: Builder| builder.stall_warning(SECOND);
        let ends = world(2, (LINKS[0], 30 * SECOND), warned, |comm| {
            let late = comm.rank() == 1;
            thread::sleep(if late { 3 * SECOND } else { Duration::ZERO });
            comm.barrier()
        });
        assert_eq!(ends, [Ok(()), Ok(())]);
        println!("both continued");
        return;
    }
    let (reader, mut writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    while writer.write(&[b'.'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    let end = within(HANG_LIMIT, move || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let name = "waiting::unread_standard_error_does_not_block_ranks";
        command
            .args([name, "--exact", "--nocapture"])
            .env(BLOCKED, "1");
        command
            .stderr(writer)
            .stdout(Stdio::piped())
            .output()
            .unwrap()
    });
    let output = end.expect("a rank waits for a reader of its standard error");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("both continued"),
        "{said}"
    );
    drop(reader);
}
