//! Tests jobs on one host.

use super::*;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;

#[test]
fn ranks_get_torchruns_variables() {
    let script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE \
                  $GROUP_RANK/$GROUP_WORLD_SIZE $MASTER_ADDR $OMP_NUM_THREADS \
                  $TORCHELASTIC_RUN_ID $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS \
                  ${#RINGTREE_SECRET} ${MASTER_PORT:+port}";
    let end = run(&["--nproc-per-node", "3", "--rdzv-id", "job7"], script);
    assert_eq!(end.code, Some(0), "{end:?}");
    let line = |rank| format!("[{rank}]: {rank}/3 {rank}/3 0/1 127.0.0.1 1 job7 0 0 64 port");
    let expected: Vec<_> = (0..3).map(line).collect();
    assert_eq!(end.lines(), expected.iter().map(String::as_str).collect());
}

#[test]
fn settings_of_the_user_are_kept() {
    let mut command = launcher(
        &["--nproc-per-node", "2"],
        "echo $OMP_NUM_THREADS $RINGTREE_SECRET",
    );
    let end = wait(
        command
            .env("OMP_NUM_THREADS", "4")
            .env("RINGTREE_SECRET", SECRET)
            .spawn()
            .unwrap(),
    );
    let expected = [format!("[0]: 4 {SECRET}"), format!("[1]: 4 {SECRET}")];
    assert_eq!(end.lines(), expected.iter().map(String::as_str).collect());
}

#[test]
fn only_rank_0_inherits_rendezvous_socket() {
    let mark = mark();
    let script = format!(
        "echo $RANK ${{RINGTREE_RENDEZVOUS#*:}} ${{RINGTREE_LISTENER_FD:-none}}; exec sleep {mark}"
    );
    let mut child = launcher(&["--nproc-per-node", "2"], &script)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut printed: Vec<String> = (0..2).map(|_| lines.next().unwrap().unwrap()).collect();
    printed.sort();
    let words: Vec<&str> = printed[0].split(' ').collect();
    assert_eq!(printed[1], format!("[1]: 1 {} none", words[2]));
    assert!(words[3].parse::<u32>().unwrap() > 2);
    TcpStream::connect(("127.0.0.1", words[2].parse().unwrap())).unwrap();
    signal(child.id(), "TERM");
    wait(child);
    assert_eq!(sleepers(&mark), NO_PROCESSES);
}

#[test]
fn lines_stay_intact_and_on_their_stream() {
    let script = "i=0; while [ $i -lt 200 ]; do printf 'half '; echo line $i; i=$((i+1)); done; \
                  echo oops >&2; printf unfinished";
    let end = run(&["--nproc-per-node", "2"], script);
    assert_eq!(end.code, Some(0), "{end:?}");
    for rank in 0..2 {
        let prefix = format!("[{rank}]: ");
        let own: Vec<_> = end
            .stdout
            .lines()
            .filter_map(|line| line.strip_prefix(&prefix))
            .collect();
        let mut expected: Vec<_> = (0..200)
            .map(|number| format!("half line {number}"))
            .collect();
        expected.push("unfinished".to_owned());
        assert_eq!(own, expected);
        assert!(end.stderr.contains(&format!("{prefix}oops\n")));
    }
    assert_eq!(end.stdout.lines().count(), 402);
}

#[test]
fn failing_rank_stops_job_and_is_named() {
    let mark = mark();
    let script = format!(
        "if [ $RANK = 1 ]; then echo fine; echo no such file >&2; exit 3; fi; \
         trap '' TERM; sleep {mark} & sleep {mark}"
    );
    let end = run(&["--nproc-per-node", "3"], &script);
    assert_eq!(end.code, Some(1));
    let line = "ringtree: rank 1 exited with code 3; its last output is above, after [1]";
    assert_eq!(end.messages(), [line], "{end:?}");
    assert_eq!(end.stderr.matches("no such file").count(), 1, "{end:?}");
    assert!(end.took < STOP_LIMIT, "{:?}", end.took);
    assert_eq!(sleepers(&mark), NO_PROCESSES);
}

#[test]
fn killed_rank_stops_job_and_is_named() {
    let mark = mark();
    let script = format!(
        "echo step $RANK; if [ $RANK = 2 ]; then kill -KILL $$; fi; \
         while :; do sleep {mark}; exit 1; done"
    );
    let end = run(&["--nproc-per-node", "3"], &script);
    assert_eq!(end.code, Some(1));
    let line = "ringtree: rank 2 was killed by SIGKILL; its last output: step 2";
    assert_eq!(end.messages(), [line], "{end:?}");
    assert!(end.took < STOP_LIMIT, "{:?}", end.took);
    assert_eq!(sleepers(&mark), NO_PROCESSES);
}

#[test]
fn killed_rank_is_the_cause_not_its_failing_peer() {
    // Rank 0 acts like a program that fails because its peer has exited. It checks the peer's
    // command line, which is empty even before the dead process is reaped.
    let folder = tempfile::tempdir().unwrap();
    let note = folder.path().join("process");
    let note = note.to_str().unwrap();
    let script = format!(
        "if [ $RANK = 1 ]; then echo $$ >{note}; sleep 0.1; kill -KILL $$; fi; \
         until [ -s {note} ]; do sleep 0.01; done; read process <{note}; \
         while [ -n \"$(tr -d '\\0' </proc/$process/cmdline)\" ]; do :; done 2>/dev/null; exit 4"
    );
    for _ in 0..5 {
        let end = run(&["--nproc-per-node", "2"], &script);
        let line = "ringtree: rank 1 was killed by SIGKILL; it produced no output";
        assert_eq!(end.messages(), [line], "{end:?}");
        fs::remove_file(note).unwrap();
    }
}

#[test]
fn no_process_outlives_killed_launcher() {
    let mark = mark();
    let script = format!("trap '' TERM HUP; sleep {mark} & sleep {mark}");
    let mut child = launcher(&["--nproc-per-node", "2"], &script)
        .spawn()
        .unwrap();
    eventually("four processes sleep", || sleepers(&mark).len() == 4);
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("no process is left", || running(&mark).is_empty());
}

#[test]
fn no_child_process_outlives_its_rank() {
    let mark = mark();
    let end = run(
        &["--nproc-per-node", "2"],
        &format!("sleep {mark} & echo bye"),
    );
    assert_eq!(end.code, Some(0), "{end:?}");
    assert_eq!(sleepers(&mark), NO_PROCESSES);
}

#[test]
fn signals_reach_every_rank() {
    for name in ["TERM", "INT", "HUP"] {
        let script =
            format!("trap 'echo saved; exit 0' {name}; echo up; while :; do sleep 0.05; done");
        let mut child = launcher(&["--nproc-per-node", "2"], &script)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for _ in 0..2 {
            assert!(lines.next().unwrap().unwrap().ends_with("up"));
        }
        signal(child.id(), name);
        let rest: BTreeSet<String> = lines.map(Result::unwrap).collect();
        assert_eq!(
            rest,
            BTreeSet::from(["[0]: saved".to_owned(), "[1]: saved".to_owned()])
        );
        let end = wait(child);
        assert_eq!(end.code, Some(1));
        let line = format!("ringtree: the launcher received SIG{name}");
        assert!(
            end.messages().len() == 1 && end.messages()[0].starts_with(&line),
            "{end:?}"
        );
    }
}

#[test]
fn wrong_usage_exits_with_2_and_a_reason() {
    let cases: &[(&[&str], &str)] = &[
        (&[], "--nproc-per-node"),
        (&["--nproc-per-node", "0"], "at least 1"),
        (&["--nproc-per-node", "many"], "auto"),
        (&["--nproc-per-node", "2000"], "1024"),
        (
            &["--nproc-per-node", "1", "--max-restarts", "-1"],
            "--max-restarts",
        ),
        (
            &["--nproc-per-node", "1", "--nnodes", "2"],
            "--rdzv-endpoint",
        ),
        (&["--nproc-per-node", "1", "--node-rank", "1"], "--nnodes 1"),
        (&["--nproc-per-node", "1", "--frobnicate"], "--frobnicate"),
    ];
    for (options, reason) in cases {
        let end = run(options, "true");
        assert_eq!(end.code, Some(2), "{options:?} {end:?}");
        assert!(end.stderr.contains(reason), "{options:?} {end:?}");
    }
    let two = ["--nproc-per-node", "1", "--nnodes", "2", "--rdzv-endpoint"];
    for endpoint in ["nowhere", "127.0.0.1:0", "0.0.0.0:29500"] {
        let mut command = launcher(&[&two[..], &[endpoint]].concat(), "true");
        let end = wait(command.env("RINGTREE_SECRET", SECRET).spawn().unwrap());
        assert_eq!((end.code, end.messages().len()), (Some(2), 1), "{end:?}");
        assert!(end.stderr.contains(endpoint), "{end:?}");
    }
}

#[test]
fn missing_program_is_named() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringtree"));
    command.args(["run", "--nproc-per-node", "2", "/no/such/program"]);
    let end = wait(
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    assert_eq!((end.code, end.messages().len()), (Some(2), 1), "{end:?}");
    assert!(end.stderr.contains("/no/such/program"), "{end:?}");
}

/// Exit code 0 is not a failure. But without this message, only the rank that fails later would be
/// blamed.
#[test]
fn rank_that_exits_early_with_0_is_named() {
    let ends_early = "[ $RANK = 1 ] && exit 0; ";
    let two = ["--nproc-per-node", "2"];
    let end = run(&two, &words::script("leaves early"));
    let expected = "ringtree: rank 1 exited with code 0; then rank 0 exited with code 1";
    assert!(end.messages()[0].starts_with(expected), "{end:?}");

    let mut job = launcher(&two, &format!("{ends_early}sleep 30"))
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(job.stderr.take().unwrap()).lines();
    let message = lines.next().unwrap().unwrap();
    job.kill().unwrap();
    job.wait().unwrap();
    let expected = "ringtree: rank 1 exited with code 0; other ranks are still running";
    assert_eq!(message, expected);
}

#[test]
fn unimplemented_settings_and_malformed_secrets_fail() {
    for (name, value) in [("RINGTREE_ENCRYPT", "1"), ("RINGTREE_SECRET", "abc")] {
        let mut command = launcher(&["--nproc-per-node", "1"], "true");
        let end = wait(command.env(name, value).spawn().unwrap());
        assert_eq!((end.code, end.messages().len()), (Some(2), 1), "{end:?}");
        assert!(end.stderr.contains(name), "{end:?}");
    }
}

/// The program that [`programs_can_spawn_themselves`] starts from this test binary.
#[test]
fn spawned() {
    match std::env::var("SPAWN_SELF_TEST").as_deref() {
        Ok("fails") if std::env::var("RANK").as_deref() == Ok("2") => {
            eprint!("rank two fails");
            std::process::exit(5);
        }
        Ok(_) if std::env::var_os("RANK").is_some() => println!("rank is here"),
        Ok(_) => std::process::exit(ringtree::launch::spawn_self(3).unwrap()),
        Err(_) => {}
    }
}

#[test]
fn programs_can_spawn_themselves() {
    let spawn = |how| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "one_host::spawned", "--nocapture"])
            .env("SPAWN_SELF_TEST", how);
        wait(
            command
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap(),
        )
    };
    let end = spawn("succeeds");
    assert_eq!(end.code, Some(0), "{end:?}");
    assert_eq!(end.stdout.matches("rank is here").count(), 3, "{end:?}");
    assert!(!end.stdout.contains("[1]: "), "{end:?}");
    let end = spawn("fails");
    assert_eq!(end.code, Some(1), "{end:?}");
    // The rank's last line had no newline, so the launcher has added one.
    let lines = "rank two fails\nringtree: rank 2 exited with code 5; its last output is \
                 above\n";
    assert!(end.stderr.ends_with(lines), "{end:?}");
}

#[test]
fn bound_ranks_divide_the_cpus_of_the_launcher() {
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    let is_allowed = |cpu: &usize| set.is_set(*cpu);
    let mut allowed: Vec<_> = (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(is_allowed)
        .collect();
    let end = run(
        &["-n", "2", "--bind-to", "core"],
        "grep Cpus_allowed_list /proc/self/status",
    );
    let lists = end.stdout.lines().filter_map(|line| line.rsplit_once('\t'));
    let lists: Vec<_> = lists.map(|(_, list)| list.to_owned()).collect();
    assert_eq!(lists.len(), 2, "{end:?}");
    let mut bound = Vec::new();
    for list in &lists {
        assert!(
            end.stderr
                .contains(&format!("is bound to the CPUs {list}\n")),
            "{end:?}"
        );
        for item in list.split(',') {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            bound.extend(first.parse::<usize>().unwrap()..=last.parse().unwrap());
        }
    }
    bound.sort_unstable();
    if allowed.len() == 1 {
        // Both ranks share the only CPU.
        allowed.push(allowed[0]);
    }
    assert_eq!(bound, allowed);
}
