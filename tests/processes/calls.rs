//! Tests calls of ranks that are real processes, over TCP, through shared memory, and over both.

use crate::checked::{Case, check};
use crate::ranks::{
    ALL_LINKS, Links, PATIENCE, REPORT_PREFIX, ROLE, Suite, concurrently, exit, reserved_address,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use ringtree::plan::Algorithm;
use ringtree::plan::REGISTRY;
use ringtree::plan::internal::algorithms;
use ringtree::{Communicator, Dtype, ReduceOp, Result, Work};
use rustix::process::Signal;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

// ---- roles of the ranks ----

/// Environment variable with the number of elements that rank 1 allocates.
const ELEMENTS: &str = "RINGTREE_TEST_ELEMENTS";

/// Starts ranks that run this module's `child_entry`.
const SUITE: Suite = Suite(module_path!());

#[test]
fn child_entry() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let end = match role.as_str() {
        "cases" => cases(),
        "stream" => stream(),
        "crossed" => crossed(),
        "disagree" => disagree(),
        "sizes" => sizes(),
        "early" => early(),
        "values" => values(),
        "training" => training(),
        "messages" => messages(),
        "threads" => threads(),
        "hosts" => hosts(),
        other => panic!("unknown role {other}"),
    };
    exit(end)
}

/// Runs many random cases, which are the same on all ranks.
fn cases() -> Result<String> {
    let comm = Communicator::from_env()?;
    let pairs = algorithms::pairs(&[2, 3]);
    let strategy = (
        prop::sample::select(pairs),
        prop::sample::select(Dtype::ALL),
        prop::sample::select(ReduceOp::ALL),
        0..comm.world_size(),
        prop::sample::select(vec![0usize, 1, 2, 7, 1000, 30_001, 300_000]),
        any::<u64>(),
    );
    let mut runner = TestRunner::deterministic();
    for _ in 0..CASES {
        let tree = strategy.new_tree(&mut runner).expect("a value");
        let ((collective, algorithm), dtype, op, root, count, seed) = tree.current();
        let op = if op.supports(dtype) {
            op
        } else {
            ReduceOp::Sum
        };
        let case = Case {
            collective,
            dtype,
            op,
            root,
            count,
            seed,
        };
        comm.use_algorithm(Some(algorithm))?;
        let wrong = check(&comm, &case)?;
        if wrong > 0 {
            return Ok(format!("{wrong} wrong elements in {case:?} by {algorithm}"));
        }
    }
    Ok("all right".into())
}

const CASES: usize = 120;

/// Runs hierarchical calls in the world, and in a group of all ranks except the last, in reverse
/// order.
fn hosts() -> Result<String> {
    let world = Communicator::from_env()?;
    world.use_algorithm(Some(Algorithm::Hierarchical))?;
    let (rank, last) = (world.rank(), world.world_size() - 1);
    let group = world.split(usize::from(rank == last), last - rank)?;
    let entry = REGISTRY.iter().find(|one| one.name == "hierarchical");
    let mut wrong = 0;
    for comm in [&world, &group] {
        for &collective in entry.expect("it is registered").collectives {
            for count in [0, 1, 1000, 300_001] {
                wrong += check(
                    comm,
                    &Case {
                        collective,
                        dtype: Dtype::F32,
                        op: ReduceOp::Sum,
                        root: count % comm.world_size(),
                        count,
                        seed: count as u64,
                    },
                )?;
            }
        }
    }
    Ok(format!("{wrong} wrong over {}", world.info().transport))
}

/// Runs all-reduces forever.
fn stream() -> Result<String> {
    let comm = Communicator::from_env()?;
    let mut data = vec![0.0f32; 50_000];
    for call in 0.. {
        comm.all_reduce(&mut data, ReduceOp::Sum)?;
        if call == 20 {
            eprintln!("{REPORT_PREFIX}started");
        }
    }
    Ok("the endless loop ended".into())
}

