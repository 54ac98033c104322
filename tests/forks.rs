//! Children that a rank forks, as data loaders do: they make no calls, and their parents go on as
//! if there were none.

#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "support/ranks.rs"]
mod ranks;

use ranks::{Links, ROLE, Suite, concurrently, exit};
use ringtree::internal::calls;
use ringtree::plan::Collective;
use ringtree::start::UniqueId;
use ringtree::{Builder, Communicator, Error, ErrorKind, ReduceOp, Result, Work};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A call that hangs ends its child after so many seconds.
const HANGS: u32 = 20;
/// Children that a rank forks in each role.
const CHILDREN: usize = 12;
const COUNT: usize = 100_000;

/// Its ranks enter here.
const SUITE: Suite = Suite(module_path!());

#[test]
fn child_entry() {
    match std::env::var(ROLE).as_deref() {
        Ok("idle") => exit(idle()),
        Ok("busy") => exit(busy()),
        Ok("buffers") => exit(buffers()),
        Ok("callback") => exit(callback()),
        Ok(other) => panic!("no role is called {other}"),
        Err(_) => {}
    }
}

type Call = fn(&Communicator) -> Result<()>;

/// What a child may try.
const CALLS: &[(&str, Call)] = &[
    ("all_reduce", |comm| {
        comm.all_reduce(&mut [9.0f32; 4], ReduceOp::Sum)
    }),
    ("a large all_reduce", |comm| {
        comm.all_reduce(&mut vec![9.0f32; COUNT], ReduceOp::Sum)
    }),
    ("all_reduce_into", |comm| {
        comm.all_reduce_into(&[9.0f32], &mut [0.0], ReduceOp::Avg)
    }),
    ("broadcast", |comm| comm.broadcast(&mut [9u8], 0)),
    ("all_to_all", |comm| comm.all_to_all(&mut [9u8; 2])),
    ("barrier", Communicator::barrier),
    ("all_gather_value", |comm| {
        comm.all_gather_value(&9).map(drop)
    }),
    ("start_all_reduce", |comm| {
        drop(comm.start_all_reduce(vec![9.0f32], ReduceOp::Sum)?);
        Ok(())
    }),
    ("start_all_reduce_into", |comm| {
        let work = comm.start_all_reduce_into([9.0f32], vec![0.0], ReduceOp::Sum)?;
        work.wait().map(drop).map_err(Error::from)
    }),
    ("start_barrier", |comm| {
        comm.start_barrier()?.wait().map_err(Error::from)
    }),
    ("send", |comm| comm.send(&[9.0f32], 1 - comm.rank())),
    ("start_send", |comm| {
        drop(comm.start_send(vec![9.0f32], 1 - comm.rank())?);
        Ok(())
    }),
    ("recv", |comm| comm.recv(&mut [9.0f32], 1 - comm.rank())),
    ("recv_any", |comm| comm.recv_any(&mut [9.0f32]).map(drop)),
    ("sendrecv", |comm| {
        let peer = 1 - comm.rank();
        comm.sendrecv(&[9u8], peer, &mut [0u8], peer)
    }),
    ("group", |comm| {
        comm.batch(|group| group.send(&[9u8], 1 - comm.rank()))
    }),
    ("scope", |comm| {
        let mut numbers = [9.0f32; 4];
        comm.scope(|scope| {
            scope
                .all_reduce(&mut numbers, ReduceOp::Sum)?
                .wait()
                .map(drop)
        })
    }),
    ("split", |comm| comm.split(0, 0).map(drop)),
    ("subgroup", |comm| comm.subgroup(&[0, 1]).map(drop)),
    ("duplicate", |comm| comm.duplicate().map(drop)),
    ("alloc", |comm| comm.alloc::<f32>(100).map(drop)),
    ("use_algorithm", |comm| comm.use_algorithm(None)),
    ("plan_for", |comm| {
        comm.plan_for(Collective::Barrier, 1, ringtree::Dtype::U8, 0)
            .map(drop)
    }),
    #[cfg(feature = "cuda")]
    ("synchronize", Communicator::synchronize),
    ("without_timeout", |comm| {
        comm.without_timeout().with_name("child").barrier()
    }),
    ("error", |comm| {
        ringtree::internal::ddp::mark(comm, 1 << 40);
        comm.abort(&Error::new(ErrorKind::System, "a child's disk is full"));
        assert_eq!(
            ringtree::internal::ddp::agreed_mark(comm, Duration::from_secs(60)),
            None
        );
        comm.error().map_or(Ok(()), Err)
    }),
];

