//! Programs in which ranks wait for each other for long in different communicators, and go on.

use ringtree::{Communicator, Error, ReduceOp, Result};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

/// Much longer than two snapshots.
pub(crate) const LATE: Duration = Duration::from_secs(4);

/// Meanwhile a thread that has begun comes to its wait. Virtual time stands still, where that is
/// what passes.
const BEGUN: Duration = Duration::from_millis(100);

/// Lets time pass on a rank.
pub(crate) type Pause<'a> = &'a (dyn Fn(&Communicator, Duration) + Sync);

/// Two communicators that this thread has called.
fn used(comm: &Communicator) -> Result<[Communicator; 2]> {
    let pair = [comm.duplicate()?.named("x"), comm.duplicate()?.named("y")];
    pair.iter().try_for_each(Communicator::barrier)?;
    Ok(pair)
}

/// Rank 0 waits in x for rank 1, which waits in y for rank 0: until another thread of rank 1, which
/// has called neither, makes the call.
pub(crate) fn second_thread(comm: &Communicator, pause: Pause<'_>) -> Result<()> {
    let [x, y] = used(comm)?;
    if comm.rank() != 1 {
        return x.barrier().and_then(|()| y.barrier());
    }
    thread::scope(|scope| {
        let (begins, begun) = channel();
        let x = &x;
        let other = scope.spawn(move || {
            begins.send(()).expect("the first thread waits");
            pause(x, LATE);
            x.barrier()
        });
        begun.recv().expect("the other thread sends");
        thread::sleep(BEGUN);
        let end = y.barrier();
        other.join().expect("no panic").and(end)
    })
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
    let late = comm.all_reduce_async(vec![1.0f32], ReduceOp::Sum)?;
    if comm.rank() != 1 {
        x.barrier().and_then(|()| y.barrier())?;
        return late.wait().map(drop).map_err(Error::from);
    }
    thread::scope(|scope| {
        let (begins, begun) = channel();
        let x = &x;
        let task = async move {
            begins.send(()).expect("the first thread waits");
            late.await?;
            x.barrier()
        };
        let other = scope.spawn(|| block_on(task));
        begun.recv().expect("the other thread sends");
        thread::sleep(BEGUN);
        let end = y.barrier();
        other.join().expect("no panic").and(end)
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
        0 => x.patient().barrier(),
        _ => y.with_timeout(LATE).barrier(),
    }
}
