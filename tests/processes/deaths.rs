//! Tests deaths that are hard to detect: the rank's child lives on, the rank is still joining, rank
//! 0 is stopped, or the network drops everything. Also tests ranks that other users start.

use crate::ranks::{
    ALL_LINKS, Links, PATIENCE, REPORT_PREFIX, ROLE, Ranks, Suite, concurrently, exit,
};
use ringtree::{Communicator, ReduceOp, Result};
use rustix::process::Signal;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// Number of seconds for which a rank's child outlives the rank.
const CHILD_LIVES: u32 = 20;
/// A dead rank must be named within this time. Its child is still alive then, on any machine.
const NAMED_WITHIN: Duration = Duration::from_secs(CHILD_LIVES as u64 / 2);

/// Starts ranks that run this module's `child_entry`.
const SUITE: Suite = Suite(module_path!());

#[test]
fn child_entry() {
    match std::env::var(ROLE).as_deref() {
        Ok("stream") => exit(stream(false)),
        Ok("forking") => exit(stream(true)),
        Ok("meet") => exit(meet()),
        Ok("namespace") => in_namespace(),
        Ok(other) => panic!("unknown role {other}"),
        Err(_) => {}
    }
}

/// Runs all-reduces forever. With `forks`, ranks 0 and 2 have a child process, as with a data
/// loader.
fn stream(forks: bool) -> Result<String> {
    let comm = Communicator::from_env()?;
    let mut data = vec![0.0f32; 50_000];
    for call in 0.. {
        comm.all_reduce(&mut data, ReduceOp::Sum)?;
        if call == 10 && forks && comm.rank() % 2 == 0 {
            // SAFETY: the child makes async-signal-safe calls on plain integers and ends.
            unsafe {
                if libc::fork() == 0 {
                    libc::sleep(CHILD_LIVES);
                    libc::_exit(0);
                }
            }
        }
        if call == 20 {
            eprintln!("{REPORT_PREFIX}started");
        }
    }
    Ok("the endless loop ended".into())
}

fn meet() -> Result<String> {
    let comm = Communicator::from_env()?;
    comm.barrier()?;
    Ok("met".into())
}

/// Checks that `survivors` name `victim`, which was killed at `killed`, in time.
fn check_named(ranks: &Ranks, survivors: &[usize], victim: usize, killed: Instant, links: Links) {
    let (said, last) = ranks.next_reports(survivors);
    for text in said {
        let named = format!("lost {victim}: rank {victim} is gone");
        assert!(text.starts_with(&named), "{links:?}: {text}");
    }
    let took = last - killed;
    assert!(took < NAMED_WITHIN, "{links:?}: {took:?}");
}

#[test]
fn forked_child_does_not_hide_death_of_its_parent() {
    let victims = [0, 2].into_iter();
    let cases = victims.flat_map(|one| ALL_LINKS.map(|all| (one, all)));
    concurrently(cases, |(victim, links)| {
        let ranks = SUITE.start(links, "forking", 4, &[]);
        ranks.next_reports(&[0, 1, 2, 3]);
        let killed = Instant::now();
        ranks.signal(victim, Signal::KILL);
        let survivors: Vec<_> = (0..4).filter(|rank| *rank != victim).collect();
        check_named(&ranks, &survivors, victim, killed, links);
    });
}

#[test]
fn survivors_agree_on_death_while_rank_0_is_stopped() {
    concurrently(ALL_LINKS, |links| {
        let ranks = SUITE.start(links, "stream", 4, &[]);
        ranks.next_reports(&[0, 1, 2, 3]);
        ranks.signal(0, Signal::STOP);
        std::thread::sleep(Duration::from_millis(300));
        let killed = Instant::now();
        ranks.signal(2, Signal::KILL);
        check_named(&ranks, &[1, 3], 2, killed, links);
    });
}