/// Uses two communicators in opposite orders on the two ranks: first from two threads, and then
/// with an asynchronous call.
fn crossed() -> Result<String> {
    const COUNT: usize = 200_000;
    let variable = |name| std::env::var(name).expect("the parent sets it");
    let rank: usize = variable("RANK").parse().expect("a rank");
    let connect = |name| {
        let builder = Communicator::builder().rank(rank).world_size(2);
        builder.rendezvous(&variable(name)).connect()
    };
    let (x, y) = (
        connect("RINGTREE_RENDEZVOUS")?,
        connect("SECOND_RENDEZVOUS")?,
    );
    let (first, second) = if rank == 0 { (&x, &y) } else { (&y, &x) };
    let call = |comm: &Communicator| {
        let mut data = vec![1u32; COUNT];
        comm.all_reduce(&mut data, ReduceOp::Sum).map(|()| data[7])
    };
    let mut sum = 0;
    for _ in 0..10 {
        let ends = std::thread::scope(|scope| {
            let one = scope.spawn(|| call(first));
            // The first call is probably waiting for the other rank by now.
            std::thread::sleep(Duration::from_millis(20));
            let two = call(second);
            [one.join().expect("no panic"), two]
        });
        for end in ends {
            sum += end?;
        }
        let work = first.start_all_reduce(vec![1u32; COUNT], ReduceOp::Sum)?;
        sum += call(second)? + work.wait()?[99];
    }
    Ok(format!("sum {sum}"))
}

/// Runs different calls: rank 1 reduces with a different operator than the other ranks.
fn disagree() -> Result<String> {
    let comm = Communicator::from_env()?;
    comm.barrier()?;
    let op = [ReduceOp::Sum, ReduceOp::Max][usize::from(comm.rank() == 1)];
    comm.all_reduce(&mut [1u8; 100], op)?;
    comm.barrier()?;
    Ok("no rank reported the mismatch".into())
}

/// Allocates the number of elements in [`ELEMENTS`] on rank 1, and 100 elements on the other ranks.
/// No rank leaves.
fn sizes() -> Result<String> {
    let comm = Communicator::from_env()?;
    let given = std::env::var(ELEMENTS).expect("the parent sets it").parse();
    let count = if comm.rank() == 1 { given } else { Ok(100) };
    let buffer = comm.alloc::<u8>(count.expect("a number"));
    eprintln!(
        "{REPORT_PREFIX}{}",
        buffer.map_or_else(|error| error.to_string(), |_| "made".into())
    );
    loop {
        std::thread::park();
    }
}

/// Runs training steps until one fails. Then reports the step that the ranks agree on, the last
/// step that this rank passed, and the last step whose sum it completed.
fn training() -> Result<String> {
    let comm = Communicator::from_env()?;
    let mut gradients = vec![0.0f32; 20_000];
    let (mut completed, mut passed) = (0, 0);
    for step in 1.. {
        let ended = comm
            .all_reduce(&mut gradients, ReduceOp::Sum)
            .and_then(|()| {
                completed = step;
                ringtree::internal::ddp::mark(&comm, step);
                comm.barrier()
            });
        if ended.is_err() {
            break;
        }
        passed = step;
        if step == 20 {
            eprintln!("{REPORT_PREFIX}started");
        }
    }
    let agreed = ringtree::internal::ddp::agreed_mark(&comm, Duration::from_secs(5));
    Ok(format!("{} {passed} {completed}", agreed.unwrap_or(0)))
}