/// Whether this is how a forked child's call ends.
fn check(what: &str, end: Result<()>) -> std::result::Result<(), String> {
    match end {
        Err(error)
            if error.kind() == ErrorKind::Usage && error.to_string().contains("forked child") =>
        {
            Ok(())
        }
        other => Err(format!("{what} ended with {other:?}")),
    }
}

/// Every call of a child's is refused.
fn all_are_refused(comm: &Communicator) -> std::result::Result<(), String> {
    let mut calls = CALLS.iter();
    calls.try_for_each(|(what, call)| check(what, call(comm)))
}

/// Forks; the child's number in the parent, 0 in the child.
fn fork() -> i32 {
    // SAFETY: a test of what happens if a program does this, as Python's os.fork() does. The child
    // allocates, which the C library's fork allows.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: it takes a number.
        unsafe { libc::alarm(HANGS) };
    }
    pid
}

/// A child ends.
fn leave(end: std::result::Result<(), String>) -> ! {
    if let Err(why) = &end {
        eprintln!("a child: {why}");
    }
    // SAFETY: it takes a number. What is to run at the end of the harness does not.
    unsafe { libc::_exit(i32::from(end.is_err())) };
}

/// How a child ends.
fn wait_for(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: waits for a child of this process; the status is this function's.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    status
}

/// Waits for a child; an error if it does not end well.
fn reap(pid: i32) -> Result<()> {
    match wait_for(pid) {
        0 => Ok(()),
        status => Err(Error::new(
            ErrorKind::System,
            format!("a child ended with status {status:#x}"),
        )),
    }
}

/// Forks a child that does this, and waits for it.
fn child(act: impl FnOnce() -> std::result::Result<(), String>) -> Result<()> {
    match fork() {
        0 => leave(act()),
        pid => reap(pid),
    }
}

/// The sum of what both ranks give, which is 2.
fn sum_up(comm: &Communicator, count: usize) -> Result<()> {
    let mut sum = vec![1.0f32; count];
    comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    match sum.iter().all(|one| *one == 2.0) {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::System,
            format!("the sum is {}, of {count}", sum[0]),
        )),
    }
}

/// Rank 0 forks while no call of it is under way, before rank 1 makes its next call and while it
/// waits there. Its children are refused, and drop the communicator.
fn idle() -> Result<String> {
    let mut comm = Some(Communicator::from_env()?);
    for round in 0..CHILDREN {
        let world = comm.as_ref().unwrap();
        world.barrier()?;
        if world.rank() == round % 3 {
            // So that the other rank waits, or, where this one forks, the child is first.
            std::thread::sleep(Duration::from_millis(30));
        }
        if world.rank() == 0 {
            child(|| {
                all_are_refused(comm.as_ref().unwrap())?;
                drop(comm.take());
                Ok(())
            })?;
        }
        let world = comm.as_ref().unwrap();
        sum_up(world, [1, 4, COUNT][round % 3])?;
        let mut message = [1.0f32];
        match world.rank() {
            0 => world.send(&message, 1)?,
            _ => world.recv(&mut message, 0)?,
        }
        assert_eq!(message, [1.0]);
    }
    comm.unwrap().barrier()?;
    Ok("all well".into())
}

