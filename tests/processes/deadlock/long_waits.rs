//! Programs in which ranks wait for each other for a long time in different communicators. Most of
//! these programs complete.

use ringtree::{Communicator, Error, ReduceOp, Result};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

/// A delay after which the peers have reported their positions to each other.
pub(crate) const LATE: Duration = Duration::from_secs(4);

/// Time that a newly started thread needs to reach its wait. In simulated worlds, virtual time does
/// not advance meanwhile.
const BEGUN: Duration = Duration::from_millis(100);

/// A function that lets time pass on a rank.
pub(crate) type Pause<'a> = &'a (dyn Fn(&Communicator, Duration) + Sync);

/// Returns two communicators on which this thread has made a call.
fn used(comm: &Communicator) -> Result<[Communicator; 2]> {
    let pair = [
        comm.duplicate()?.with_name("x"),
        comm.duplicate()?.with_name("y"),
    ];
    pair.iter().try_for_each(Communicator::barrier)?;
    Ok(pair)
}

/// Waits in y. Meanwhile, another thread, which has not made a call on either communicator, runs
/// `first` and then makes the call on x.
fn wait_alongside(
    [x, y]: [Communicator; 2],
    first: impl FnOnce(&Communicator) -> Result<()> + Send,
) -> Result<()> {
    thread::scope(|scope| {
        let (begins, begun) = channel();
        let x = &x;
        let other = scope.spawn(move || {
            begins.send(()).expect("the first thread waits");
            first(x)?;
            x.barrier()
        });
        begun.recv().expect("the other thread sends");
        thread::sleep(BEGUN);
        let end = y.barrier();
        other.join().expect("no panic").and(end)
    })
}

/// Rank 0 waits in x for rank 1, and rank 1 waits in y for rank 0, until another thread of rank 1
/// makes the call on x after a pause.
pub(crate) fn second_thread(comm: &Communicator, pause: Pause<'_>) -> Result<()> {
    let [x, y] = used(comm)?;
    if comm.rank() != 1 {
        return x.barrier().and_then(|()| y.barrier());
    }
    wait_alongside([x, y], |x| {
        pause(x, LATE);
        Ok(())
    })
}

/// Like [`second_thread`], but the other thread waits for a group. Rank 2, a member of this group,
/// is late.
pub(crate) fn late_member(comm: &Communicator, pause: Pause<'_>) -> Result<()> {
    let [x, y] = used(comm)?;
    if comm.rank() == 1 {
        return wait_alongside([x, y], |_| comm.subgroup(&[1, 2]).map(drop));
    }
    if comm.rank() == 2 {
        pause(comm, LATE);
        comm.subgroup(&[1, 2])?;
    }
    x.barrier().and_then(|()| y.barrier())
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Like [`second_thread`], but the other thread runs an executor, whose task waits for a call that
/// rank 2 makes late.
pub(crate) fn future_pending(comm: &Communicator, pause: Pause<'_>) -> Result<()> {
    let [x, y] = used(comm)?;
    if comm.rank() == 2 {
        pause(comm, LATE);
    }
    let late = comm.start_all_reduce(vec![1.0f32], ReduceOp::Sum)?;
    if comm.rank() != 1 {
        x.barrier().and_then(|()| y.barrier())?;
        return late.wait().map(drop).map_err(Error::from);
    }
    wait_alongside([x, y], |_| {
        let ended = block_on(late);
        ended.map(drop).map_err(Error::from)
    })
}

/// Rank 1 computes while the other ranks wait in x. Then rank 2 computes while the other ranks wait
/// in y.
pub(crate) fn computing(comm: &Communicator, pause: Pause<'_>) -> Result<()> {
    let [x, y] = used(comm)?;
    for (late, group) in [(1, &x), (2, &y)] {
        if comm.rank() == late {
            pause(comm, LATE);
        }
        group.barrier()?;
    }
    Ok(())
}

/// Ranks wait for each other. Rank 0's call has no timeout, and ends when another rank's call times
/// out.
pub(crate) fn one_untimed(comm: &Communicator) -> Result<()> {
    let [x, y] = used(comm)?;
    match comm.rank() {
        0 => x.without_timeout().barrier(),
        _ => y.with_timeout(LATE).barrier(),
    }
}

/// Ranks wait for each other in calls without a timeout.
pub(crate) fn both_untimed(comm: &Communicator) -> Result<()> {
    let pair = used(comm)?;
    pair[comm.rank() % 2].without_timeout().barrier()
}

/// Rank 0 waits in x for rank 1. Rank 1 waits in y for another thread of rank 0, which continues
/// only after the wait in x has ended.
pub(crate) fn other_caller(comm: &Communicator) -> Result<()> {
    let [x, y] = used(comm)?;
    if comm.rank() == 1 {
        return y.barrier().and_then(|()| y.barrier());
    }
    thread::scope(|scope| {
        let ((report, reported), (free, freed)) = (channel(), channel());
        let y = &y;
        let other = scope.spawn(move || {
            let called = y.barrier();
            report.send(()).expect("the first thread waits");
            freed.recv().expect("the first thread ends its wait");
            called.and_then(|()| y.barrier())
        });
        reported.recv().expect("the other thread sends");
        let end = x.with_timeout(LATE).barrier();
        free.send(()).expect("the other thread waits");
        other.join().expect("no panic").and(end)
    })
}

/// Rank 0 receives from any rank. Rank 1 waits in y for rank 0, and rank 2 sends late.
pub(crate) fn any_sender(comm: &Communicator, pause: Pause<'_>) -> Result<()> {
    let [x, y] = used(comm)?;
    match comm.rank() {
        0 => x.with_timeout(LATE).recv_any(&mut [0u8]).map(drop),
        1 => y.barrier(),
        _ => {
            pause(comm, 2 * LATE);
            x.send(&[1u8], 0)
        }
    }
}