/// Exchanges messages of 4 MiB, which no link can buffer, with every kind of call.
fn messages() -> Result<String> {
    const COUNT: usize = 1 << 20;
    let comm = Communicator::from_env()?;
    let (rank, ranks) = (comm.rank(), comm.world_size());
    let content = |from: usize, to: usize| vec![(from * ranks + to) as u32; COUNT];
    for round in 0..3 {
        // All ranks send, and then all ranks receive.
        let own: Vec<_> = (0..ranks).map(|to| content(rank, to)).collect();
        let mut theirs = vec![vec![0u32; COUNT]; ranks];
        comm.batch(|group| {
            let others = own.iter().enumerate().filter(|(to, _)| *to != rank);
            others
                .clone()
                .try_for_each(|(to, own)| group.send(own, to))?;
            let theirs = theirs.iter_mut().enumerate();
            let mut theirs = theirs.filter(|(from, _)| *from != rank);
            theirs.try_for_each(|(from, buffer)| group.recv(buffer, from))
        })?;
        // Exchange messages along a ring as well: first asynchronously with owned buffers, and then
        // with `sendrecv`.
        let (right, left) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        let sent = comm.start_send(content(rank, right).into_boxed_slice(), right)?;
        theirs[rank] = block_on(comm.start_recv(vec![0; COUNT], left)?)?;
        sent.wait()?;
        assert_eq!(theirs[rank], content(left, rank));
        comm.sendrecv(&own[rank], right, &mut theirs[rank], left)?;
        for (from, theirs) in theirs.iter().enumerate() {
            let expected = if from == rank {
                content(left, left)
            } else {
                content(from, rank)
            };
            if *theirs != expected {
                return Ok(format!("round {round}: wrong from {from}"));
            }
        }
        // Rank 0 answers each question of the other ranks.
        let mut asked = vec![0; ranks];
        for _ in 0..if rank == 0 { 10 * (ranks - 1) } else { 0 } {
            let mut question = [0u64; 2];
            let from = comm.recv_any(&mut question)?;
            assert_eq!(question, [from as u64, asked[from]]);
            asked[from] += 1;
            comm.send(&[question[1] + 1], from)?;
        }
        for number in 0..if rank == 0 { 0 } else { 10 } {
            let mut answer = [0u64];
            comm.send(&[rank as u64, number], 0)?;
            comm.recv(&mut answer, 0)?;
            assert_eq!(answer, [number + 1]);
        }
        // Without this barrier, rank 0 might mistake a message of the next round for a question.
        comm.barrier()?;
    }
    Ok("all right".into())
}

/// Uses a communicator from two threads. First, one thread sends while the other receives. Then
/// both run a collective, in a different order on rank 1.
fn threads() -> Result<String> {
    let comm = Communicator::from_env()?;
    let peer = 1 - comm.rank();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| (0..20).try_for_each(|_| comm.send(&vec![1u8; 1 << 22], peer)));
        let mut buffer = vec![0u8; 1 << 22];
        (0..20).try_for_each(|_| comm.recv(&mut buffer, peer))?;
        sender.join().expect("no panic")
    })?;
    let begun = std::sync::Barrier::new(2);
    let sum = || comm.start_all_reduce(vec![1.0f32; 9], ReduceOp::Sum);
    let copy = || comm.start_broadcast(vec![1.0f32; 9], 0);
    let end = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let work = if peer == 0 { copy() } else { sum() };
            begun.wait();
            work?.wait()
        });
        begun.wait();
        let end = if peer == 0 { sum() } else { copy() }.and_then(Work::wait);
        // The root's broadcast may have succeeded before the mismatch was detected.
        other.join().expect("no panic").and(end)
    });
    Ok(end?.len().to_string())
}

/// A minimal executor: it runs one task on a thread that sleeps until the waker wakes it.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park_timeout(PATIENCE),
        }
    }
}

/// Makes one call fewer on rank 2 than on the other ranks.
fn early() -> Result<String> {
    let comm = Communicator::from_env()?;
    let calls = if comm.rank() == 2 { 3 } else { 4 };
    (0..calls).try_for_each(|_| comm.barrier())?;
    Ok("left".into())
}

/// Exchanges values whose lengths are close to the length of a piece.
fn values() -> Result<String> {
    let comm = Communicator::from_env()?;
    for bytes in [0, 1, 1000, 65_530, 200_000] {
        let of = |rank: usize| (format!("rank {rank}"), vec![rank as u8; bytes / (rank + 1)]);
        let everything: Vec<_> = (0..comm.world_size()).map(of).collect();
        let own = of(comm.rank());
        let root = bytes % comm.world_size();
        let shared = comm.broadcast_value(Some(own.clone()), root)?;
        let gathered = comm.gather_value(&own, root)?;
        let is_right = shared == everything[root]
            && comm.all_gather_value(&own)? == everything
            && gathered == (comm.rank() == root).then_some(everything);
        if !is_right {
            return Ok(format!("wrong values of {bytes} bytes"));
        }
    }
    Ok("all right".into())
}