#[test]
fn rank_killed_during_join_is_named_as_joined() {
    // Rank 4 never joins.
    let settings = [("WORLD_SIZE", "5"), ("RINGTREE_STALL_WARNING_S", "60")];
    let jobs = ALL_LINKS.map(|links| (links, SUITE.start(links, "meet", 4, &settings)));
    for (links, ranks) in jobs {
        // All other ranks have joined once rank 0 waits only for rank 4.
        while !ranks.next_reports(&[0]).0[0].contains(" for rank 4 of 5") {}
        let killed = Instant::now();
        ranks.signal(2, Signal::KILL);
        let (said, last) = ranks.next_reports(&[0, 1, 3]);
        for text in said {
            let named = text.contains("rank 2 (process ") && text.contains("exited or gave up");
            assert!(named, "{links:?}: {text}");
        }
        assert!(last - killed < NAMED_WITHIN, "{links:?}");
    }
}

#[test]
fn without_secret_process_of_other_user_is_rejected() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can start a process of another user");
        return;
    }
    let nobody = 65_534;
    let program = std::env::current_exe().unwrap();
    let can_run = Command::new(&program).arg("--list").uid(nobody).output();
    if !can_run.is_ok_and(|end| end.status.success()) {
        eprintln!("skipped: another user cannot run {}", program.display());
        return;
    }
    let with = |stranger: usize| {
        SUITE.start_each(Links::Tcp, "meet", 2, |rank, command| {
            command
                .env("RINGTREE_TIMEOUT_MS", "8000")
                .env_remove("RINGTREE_SECRET");
            if rank == stranger {
                command.uid(nobody);
            }
        })
    };
    for ranks in [with(0), with(1)] {
        let (said, _) = ranks.next_reports(&[0, 1]);
        // Rank 1 detects the different user and disconnects, so rank 0 only reports that rank 1 is
        // missing.
        let users = [
            "runs as user 0, but this process runs as user 65534",
            "runs as user 65534, but this process runs as user 0",
        ];
        assert!(users.iter().any(|line| said[1].contains(line)), "{said:?}");
        assert!(said[1].contains("RINGTREE_SECRET"), "{said:?}");
        assert!(said[0].contains("rank 1 of 2 did not reach"), "{said:?}");
    }
}

// ---- a network that drops everything ----

#[test]
fn unreachable_peer_is_noticed_even_if_rank_0_reaches_all() {
    let namespace = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net", "sh", "-ec", script]);
        command
    };
    if !namespace("ip link set lo up")
        .status()
        .is_ok_and(|end| end.success())
    {
        eprintln!("skipped: cannot create a network namespace");
        return;
    }
    let script = r#"ip link set lo up
        for n in 1 2 3; do ip addr add 10.9.0.$n/32 dev lo; done
        exec "$0" "$ENTRY" --exact --nocapture"#;
    let end = namespace(script)
        .arg(std::env::current_exe().unwrap())
        .env("ENTRY", SUITE.entry())
        .env(ROLE, "namespace")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&end.stderr);
    eprintln!("{output}");
    assert!(end.status.success(), "{output}");
}

/// Runs ranks in a network namespace. Rank 2 uses a separate address for data, which is then
/// removed. The address of rank 0 remains.
fn in_namespace() {
    let ranks = SUITE.start_each(Links::Tcp, "stream", 3, |rank, command| {
        command
            .env("RINGTREE_SECRET", "ab".repeat(32))
            .env("RINGTREE_HOST_ID", format!("host {rank}"))
            .env("RINGTREE_INTERFACE", format!("10.9.0.{}", rank + 1))
            .env("RINGTREE_RENDEZVOUS", "10.9.0.1:7000")
            .env("RINGTREE_ALGORITHM", "ring");
    });
    ranks.next_reports(&[0, 1, 2]);
    let cut = Instant::now();
    let gone = Command::new("ip")
        .args(["addr", "del", "10.9.0.3/32", "dev", "lo"])
        .status();
    assert!(gone.unwrap().success());
    let (said, last) = ranks.next_reports(&[0, 1, 2]);
    for text in &said {
        assert!(
            text.contains("has acknowledged nothing from host"),
            "{text}"
        );
        assert!(
            text.contains("cannot be reached during all-reduce"),
            "{text}"
        );
    }
    assert!(said.iter().all(|text| *text == said[0]), "{said:?}");
    let took = last - cut;
    eprintln!("noticed after {took:?}");
    assert!(took < PATIENCE / 4, "{took:?}");
}
