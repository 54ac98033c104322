//! Tests groups of ranks that are real processes.

use crate::ranks::{ALL_LINKS, Links, REPORT_PREFIX, ROLE, Suite, concurrently, exit};
use ringtree::internal::calls;
use ringtree::{Communicator, Error, ErrorKind, ReduceOp, Result};
use rustix::process::Signal;
use std::fs;
use std::time::{Duration, Instant};

/// Starts ranks that run this module's `child_entry`.
const SUITE: Suite = Suite(module_path!());

#[test]
fn child_entry() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let end = match role.as_str() {
        "opposite" => opposite(),
        "grid" => grid(),
        "registered" => registered(),
        "thousand" => made_and_dropped(1000),
        "hundred" => made_and_dropped(100),
        "sixty-four" => sixty_four(),
        "dies" => dies(),
        "long causes" => long_causes(),
        other => panic!("unknown role {other}"),
    };
    exit(end)
}

/// Uses two groups of both ranks in opposite orders.
fn opposite() -> Result<String> {
    let world = Communicator::from_env()?;
    let rank = world.rank();
    let mut sum = 0;
    // Use new groups each time, because this tests that links open even if the other rank's program
    // does not take part.
    for count in [1, 1000, 300_000] {
        for root in 0..2 {
            let (x, y) = (world.subgroup(&[0, 1])?, world.subgroup(&[0, 1])?);
            let (first, second) = if rank == 0 { (&x, &y) } else { (&y, &x) };
            let one = first.start_all_reduce(vec![1u32; count], ReduceOp::Sum)?;
            sum += second
                .start_all_reduce(vec![1u32; count], ReduceOp::Sum)?
                .wait()?[0];
            sum += one.wait()?[count - 1];
            // A root returns once its bytes are in flight, without waiting for the other rank's
            // program.
            let (x, y) = (world.duplicate()?, world.duplicate()?);
            let (first, second) = if rank == root { (&x, &y) } else { (&y, &x) };
            let mut number = [u32::from(rank == root); 4];
            first.broadcast(&mut number, root)?;
            sum += number[3];
            second.broadcast(&mut number, root)?;
            sum += number[0];
        }
    }
    Ok(format!("sum {sum}"))
}

/// Runs every kind of call in a grid of rows and columns.
fn grid() -> Result<String> {
    let world = Communicator::from_env()?;
    let (row, column) = (world.rank() / 2, world.rank() % 2);
    let tensor = world.split(row, 0)?;
    let data = world.split(column, 1 - row)?;
    for count in [1, 100, 5_000, 200_000] {
        let mut numbers = vec![world.rank() as f32; count];
        tensor.all_reduce(&mut numbers, ReduceOp::Sum)?;
        assert_eq!(numbers[count - 1], (4 * row + 1) as f32);
        data.all_reduce(&mut numbers, ReduceOp::Sum)?;
        assert!(numbers.iter().all(|one| *one == 6.0));
        let mut root = vec![world.rank() as u16; count];
        data.broadcast(&mut root, 0)?;
        assert_eq!(root[count - 1] as usize, 2 + column);
        let mut theirs = vec![0u64; count];
        if tensor.rank() == 0 {
            tensor.send(&vec![world.rank() as u64; count], 1)?;
            tensor.recv(&mut theirs, 1)?;
        } else {
            tensor.recv(&mut theirs, 0)?;
            tensor.send(&vec![world.rank() as u64; count], 0)?;
        }
        assert_eq!(theirs[count - 1] as usize, world.rank() ^ 1);
        data.barrier()?;
    }
    Ok(format!(
        "{} {}",
        tensor.info().transport,
        data.info().transport
    ))
}

/// Uses registered buffers in groups.
fn registered() -> Result<String> {
    let world = Communicator::from_env()?;
    let group = world.split(world.rank() % 2, world.world_size() - world.rank())?;
    let mut is_shared = Vec::new();
    for count in [10, 1 << 20] {
        let mut buffer = group.alloc::<f32>(count)?;
        is_shared.push(calls::is_shared(&buffer));
        for _ in 0..3 {
            buffer.fill(1.0);
            group.all_reduce(&mut buffer, ReduceOp::Sum)?;
            assert!(buffer.iter().all(|one| *one == 2.0));
        }
    }
    Ok(format!("{is_shared:?}"))
}

