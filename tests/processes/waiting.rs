//! What a rank does while it waits: code of the program may call the library from wherever the
//! library calls it, no call waits for the reader of standard error, and a rank that left in peace
//! is named at once by the messages that wait for it.

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
/// Longer than any timeout here: what is not back by then never comes.
const FOR_EVER: Duration = Duration::from_secs(60);

fn plain(_: usize, builder: Builder) -> Builder {
    builder
}

/// A buffer that does something when it is dropped.
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

/// A buffer calls the library when it is dropped: with its `Work`, after its operation has ended,
/// or by the thread that ends its operation.
#[test]
fn a_buffer_that_calls_the_library_when_it_is_dropped_stops_nobody() {
    for transport in LINKS {
        for has_ended in [false, true] {
            let end = within(FOR_EVER, move || {
                world(2, (transport, 10 * SECOND), plain, |comm| {
                    let comm = Arc::new(comm);
                    let side = comm.duplicate().unwrap();
                    let mut last_handle = Some((comm.duplicate().unwrap(), Arc::clone(&comm)));
                    let (tell, told) = channel();
                    let buffer = Loud(vec![1.0; 1 << 20], move || {
                        if let Some((own, comm)) = last_handle.take() {
                            assert!(comm.error().is_none());
                            assert_eq!(comm.use_algorithm(None), Ok(()));
                            drop(own);
                            tell.send(()).unwrap();
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
                    told.recv().unwrap();
                })
            });
            let how = (transport.name(), has_ended);
            assert!(end.is_some(), "{how:?}: a thread waits for itself");
        }
    }
}

/// A waker calls the library, without blocking: as that of an executor does which runs its task at
/// once.
#[test]
fn a_waker_that_calls_the_library_stops_nobody() {
    type Started = Result<Work<Vec<f32>>, WorkError<Vec<f32>>>;
    struct Starts(Communicator, Sender<Started>);
    impl Wake for Starts {
        fn wake(self: Arc<Self>) {
            let started = self.0.start_all_reduce(vec![2.0], ReduceOp::Sum);
            self.1.send(started).unwrap();
        }
    }
    for transport in LINKS {
        let end = within(FOR_EVER, move || {
            world(2, (transport, 10 * SECOND), plain, |comm| {
                let side = comm.duplicate().unwrap();
                if comm.rank() == 1 {
                    comm.recv(&mut [0u8], 0).unwrap();
                    comm.all_reduce(&mut [1.0f32; 4], ReduceOp::Sum).unwrap();
                    side.all_reduce(&mut [2.0f32], ReduceOp::Sum).unwrap();
                    return;
                }
                let (tell, told) = channel();
                let work = comm.start_all_reduce(vec![1.0f32; 4], ReduceOp::Sum);
                let mut work = Box::pin(work.unwrap());
                let waker = Waker::from(Arc::new(Starts(side, tell)));
                let polled = work.as_mut().poll(&mut Context::from_waker(&waker));
                assert!(polled.is_pending(), "rank 1 has not come");
                comm.send(&[1u8], 1).unwrap();
                assert_eq!(told.recv().unwrap().unwrap().wait(), Ok(vec![4.0]));
            })
        });
        let how = transport.name();
        assert!(end.is_some(), "{how}: a thread waits for itself");
    }
}

/// A waker, or the drop of an abandoned buffer, blocks until rank 0 has made two calls: a barrier
/// that ends well, and one that ends with rank 2's error, which rank 0 relays. Between the two,
/// rank 0 takes part in `late` without a call.
#[test]
fn code_of_the_program_that_blocks_holds_up_no_call_and_no_message() {
    for transport in LINKS {
        for is_waker in [false, true] {
            let ends = within(FOR_EVER, move || {
                world(3, (transport, 20 * SECOND), plain, |comm| {
                    beside_blocked(&comm, is_waker)
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

fn beside_blocked(comm: &Communicator, is_waker: bool) -> Result<()> {
    struct Blocks(Mutex<Receiver<()>>, Sender<()>);
    impl Wake for Blocks {
        fn wake(self: Arc<Self>) {
            self.1.send(()).unwrap();
            let _ = self.0.lock().unwrap().recv();
        }
    }
    let [side, late, failing] = [(); 3].map(|()| comm.duplicate().unwrap());
    let is_late = comm.rank() > 0;
    let (tell, told) = channel();
    let (begin, begun) = channel();
    let blocks = Arc::new(Blocks(Mutex::new(told), begin));
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
    drop(tell);
    drop(works);
    end
}

/// The callback by which a user interrupts a wait makes a call of its own, as a signal's handler
/// does that agrees on a checkpoint. Rank 1 answers it, or does not come before its deadline.
#[test]
fn a_call_from_the_interrupt_callback_is_carried_out_or_ends_by_its_deadline() {
    for transport in LINKS {
        for answers in [true, false] {
            let end = within(FOR_EVER, move || from_the_callback(transport, answers));
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

fn from_the_callback(
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
                    "the callback was asked again within its own call",
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
        let beside = comm.duplicate().unwrap();
        let outer = comm.duplicate().unwrap();
        if comm.rank() == 0 {
            assert!(side.set(beside).is_ok());
            // It waits for rank 1; the callback is asked meanwhile.
            let _ = outer.barrier();
        } else if answers {
            beside.barrier().unwrap();
            outer.barrier().unwrap();
        } else {
            // Comes once rank 0's call has ended.
            while nested.get().is_none() {
                thread::yield_now();
            }
            let _ = outer.barrier();
        }
    });
    nested.get().cloned().expect("the callback was asked")
}

/// A buffer is made in turns, so one within another could only wait for itself.
#[test]
fn a_buffer_from_the_interrupt_callback_while_its_thread_makes_one_is_refused() {
    let end = within(FOR_EVER, || {
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
    let error = nested.expect("the callback was asked").unwrap_err();
    assert!(error.kind() == ErrorKind::Usage, "{error}");
}

/// Two threads a rank. One of rank 0 is in a call on `left`, which the other thread of rank 1 would
/// make first, and the other way round on `right`. These two threads are late, and wait for nobody.
#[test]
fn ranks_with_several_threads_are_not_said_to_wait_for_each_other_before_a_first_call() {
    for transport in LINKS {
        let ends = world(2, (transport, 20 * SECOND), plain, |comm| {
            let [left, right, known] = [(); 3].map(|()| comm.duplicate().unwrap());
            // The late thread is known by a call of its own.
            thread::scope(|scope| scope.spawn(|| known.barrier()).join().unwrap())?;
            let early = [&left, &right][comm.rank()];
            early.with_timeout(2 * SECOND).barrier()
        });
        for end in ends {
            // Its own timeout, or the other rank's, which leaves then.
            let text = end.unwrap_err().to_string();
            assert!(text.contains("timed out in"), "{text}");
            assert!(!text.contains("wait for each other"), "{text}");
        }
    }
}

/// Rank 1 leaves in peace; what rank 0 does then waits for it.
#[test]
fn a_rank_that_left_in_peace_is_named_at_once_by_messages_that_wait_for_it() {
    type Act = fn(&Communicator) -> Result<()>;
    let acts: [(&str, Act); 6] = [
        ("recv", |comm| comm.recv(&mut [0u32; 4], 1)),
        ("recv of much", |comm| {
            comm.recv(&mut vec![0u32; 1 << 20], 1)
        }),
        ("recv_any", |comm| comm.recv_any(&mut [0u32; 4]).map(drop)),
        ("send of much", |comm| comm.send(&vec![0u32; 16 << 20], 1)),
        ("patient recv", |comm| {
            comm.without_timeout().recv(&mut [0u32; 4], 1)
        }),
        ("recv on a new tag", |comm| {
            comm.with_tag(7).recv(&mut [0u32; 4], 1)
        }),
    ];
    for transport in LINKS {
        for is_linked in [true, false] {
            for (name, act) in acts {
                let end = within(FOR_EVER, move || {
                    let ends = world(2, (transport, 30 * SECOND), plain, |comm| {
                        if comm.rank() == 1 {
                            // What it sent before it left arrives.
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
                    .unwrap_or_else(|| panic!("{how}: for ever"))
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

/// What a rank sent before it left is received, however late its receiver comes.
#[test]
fn what_a_rank_sent_before_it_left_is_received() {
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

/// In a group that was made later, whose links are made when they are needed.
#[test]
fn a_receive_from_any_rank_of_a_new_group_takes_the_message_that_comes() {
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

/// In a copy of this test whose standard error is a pipe that is full and never read.
const BLOCKED: &str = "RINGTREE_TEST_BLOCKED";

#[test]
fn a_standard_error_that_is_never_read_holds_nobody_up() {
    if std::env::var_os(BLOCKED).is_some() {
        // The ranks warn that they wait, and go on all the same.
        let warned = |_, builder: Builder| builder.stall_warning(SECOND);
        let ends = world(2, (LINKS[0], 30 * SECOND), warned, |comm| {
            let late = comm.rank() == 1;
            thread::sleep(if late { 3 * SECOND } else { Duration::ZERO });
            comm.barrier()
        });
        assert_eq!(ends, [Ok(()), Ok(())]);
        println!("both went on");
        return;
    }
    let (reader, mut writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    while writer.write(&[b'.'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    let end = within(FOR_EVER, move || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let name = "waiting::a_standard_error_that_is_never_read_holds_nobody_up";
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
        output.status.success() && said.contains("both went on"),
        "{said}"
    );
    drop(reader);
}