/// Rank 0 forks while another thread is in calls, asynchronous calls wait for rank 1, and a scope
/// is open. Its children are given the buffer back, with an error, and leave the scope.
fn busy() -> Result<String> {
    let comm = Communicator::from_env()?;
    let other = comm.duplicate()?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let calls = threads.spawn(|| {
            // Both ranks leave after the same call.
            loop {
                let mut votes = [u8::from(is_over.load(Ordering::Relaxed)); COUNT];
                other.all_reduce(&mut votes, ReduceOp::Min)?;
                if votes[0] == 1 {
                    return other.barrier();
                }
            }
        });
        let mut end = Ok(());
        for round in 0..CHILDREN {
            end = end.and_then(|()| forked_under_way(&comm, round));
        }
        is_over.store(true, Ordering::Relaxed);
        end.and(calls.join().unwrap())
    })?;
    Ok("all well".into())
}

fn forked_under_way(comm: &Communicator, round: usize) -> Result<()> {
    let start = || comm.start_all_reduce(vec![1.0f32; COUNT], ReduceOp::Sum);
    let mut works = Vec::new();
    if comm.rank() == 0 {
        works = vec![Some(start()?), Some(start()?), Some(start()?)];
        child(|| {
            all_are_refused(comm)?;
            ends_of_works(&mut works)
        })?;
    } else {
        std::thread::sleep(Duration::from_millis(5 * (round % 4) as u64));
        works.extend([Some(start()?), Some(start()?), Some(start()?)]);
    }
    for work in works.into_iter().flatten() {
        let sums = work.wait()?;
        assert!(sums.iter().all(|one| *one == 2.0));
    }
    let mut lent = [vec![1.0f32; COUNT], vec![1.0f32; COUNT]];
    let mut forked = None;
    let end = comm.scope(|scope| {
        let [one, other] = &mut lent;
        let work = scope.all_reduce(one, ReduceOp::Sum)?;
        let _of_the_scope = scope.all_reduce(other, ReduceOp::Sum)?;
        if comm.rank() == 0 {
            forked = Some(fork());
        }
        work.wait().map(drop)
    });
    match forked {
        Some(0) => leave(check("a scope", end)),
        Some(pid) => reap(pid)?,
        None => {}
    }
    end?;
    assert!(lent.iter().flatten().all(|one| *one == 2.0));
    comm.barrier()
}

/// A child asks for its parent's calls in all ways: the first is waited for, the second awaited,
/// the third dropped.
fn ends_of_works(works: &mut [Option<Work<Vec<f32>>>]) -> std::result::Result<(), String> {
    let mut take = |at: usize| works[at].take().unwrap();
    let (first, mut second, third) = (take(0), take(1), take(2));
    if !first.is_finished() {
        return Err("a work goes on".into());
    }
    let failed = first.wait().unwrap_err();
    assert_eq!(failed.buffer.len(), COUNT);
    check("a work that is waited for", Err(failed.error))?;
    let mut context = Context::from_waker(Waker::noop());
    match std::pin::Pin::new(&mut second).poll(&mut context) {
        Poll::Ready(Err(failed)) => check("a work that is awaited", Err(failed.error))?,
        _ => return Err("a work that is awaited has no error".into()),
    }
    drop(third);
    Ok(())
}

/// How many memories of the library this process has mapped.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains("memfd:ringtree"))
        .count()
}

/// Children read the buffers that peers can read, and drop them; of the links they have nothing.
fn buffers() -> Result<String> {
    let comm = Communicator::from_env()?;
    let mut buffer = Some(comm.alloc::<f32>(COUNT)?);
    let has_links = comm.info().transport != "tcp";
    for _ in 0..CHILDREN {
        let own = buffer.as_mut().unwrap();
        own.fill(1.0);
        let (is_shared, before) = (calls::is_shared(own), mapped());
        if comm.rank() == 0 {
            child(|| {
                let own = buffer.take().unwrap();
                let of_the_library = mapped();
                match own.iter().all(|one| *one == 1.0) {
                    true if of_the_library == usize::from(is_shared) => {}
                    is_right => return Err(format!("{is_right}: {of_the_library} of {before}")),
                }
                drop(own);
                check("a call", comm.barrier())
            })?;
        }
        assert!(before > 1 || !has_links, "{before}");
        // Peers let go of what was dropped.
        drop(comm.alloc::<f32>(1)?);
        let own = buffer.as_mut().unwrap();
        comm.all_reduce(own, ReduceOp::Sum)?;
        assert!(own.iter().all(|one| *one == 2.0));
    }
    comm.barrier()?;
    Ok("all well".into())
}