/// The system resources that this process holds.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    threads: usize,
    mappings: usize,
}

fn held() -> Held {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    Held {
        descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
        threads: fs::read_dir("/proc/self/task").unwrap().count(),
        mappings: maps.lines().filter(|line| line.contains("memfd")).count(),
    }
}

/// Creates, uses and drops groups. Some ranks drop a group while others still use it.
fn made_and_dropped(groups: usize) -> Result<String> {
    let world = Communicator::from_env()?;
    let use_one = |number: usize| {
        let group = world.split(number / 3 * world.rank() % 2, 0)?;
        let mut numbers = vec![1.0f32; [1, 10_000][number % 2]];
        group.all_reduce(&mut numbers, ReduceOp::Sum)?;
        let (rank, next) = (group.rank(), (group.rank() + 1) % group.world_size());
        if rank == 0 && next != 0 {
            group.send(&numbers, next)?;
        } else if rank == 1 {
            group.recv(&mut numbers, 0)?;
        }
        Ok::<_, Error>(())
    };
    (0..8).try_for_each(use_one)?;
    // Start the thread that advances asynchronous calls, because it keeps running.
    world.start_all_reduce(vec![1u8], ReduceOp::Sum)?.wait()?;
    world.barrier()?;
    let (before, anonymous) = (held(), status_kib("RssAnon"));
    (0..groups).try_for_each(use_one)?;
    world.barrier()?;
    // A rank that has run ahead may have sent something to a rank that had already finished, which
    // receives it only in the next calls.
    let end = Instant::now() + Duration::from_secs(20);
    while held() != before && Instant::now() < end {
        world.subgroup(&[world.rank()])?;
        std::thread::sleep(Duration::from_millis(10));
    }
    let after = held();
    world.barrier()?;
    let grown = status_kib("RssAnon").saturating_sub(anonymous);
    Ok(match after == before && grown < 4096 {
        true => "nothing is left".into(),
        false => format!("{before:?} became {after:?}, {grown} KiB more"),
    })
}

fn status_kib(field: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let digits = line.unwrap().chars().filter(char::is_ascii_digit);
    digits.collect::<String>().parse().unwrap()
}

/// Returns the amount of shared memory, in KiB, that this process has created and touched. A rank
/// writes only to its own region.
fn own_shared_kib() -> usize {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_own = false;
    let mut kib = 0;
    for line in smaps.lines() {
        if line.contains("memfd") {
            is_own = line.contains(" rw-s ");
        } else if let Some(size) = line.strip_prefix("Rss:").filter(|_| is_own) {
            let size: usize = size.trim().trim_end_matches(" kB").parse().unwrap();
            kib += size;
            is_own = false;
        }
    }
    kib
}

/// Creates 64 groups of all ranks. In each group, transfers large and small buffers, up to the
/// limits of its links.
fn sixty_four() -> Result<String> {
    let world = Communicator::from_env()?;
    let mut large = vec![1.0f32; 1 << 18];
    world.all_reduce(&mut large, ReduceOp::Sum)?;
    let used = || (own_shared_kib(), status_kib("RssAnon"));
    let (shared, anonymous) = used();
    let groups = (0..64).map(|_| world.duplicate());
    let groups = groups.collect::<Result<Vec<_>>>()?;
    for count in [4096, 1 << 18] {
        for group in &groups {
            group.all_reduce(&mut large[..count], ReduceOp::Avg)?;
            group.broadcast(&mut large[..count], 1)?;
        }
    }
    world.barrier()?;
    let (shared_after, anonymous_after) = used();
    let kib = shared_after - shared + anonymous_after.saturating_sub(anonymous);
    Ok(format!("{kib} KiB"))
}

/// Runs all-reduces forever in the group of rank 3, which is killed, and for a few seconds in the
/// other group.
fn dies() -> Result<String> {
    let world = Communicator::from_env()?;
    let group = world.split(world.rank() / 2, 0)?;
    let mut data = vec![0.0f32; 20_000];
    let (start, lasts) = (Instant::now(), Duration::from_secs(3));
    let mut calls = 0;
    loop {
        group.all_reduce(&mut data, ReduceOp::Sum)?;
        calls += 1;
        if calls == 20 {
            eprintln!("{REPORT_PREFIX}started");
        }
        // Both ranks of the group stop at the same call.
        let mut is_over = [u8::from(world.rank() < 2 && start.elapsed() > lasts)];
        group.all_reduce(&mut is_over, ReduceOp::Max)?;
        if is_over[0] > 0 {
            break;
        }
    }
    Ok("continued".into())
}

