//! Tests children that a rank forks, as data loaders do. The children's calls fail, and the parents
//! continue unaffected.

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

/// Number of seconds after which a child that hangs is killed.
const HANG_LIMIT_S: u32 = 20;
/// Number of children that a rank forks in each role.
const CHILDREN: usize = 12;
const COUNT: usize = 100_000;

/// Starts ranks that run this binary's `child_entry`.
const SUITE: Suite = Suite(module_path!());

#[test]
fn child_entry() {
    match std::env::var(ROLE).as_deref() {
        Ok("idle") => exit(idle()),
        Ok("busy") => exit(busy()),
        Ok("buffers") => exit(buffers()),
        Ok("callback") => exit(callback()),
        Ok(other) => panic!("unknown role {other}"),
        Err(_) => {}
    }
}

type Call = fn(&Communicator) -> Result<()>;

/// The calls that a child attempts.
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

/// Checks that a call made by a forked child failed with the right error.
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

/// Checks that all calls of a child fail.
fn check_all_fail(comm: &Communicator) -> std::result::Result<(), String> {
    let mut calls = CALLS.iter();
    calls.try_for_each(|(what, call)| check(what, call(comm)))
}

/// Forks. Returns the child's process ID in the parent, and 0 in the child.
fn fork() -> i32 {
    // SAFETY: this tests what happens if a program forks, as Python's os.fork() does. The child
    // allocates, which the C library's fork allows.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: the function takes a number.
        unsafe { libc::alarm(HANG_LIMIT_S) };
    }
    pid
}

/// Exits the child process; the exit code is 1 if `end` is an error.
fn leave(end: std::result::Result<(), String>) -> ! {
    if let Err(why) = &end {
        eprintln!("a child: {why}");
    }
    // SAFETY: the function takes a number. `_exit` skips the harness's exit handlers.
    unsafe { libc::_exit(i32::from(end.is_err())) };
}

/// Waits for a child and returns its exit status.
fn wait_for(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: waits for a child of this process; the status is this function's.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    status
}

/// Waits for a child. Returns an error if the child fails.
fn reap(pid: i32) -> Result<()> {
    match wait_for(pid) {
        0 => Ok(()),
        status => Err(Error::new(
            ErrorKind::System,
            format!("a child ended with status {status:#x}"),
        )),
    }
}

/// Forks a child that runs `act`, and waits for the child to exit.
fn child(act: impl FnOnce() -> std::result::Result<(), String>) -> Result<()> {
    match fork() {
        0 => leave(act()),
        pid => reap(pid),
    }
}

/// Sums the contributions of both ranks, and checks that each element is 2.
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