/// What rank 0's calls ask, while they wait, forks a child, which returns into its parent's call.
fn callback() -> Result<String> {
    let ended = Arc::new(AtomicI32::new(0));
    let status = Arc::clone(&ended);
    let asks = move || {
        if status.load(Ordering::Relaxed) == 0 {
            match fork() {
                0 => {
                    // Its last words are not rank 0's.
                    // SAFETY: it takes a number; the child ends before it opens anything.
                    unsafe { libc::close(2) };
                }
                pid => status.store(wait_for(pid), Ordering::Relaxed),
            }
        }
        false
    };
    let builder = Builder::from_env()?;
    let comm = match std::env::var("RANK").as_deref() {
        Ok("0") => builder.interrupt(asks).connect()?,
        _ => builder.connect()?,
    };
    // Until rank 0 has waited so long that it was asked.
    let mut has_ended = [0i32];
    while has_ended == [0] {
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_millis(100));
        }
        sum_up(&comm, COUNT)?;
        has_ended = [ended.load(Ordering::Relaxed)];
        comm.broadcast(&mut has_ended, 0)?;
    }
    assert!(libc::WIFSIGNALED(has_ended[0]) && libc::WTERMSIG(has_ended[0]) == libc::SIGABRT);
    comm.barrier()?;
    Ok("all well".into())
}

#[test]
fn a_childs_calls_are_refused_and_its_parent_goes_on() {
    for role in ["idle", "busy", "buffers", "callback"] {
        concurrently([Links::Tcp, Links::SharedMemory], |links| {
            let ranks = SUITE.start(links, role, 2, &[("RINGTREE_STALL_WARNING_S", "0")]);
            let (said, _) = ranks.hear(&[0, 1]);
            assert_eq!(said, ["all well"; 2], "{role} over {links:?}");
        });
    }
}

/// Here a child's parent has no other process.
#[test]
fn a_child_of_a_simulated_rank_or_of_a_start_is_refused_as_well() {
    let ends = ringtree::simulate(2, |comm| {
        child(|| all_are_refused(comm))?;
        sum_up(comm, COUNT)
    });
    assert_eq!(ends, [Ok(()), Ok(())]);
    let id = UniqueId::on("127.0.0.1").unwrap();
    let builder = Communicator::builder().rank(0).world_size(2).unique_id(&id);
    let mut joining = Some(builder.start_connect());
    child(|| {
        let joining = joining.take().unwrap();
        joining.cancel();
        if !joining.is_finished() {
            return Err("a start goes on".into());
        }
        check("a start", joining.wait().map(drop))
    })
    .unwrap();
    child(|| {
        drop(joining.take());
        Ok(())
    })
    .unwrap();
    let joining = joining.unwrap();
    assert!(!joining.is_finished(), "its child has ended it");
    joining.cancel();
    let error = joining.wait().unwrap_err();
    assert!(error.to_string().contains("canceled"), "{error}");
}

/// A child may become a rank of its own.
#[test]
fn a_child_may_start_by_itself() {
    let comm = Communicator::builder()
        .rank(0)
        .world_size(1)
        .connect()
        .unwrap();
    child(|| {
        check("its parent's", comm.barrier())?;
        let own = Communicator::builder().rank(0).world_size(1).connect();
        let own = own.map_err(|error| error.to_string())?;
        own.barrier().map_err(|error| error.to_string())
    })
    .unwrap();
    comm.barrier().unwrap();
}