// ---- tests ----

fn run(links: Links, role: &str, world_size: usize) -> Vec<String> {
    let all: Vec<_> = (0..world_size).collect();
    SUITE
        .start(links, role, world_size, &[])
        .next_reports(&all)
        .0
}

/// Each rank in turn aborts a group with a cause of many pages.
fn long_causes() -> Result<String> {
    let comm = Communicator::from_env()?;
    let mut causes = Vec::new();
    for failing in 0..comm.world_size() {
        let group = comm.duplicate()?;
        if comm.rank() == failing {
            let trace = "0: std::backtrace::Backtrace::create\n".repeat(2500);
            let cause = format!("no loss on rank {failing}: {trace}it is NaN");
            group.abort(&Error::new(ErrorKind::System, cause));
        }
        causes.push(group.barrier().unwrap_err().to_string());
    }
    comm.barrier()?;
    Ok(causes.join("; "))
}

#[test]
fn groups_used_in_opposite_order_do_not_stall_each_other() {
    concurrently([Links::Tcp, Links::SharedMemory], |links| {
        assert_eq!(run(links, "opposite", 2), ["sum 36"; 2], "{links:?}");
    });
}

#[test]
fn grid_gives_same_results_over_all_links() {
    let all = ["tcp tcp", "shm shm", "shm tcp"];
    concurrently(ALL_LINKS.into_iter().zip(all), |(links, over)| {
        assert_eq!(run(links, "grid", 4), [over; 4], "{links:?}");
    });
}

#[test]
fn registered_group_buffers_are_shared_only_over_shared_memory() {
    concurrently(
        ALL_LINKS.into_iter().zip([false, true, false]),
        |(links, is_shared)| {
            let expected = format!("{:?}", [is_shared; 2]);
            assert_eq!(run(links, "registered", 4), vec![expected; 4], "{links:?}");
        },
    );
}

#[test]
fn dropped_groups_leak_nothing() {
    concurrently(ALL_LINKS, |links| {
        // Use fewer groups if they need connections, which take longer to create than shared
        // memory.
        let role = match links {
            Links::SharedMemory => "thousand",
            _ => "hundred",
        };
        assert_eq!(run(links, role, 4), ["nothing is left"; 4], "{links:?}");
    });
}

#[test]
fn sixty_four_groups_take_less_than_64_mib_per_rank() {
    for text in run(Links::SharedMemory, "sixty-four", 8) {
        let kib: usize = text.trim_end_matches(" KiB").parse().unwrap();
        assert!((1..64 << 10).contains(&kib), "{text}");
        println!("{text}");
    }
}

#[test]
fn killed_rank_is_named_in_its_group_and_others_continue() {
    concurrently(ALL_LINKS, |links| {
        let ranks = SUITE.start(links, "dies", 4, &[]);
        ranks.next_reports(&[0, 1, 2, 3]);
        ranks.signal(3, Signal::KILL);
        let (said, _) = ranks.next_reports(&[2]);
        let named = "lost 1: rank 1 (world rank 3) is gone";
        assert!(said[0].starts_with(named), "{links:?}: {}", said[0]);
        assert_eq!(ranks.next_reports(&[0, 1]).0, ["continued"; 2], "{links:?}");
    });
}

#[test]
fn long_cause_reaches_all_processes_without_disconnects() {
    let (said, _) = SUITE
        .start(Links::Tcp, "long causes", 3, &[])
        .next_reports(&[0, 1, 2]);
    for failing in 0..3 {
        let begins = format!("no loss on rank {failing}: 0: std");
        assert!(said[0].contains(&begins), "{}", said[0]);
    }
    assert_eq!(said[0].matches("[... cut ...]").count(), 3, "{}", said[0]);
    assert!(said[0].ends_with("it is NaN"), "{}", said[0]);
    assert!(said.iter().all(|text| *text == said[0]), "{said:?}");
}
