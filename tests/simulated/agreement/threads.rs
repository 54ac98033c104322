//! Tests a communicator that is shared by several threads of a rank, or used by asynchronous tasks.

use ringtree::sim::World;
use ringtree::{Communicator, Error, ErrorKind, ReduceOp, Result, Work};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

#[test]
fn communicator_can_be_shared_and_work_can_be_moved() {
    fn shared<T: Send + Sync>() {}
    fn movable<T: Send + Unpin>() {}
    shared::<Communicator>();
    movable::<Work<Vec<f32>>>();
    movable::<ringtree::comm::WorkError<Vec<f32>>>();
}

#[test]
fn calls_of_several_threads_are_queued() {
    const THREADS: u64 = 3;
    const CALLS: u64 = 50;
    let ends = World::new(2).run(|comm| {
        thread::scope(|scope| {
            // All threads issue the same call, so that every order of the calls is equivalent.
            let calls = || {
                (0..CALLS).try_for_each(|_| {
                    let mut sum = [1u64, comm.rank() as u64];
                    comm.all_reduce(&mut sum, ReduceOp::Sum)?;
                    assert_eq!(sum, [2, 1]);
                    Ok::<_, Error>(())
                })
            };
            let others: Vec<_> = (1..THREADS).map(|_| scope.spawn(calls)).collect();
            calls()?;
            others
                .into_iter()
                .try_for_each(|one| one.join().expect("no panic"))
        })
    });
    assert_eq!(ends, [Ok(()), Ok(())]);
}

/// Two threads on each of two ranks issue their calls in opposite orders.
#[test]
fn different_order_of_threads_on_two_ranks_is_a_mismatch() {
    let ends = World::new(2).run(|comm| {
        let (issued, was_issued) = channel();
        let is_swapped = comm.rank() == 1;
        let sum = || comm.start_all_reduce(vec![1.0f32; 9], ReduceOp::Sum);
        let copy = || comm.start_broadcast(vec![1.0f32; 9], 0);
        thread::scope(|scope| {
            let first = scope.spawn(move || {
                let work = if is_swapped { copy() } else { sum() };
                issued.send(()).expect("the other thread waits");
                work.and_then(Work::wait).map(drop)
            });
            was_issued.recv().expect("the other thread sends");
            let work = if is_swapped { sum() } else { copy() };
            let second = work.and_then(Work::wait).map(drop);
            // A root's broadcast may have completed before the ranks noticed the difference.
            let first = first.join().expect("no panic");
            first.and(second).map_err(Error::from)
        })
    });
    let error = ends[0].as_ref().unwrap_err();
    assert!(error.kind() == ErrorKind::Mismatch, "{error}");
    let text = error.to_string();
    for call in [
        "rank 0 all-reduce #1 of 9 f32",
        "rank 1 broadcast #1 of 9 f32",
    ] {
        assert!(text.contains(call), "{text}");
    }
    assert_eq!(ends[0], ends[1]);
}

/// The waker of a minimal executor, which runs one task. Its thread sleeps until it is woken.
struct Unpark(thread::Thread, AtomicUsize);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let unpark = Arc::new(Unpark(thread::current(), AtomicUsize::new(0)));
    let waker = Waker::from(unpark);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn any_executor_can_await_operations() {
    let ends = World::new(3).run(|comm| {
        block_on(async {
            let (rank, ranks) = (comm.rank(), comm.world_size());
            let sum = comm.start_all_reduce(vec![rank as u64; 3000], ReduceOp::Sum)?;
            let sent = comm.start_send(vec![rank as u8; 70_000], (rank + 1) % ranks)?;
            let left = comm
                .start_recv(vec![9u8; 70_000], (rank + ranks - 1) % ranks)?
                .await?;
            sent.await?;
            Ok::<_, Error>((sum.await?[2999], left[69_999]))
        })
    });
    assert_eq!(ends, [Ok((3, 2)), Ok((3, 0)), Ok((3, 1))]);
}

#[test]
fn dropped_future_lets_its_operation_complete() {
    let ends = World::new(2).run(|comm| {
        let mut work = comm.start_all_reduce(vec![1u32; 5000], ReduceOp::Sum)?;
        let polled = Pin::new(&mut work).poll(&mut Context::from_waker(Waker::noop()));
        drop(polled);
        drop(work);
        // The operation is detached. The next call is still number 2 on both ranks.
        let mut sum = [1u32];
        comm.all_reduce(&mut sum, ReduceOp::Sum).map(|()| sum)
    });
    assert_eq!(ends, vec![Ok([2]); 2]);
}

#[test]
fn task_gets_an_error_when_a_rank_dies() {
    let mut world = World::new(2);
    world.network.faults.deaths = vec![(1, Duration::from_millis(500))];
    let ends = world.run(|comm| -> Result<()> {
        block_on(async {
            loop {
                comm.start_all_reduce(vec![1.0f64; 100], ReduceOp::Sum)?
                    .await?;
            }
        })
    });
    assert!(
        ends[0].as_ref().is_err_and(|error| error.peer() == Some(1)),
        "{ends:?}"
    );
}
