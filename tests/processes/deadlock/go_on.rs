//! Programs in which ranks wait for each other for long in different communicators, and go on.

use ringtree::{Communicator, Error, ReduceOp, Result};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

/// Later than the peers have told each other where they are.
pub(crate) const LATE: Duration = Duration::from_secs(4);

/// Meanwhile a thread that has begun comes to its wait. Virtual time stands still, where that is
/// what passes.
const BEGUN: Duration = Duration::from_millis(100);

/// Lets time pass on a rank.
pub(crate) type Pause<'a> = &'a (dyn Fn(&Communicator, Duration) + Sync);

/// Two communicators that this thread has called.
fn used(comm: &Communicator) -> Result<[Communicator; 2]> {
    let pair = [
        comm.duplicate()?.with_name("x"),
        comm.duplicate()?.with_name("y"),
    ];
    pair.iter().try_for_each(Communicator::barrier)?;
    Ok(pair)
}

/// This thread waits in y, while another one, which has called neither, is to make the call on x
/// after `first`.
fn beside(
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

/// Rank 0 waits in x for rank 1, which waits in y for rank 0: until another thread of rank 1 makes
/// the call, after a pause.
pub(crate) fn second_thread(comm: &Communicator, pause: Pause<'_>) -> Result<()> {
    let [x, y] = used(comm)?;
    if comm.rank() != 1 {
        return x.barrier().and_then(|()| y.barrier());
    }
    beside([x, y], |x| {
        pause(x, LATE);
        Ok(())
    })
}

/// As before, but the other thread waits for a group of which rank 2 is a member, which comes late.
pub(crate) fn late_member(comm: &Communicator, pause: Pause<'_>) -> Result<()> {
    let [x, y] = used(comm)?;
    if comm.rank() == 1 {
        return beside([x, y], |_| comm.subgroup(&[1, 2]).map(drop));
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

/// As before, but the other thread is an executor's: its task waits for a call that rank 2 makes
/// late.
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
    beside([x, y], |_| {
        let ended = block_on(late);
        ended.map(drop).map_err(Error::from)
    })
}

/// Rank 1 computes while rank 0 waits in x, and then rank 2 while all others wait in y.
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

/// Ranks wait for each other, one of them for as long as it takes: the other's timeout ends it.
pub(crate) fn patient(comm: &Communicator) -> Result<()> {
    let [x, y] = used(comm)?;
    match comm.rank() {
        0 => x.without_timeout().barrier(),
        _ => y.with_timeout(LATE).barrier(),
    }
}

/// Ranks wait for each other for as long as it takes.
pub(crate) fn both_patient(comm: &Communicator) -> Result<()> {
    let pair = used(comm)?;
    pair[comm.rank() % 2].without_timeout().barrier()
}

/// Rank 0 waits in x for rank 1, which waits in y for another thread of rank 0: that comes when x
/// has ended.
pub(crate) fn other_caller(comm: &Communicator) -> Result<()> {
    let [x, y] = used(comm)?;
    if comm.rank() == 1 {
        return y.barrier().and_then(|()| y.barrier());
    }
    thread::scope(|scope| {
        let ((tell, told), (free, freed)) = (channel(), channel());
        let y = &y;
        let other = scope.spawn(move || {
            let called = y.barrier();
            tell.send(()).expect("the first thread waits");
            freed.recv().expect("it ends its wait");
            called.and_then(|()| y.barrier())
        });
        told.recv().expect("the other thread sends");
        let end = x.with_timeout(LATE).barrier();
        free.send(()).expect("the other thread waits");
        other.join().expect("no panic").and(end)
    })
}

/// Rank 0 receives from the first rank that sends; rank 1 waits in y for rank 0, rank 2 comes late.
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