// ---- tests ----

fn run_cases(world_size: usize) {
    let all: Vec<_> = (0..world_size).collect();
    concurrently(ALL_LINKS, |links| {
        let (said, _) = SUITE
            .start(links, "cases", world_size, &[])
            .next_reports(&all);
        assert_eq!(said, vec!["all right"; world_size], "{links:?}");
    });
}

#[test]
fn every_algorithm_is_correct_with_call_checks() {
    concurrently(ALL_LINKS, |links| {
        let ranks = SUITE.start(links, "cases", 4, &[("RINGTREE_CHECK", "calls")]);
        let (said, _) = ranks.next_reports(&[0, 1, 2, 3]);
        assert_eq!(said, vec!["all right"; 4], "{links:?}");
    });
}

#[test]
fn collectives_are_correct_on_two_processes() {
    run_cases(2);
}

#[test]
fn collectives_are_correct_on_three_processes() {
    run_cases(3);
}

#[test]
fn collectives_are_correct_with_more_processes_than_cores() {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    run_cases((cores + 3).min(9));
}

#[test]
fn hierarchical_calls_are_correct_on_unequal_interleaved_hosts() {
    for site_of_host in [["", "", ""], ["a", "", "a"]] {
        let ranks = SUITE.start_each(Links::Both, "hosts", 6, |rank, command| {
            let host = [0, 1, 0, 0, 2, 1][rank];
            command.env("RINGTREE_HOST_ID", format!("host {host}"));
            command.env("RINGTREE_SITE", site_of_host[host]);
        });
        let (said, _) = ranks.next_reports(&[0, 1, 2, 3, 4, 5]);
        let mut expected = ["0 wrong over shm+tcp"; 6];
        expected[4] = "0 wrong over tcp";
        assert_eq!(said, expected);
    }
}

#[test]
fn survivors_name_killed_rank_long_before_deadline() {
    let victims = [2, 0].into_iter();
    let cases = victims.flat_map(|one| ALL_LINKS.map(|all| (one, all)));
    concurrently(cases, |(victim, links)| {
        let ranks = SUITE.start(links, "stream", 4, &[]);
        ranks.next_reports(&[0, 1, 2, 3]);
        let killed = Instant::now();
        ranks.signal(victim, Signal::KILL);
        let survivors: Vec<_> = (0..4).filter(|rank| *rank != victim).collect();
        let (said, last) = ranks.next_reports(&survivors);
        let took = last - killed;
        assert!(took < Duration::from_secs(20), "{took:?}");
        for text in said {
            let named = format!("lost {victim}: rank {victim} is gone");
            assert!(text.starts_with(&named), "{text}");
        }
    });
}

#[test]
fn survivors_agree_on_committed_step() {
    concurrently(ALL_LINKS, check_agreed_step);
}

fn check_agreed_step(links: Links) {
    let ranks = SUITE.start(links, "training", 4, &[]);
    ranks.next_reports(&[0, 1, 2, 3]);
    ranks.signal(2, Signal::KILL);
    let (said, _) = ranks.next_reports(&[0, 1, 3]);
    let ends: Vec<Vec<u64>> = said
        .iter()
        .map(|text| text.split(' ').map(|word| word.parse().unwrap()).collect())
        .collect();
    for end in &ends {
        let [agreed, passed, completed] = end[..] else {
            panic!("{said:?}");
        };
        assert_eq!(agreed, ends[0][0], "{said:?}");
        // A rank that learns of the death after its sum but before its mark has completed one more
        // step.
        assert!(passed <= agreed && agreed <= completed, "{said:?}");
    }
}