/// Forks on rank 0 while it has no call in flight: before rank 1 makes its next call, or while rank
/// 1 waits in that call. The children's calls fail, and the children drop the communicator.
fn idle() -> Result<String> {
    let mut comm = Some(Communicator::from_env()?);
    for round in 0..CHILDREN {
        let world = comm.as_ref().unwrap();
        world.barrier()?;
        if world.rank() == round % 3 {
            // If rank 0 sleeps, rank 1 is already waiting when rank 0 forks. If rank 1 sleeps, the
            // child makes its calls before rank 1 makes its next call.
            std::thread::sleep(Duration::from_millis(30));
        }
        if world.rank() == 0 {
            child(|| {
                check_all_fail(comm.as_ref().unwrap())?;
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

/// Forks on rank 0 while another thread is making calls, asynchronous calls wait for rank 1, and a
/// scope is open. The children get their buffers back with an error, and leave the scope.
fn busy() -> Result<String> {
    let comm = Communicator::from_env()?;
    let other = comm.duplicate()?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let calls = threads.spawn(|| {
            // Both ranks leave the loop after the same call.
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
            end = end.and_then(|()| fork_with_calls_in_flight(&comm, round));
        }
        is_over.store(true, Ordering::Relaxed);
        end.and(calls.join().unwrap())
    })?;
    Ok("all well".into())
}

fn fork_with_calls_in_flight(comm: &Communicator, round: usize) -> Result<()> {
    let start = || comm.start_all_reduce(vec![1.0f32; COUNT], ReduceOp::Sum);
    let mut works = Vec::new();
    if comm.rank() == 0 {
        works = vec![Some(start()?), Some(start()?), Some(start()?)];
        child(|| {
            check_all_fail(comm)?;
            check_calls_of_parent(&mut works)
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
        let _unfinished = scope.all_reduce(other, ReduceOp::Sum)?;
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

/// Completes the parent's calls in a child in every possible way: waits for the first call, polls
/// the second, and drops the third.
fn check_calls_of_parent(works: &mut [Option<Work<Vec<f32>>>]) -> std::result::Result<(), String> {
    let mut take = |at: usize| works[at].take().unwrap();
    let (first, mut second, third) = (take(0), take(1), take(2));
    if !first.is_finished() {
        return Err("the first call has not ended".into());
    }
    let failed = first.wait().unwrap_err();
    assert_eq!(failed.buffer.len(), COUNT);
    check("waiting for the first call", Err(failed.error))?;
    let mut context = Context::from_waker(Waker::noop());
    match std::pin::Pin::new(&mut second).poll(&mut context) {
        Poll::Ready(Err(failed)) => check("polling the second call", Err(failed.error))?,
        _ => return Err("polling the second call returns no error".into()),
    }
    drop(third);
    Ok(())
}

/// Returns the number of this process's mappings of the library's shared memory.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains("memfd:ringtree"))
        .count()
}

/// Children read and drop the buffers that peers can read. They do not inherit the links' memory.
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
                let mapped_in_child = mapped();
                match own.iter().all(|one| *one == 1.0) {
                    true if mapped_in_child == usize::from(is_shared) => {}
                    is_right => return Err(format!("{is_right}: {mapped_in_child} of {before}")),
                }
                drop(own);
                check("a call", comm.barrier())
            })?;
        }
        assert!(before > 1 || !has_links, "{before}");
        // This call lets the peers release the dropped memory.
        drop(comm.alloc::<f32>(1)?);
        let own = buffer.as_mut().unwrap();
        comm.all_reduce(own, ReduceOp::Sum)?;
        assert!(own.iter().all(|one| *one == 2.0));
    }
    comm.barrier()?;
    Ok("all well".into())
}

/// Rank 0 forks a child in the interrupt callback while a call waits. The child then returns into
/// its parent's call.
fn callback() -> Result<String> {
    let ended = Arc::new(AtomicI32::new(0));
    let status = Arc::clone(&ended);
    let callback = move || {
        if status.load(Ordering::Relaxed) == 0 {
            match fork() {
                0 => {
                    // Close standard error, so that the child's last output is not taken for rank
                    // 0's.
                    // SAFETY: the function takes a number; the child ends before it opens anything.
                    unsafe { libc::close(2) };
                }
                pid => status.store(wait_for(pid), Ordering::Relaxed),
            }
        }
        false
    };
    let builder = Builder::from_env()?;
    let comm = match std::env::var("RANK").as_deref() {
        Ok("0") => builder.interrupt(callback).connect()?,
        _ => builder.connect()?,
    };
    // Repeat this until rank 0 has waited long enough for the callback to be called.
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
fn calls_of_forked_child_fail_and_parent_continues() {
    for role in ["idle", "busy", "buffers", "callback"] {
        concurrently([Links::Tcp, Links::SharedMemory], |links| {
            let ranks = SUITE.start(links, role, 2, &[("RINGTREE_STALL_WARNING_S", "0")]);
            let (said, _) = ranks.next_reports(&[0, 1]);
            assert_eq!(said, ["all well"; 2], "{role} over {links:?}");
        });
    }
}

/// Here, the child's parent is the only process of its world.
#[test]
fn calls_of_child_of_simulated_or_joining_rank_fail() {
    let ends = ringtree::simulate(2, |comm| {
        child(|| check_all_fail(comm))?;
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
            return Err("the join has not ended".into());
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
    assert!(
        !joining.is_finished(),
        "the child has ended the join of its parent"
    );
    joining.cancel();
    let error = joining.wait().unwrap_err();
    assert!(error.to_string().contains("canceled"), "{error}");
}

/// A child may create its own communicator.
#[test]
fn child_may_create_communicator() {
    let comm = Communicator::builder()
        .rank(0)
        .world_size(1)
        .connect()
        .unwrap();
    child(|| {
        check("a call of the parent", comm.barrier())?;
        let own = Communicator::builder().rank(0).world_size(1).connect();
        let own = own.map_err(|error| error.to_string())?;
        own.barrier().map_err(|error| error.to_string())
    })
    .unwrap();
    comm.barrier().unwrap();
}