#[test]
fn timeout_error_names_stopped_rank() {
    // Start all worlds before waiting for any of them, so that their timeouts run at the same time.
    let (tcp, shm, both) = (Links::Tcp, Links::SharedMemory, Links::Both);
    let worlds = [(3, tcp), (0, tcp), (3, shm), (0, shm), (3, both)].map(|(stopped, links)| {
        let ranks = SUITE.start(links, "stream", 4, &[("RINGTREE_TIMEOUT_MS", "8000")]);
        ranks.next_reports(&[0, 1, 2, 3]);
        ranks.signal(stopped, Signal::STOP);
        (stopped, ranks)
    });
    for (stopped, ranks) in worlds {
        let others: Vec<_> = (0..4).filter(|rank| *rank != stopped).collect();
        let (said, _) = ranks.next_reports(&others);
        for text in said {
            let named = format!("rank {stopped} has not reported its position");
            assert!(
                text.starts_with("deadline: ") && text.contains(&named),
                "{text}"
            );
        }
    }
}

#[test]
fn all_ranks_report_same_mismatch() {
    concurrently(ALL_LINKS, check_mismatch);
}

fn check_mismatch(links: Links) {
    let (said, _) = SUITE
        .start(links, "disagree", 3, &[])
        .next_reports(&[0, 1, 2]);
    for op in ["sum", "max"] {
        let call = format!("all-reduce #2 of 100 u8, {op}");
        assert!(said[0].contains(&call), "{}", said[0]);
    }
    assert!(said.iter().all(|text| *text == said[0]), "{said:?}");
}

#[test]
fn messages_of_all_kinds_arrive_unchanged() {
    concurrently(ALL_LINKS, |links| {
        let (said, _) = SUITE
            .start(links, "messages", 4, &[])
            .next_reports(&[0, 1, 2, 3]);
        assert_eq!(said, vec!["all right"; 4], "{links:?}");
    });
}

#[test]
fn threads_sharing_communicator_report_different_call_orders() {
    concurrently([Links::Tcp, Links::SharedMemory], |links| {
        let (said, _) = SUITE.start(links, "threads", 2, &[]).next_reports(&[0, 1]);
        for call in [
            "rank 0 all-reduce #1 of 9 f32",
            "rank 1 broadcast #1 of 9 f32",
        ] {
            assert!(
                said[0].contains("different calls") && said[0].contains(call),
                "{said:?}"
            );
        }
        assert_eq!(said[0], said[1], "{links:?}");
    });
}

/// The failure is reported by a rank that shares memory with rank 1, or by rank 1 itself, because
/// the others wait for its memory. All ranks report the same error, long before the timeout.
#[test]
fn all_ranks_report_unequal_or_failed_allocation() {
    let timeout = (10 * PATIENCE).as_millis().to_string();
    concurrently([Links::SharedMemory, Links::Both], |links| {
        for (count, why) in [
            ("99", "cannot use the memory of rank"),
            ("1000000000000000000", "cannot create shared memory"),
        ] {
            let settings = [(ELEMENTS, count), ("RINGTREE_TIMEOUT_MS", &*timeout)];
            let (said, _) = SUITE
                .start(links, "sizes", 3, &settings)
                .next_reports(&[0, 1, 2]);
            assert!(said[0].contains(why), "{said:?}");
            assert!(said.iter().all(|text| *text == said[0]), "{said:?}");
        }
    });
}

#[test]
fn values_arrive_intact_between_processes() {
    concurrently(ALL_LINKS, |links| {
        let (said, _) = SUITE
            .start(links, "values", 4, &[])
            .next_reports(&[0, 1, 2, 3]);
        assert_eq!(said, vec!["all right"; 4], "{links:?}");
    });
}

#[test]
fn process_that_leaves_too_early_is_named() {
    concurrently(ALL_LINKS, |links| {
        let (said, _) = SUITE.start(links, "early", 3, &[]).next_reports(&[0, 1, 2]);
        assert_eq!(said[2], "left");
        for text in &said[..2] {
            let named = "lost 2: rank 2 left after call #3";
            assert!(text.starts_with(named), "{text}");
        }
    });
}

#[test]
fn communicators_used_in_opposite_orders_do_not_deadlock() {
    concurrently(ALL_LINKS, |links| {
        let second = reserved_address();
        let ranks = SUITE.start(links, "crossed", 2, &[("SECOND_RENDEZVOUS", &second)]);
        let (said, _) = ranks.next_reports(&[0, 1]);
        assert_eq!(said, ["sum 80", "sum 80"], "{links:?}");
    });
}
