//! Tests how the user's shell and terminal affect a launcher: a terminal that hangs up, output that
//! is closed or not read, and stopping and resuming.

use super::several_hosts::Hosts;
use super::*;
use std::io::{self, BufRead, BufReader, PipeReader};
use std::net::TcpStream;

use std::path::Path;

/// Returns a shell command that runs `before` and then becomes the launcher.
pub(crate) fn shell(before: &str, options: &[&str], script: &str) -> Command {
    let launcher = launcher(options, script);
    let mut command = Command::new("/bin/sh");
    let arguments = ["-c", &format!("{before}; exec \"$0\" \"$@\"")];
    command.args(arguments).arg(launcher.get_program());
    command.args(launcher.get_args()).stdin(Stdio::null());
    command.env_remove("RINGTREE_SECRET");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns the exit code of a launcher whose output no one reads.
fn code_of(mut child: Child) -> Option<i32> {
    let mut code = None;
    let id = child.id();
    let start = Instant::now();
    while code.is_none() {
        if start.elapsed() > WAIT_LIMIT {
            signal(id, "KILL");
            child.wait().unwrap();
            panic!("the launcher did not exit");
        }
        thread::sleep(Duration::from_millis(5));
        code = child.try_wait().unwrap();
    }
    code.unwrap().code()
}

fn is_stopped(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().unwrap().starts_with('T')
}

#[test]
fn ignored_hangup_stays_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let word = folder.path().join("word");
    let script = format!(
        "echo up; until [ -e {} ]; do sleep 0.01; done; echo done",
        word.display()
    );
    let mut child = shell("trap '' HUP", &["--nproc-per-node", "2"], &script)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        assert!(lines.next().unwrap().unwrap().ends_with("up"));
    }
    signal(child.id(), "HUP");
    // A launcher that handled the signal would stop the ranks, which would print nothing more.
    thread::sleep(Duration::from_millis(100));
    fs::write(&word, "").unwrap();
    let rest: BTreeSet<String> = lines.map(Result::unwrap).collect();
    assert_eq!(
        rest,
        BTreeSet::from(["[0]: done".to_owned(), "[1]: done".to_owned()])
    );
    let end = wait(child);
    assert_eq!((end.code, end.stderr.as_str()), (Some(0), ""), "{end:?}");
}

#[test]
fn closed_output_stops_neither_launcher_nor_restarts() {
    let script = "echo $RANK; echo $RANK >&2; \
                  if [ $TORCHELASTIC_RESTART_COUNT$RANK = 01 ]; then kill -KILL $$; fi";
    for options in [&["--max-restarts", "1"][..], &[]] {
        let options = [&["--nproc-per-node", "2"], options].concat();
        let mut child = launcher(&options, script).spawn().unwrap();
        drop((child.stdout.take(), child.stderr.take()));
        let expected = i32::from(options.len() == 2);
        assert_eq!(code_of(child), Some(expected), "{options:?}");
    }
}

/// Starts a launcher whose two streams write to one pipe, and waits until the pipe is full. Returns
/// the launcher and the read end of the pipe.
fn with_full_pipe(options: &[&str], script: &str) -> (Child, PipeReader) {
    let (reader, writer) = io::pipe().unwrap();
    let mut command = launcher(options, script);
    command.stdout(writer.try_clone().unwrap()).stderr(writer);
    let child = command.spawn().unwrap();
    // A pipe may be full before it holds its maximum number of bytes.
    eventually("the pipe is full", || {
        let held = || rustix::io::ioctl_fionread(&reader).unwrap();
        let before = held();
        thread::sleep(Duration::from_millis(200));
        before > 0 && held() == before
    });
    (child, reader)
}

const ENDLESS_OUTPUT: &str = "while :; do echo something to read; echo and more >&2; done";

#[test]
fn bench_exits_cleanly_when_its_reader_closes() {
    let sizes = vec!["8"; 10_000].join(",");
    let bench = ["bench", "all-reduce", "--ranks", "2", "--iters", "1"];
    let mut child = Command::new(env!("CARGO_BIN_EXE_ringtree"))
        .args(bench)
        .args(["--sizes", &sizes])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut first).unwrap();
    assert!(first.contains("time_us"), "{first}");
    drop(output);
    let end = wait(child);
    assert_eq!((end.code, end.stderr.as_str()), (Some(0), ""));
}

#[test]
fn paused_reader_does_not_delay_end_of_job() {
    let (child, reader) = with_full_pipe(&["--nproc-per-node", "3"], ENDLESS_OUTPUT);
    signal(child.id(), "TERM");
    assert_eq!(code_of(child), Some(1));
    drop(reader);
}

#[test]
fn paused_reader_does_not_delay_restart_and_is_informed() {
    let folder = tempfile::tempdir().unwrap();
    let [fail, again] = ["fail", "again"].map(|name| folder.path().join(name));
    let script = format!(
        "if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then touch {again}; fi; \
         if [ $RANK = 0 ]; then {ENDLESS_OUTPUT}; fi; \
         if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then \
         until [ -e {fail} ]; do sleep 0.01; done; exit 3; fi; sleep 1000",
        again = again.display(),
        fail = fail.display(),
    );
    let options = ["--nproc-per-node", "2", "--max-restarts", "1"];
    let (child, reader) = with_full_pipe(&options, &script);
    fs::write(fail, "").unwrap();
    eventually("the job starts again", || Path::new(&again).exists());
    signal(child.id(), "TERM");
    // Now the reader resumes.
    let text = io::read_to_string(reader).unwrap();
    assert_eq!(code_of(child), Some(1));
    for line in [
        "ringtree: rank 1 exited with code 3; it produced no output; restart 1 of 1",
        "ringtree: the launcher received SIGTERM and forwarded it to its ranks",
    ] {
        assert!(text.lines().any(|one| one == line), "{line}");
    }
}

#[test]
fn slow_reader_receives_all_output() {
    let script = "i=0; while [ $i -lt 20000 ]; do echo a line of rank $RANK; i=$((i+1)); done";
    let mut child = launcher(&["--nproc-per-node", "2"], script)
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut count = 0;
    for (number, line) in lines.enumerate() {
        assert!(line.unwrap().contains("]: a line of rank"));
        count += 1;
        // These sleeps add up to about as long as the launcher waits for the job's last output.
        if number % 1000 == 0 {
            thread::sleep(Duration::from_millis(20));
        }
    }
    assert_eq!(count, 40_000);
    assert_eq!(wait(child).code, Some(0));
}

#[test]
fn launcher_and_ranks_stop_and_continue_together() {
    let mark = mark();
    let script = format!("sleep {mark} & sleep {mark}; echo awake; exit 0");
    let mut command = launcher(&["--nproc-per-node", "2"], &script);
    // A shell puts each job into its own process group.
    let mut child = command.process_group(0).spawn().unwrap();
    eventually("all processes sleep", || sleepers(&mark).len() == 4);
    signal(child.id(), "TSTP");
    eventually("all processes are stopped", || {
        is_stopped(child.id()) && sleepers(&mark).into_iter().all(is_stopped)
    });
    signal(child.id(), "CONT");
    eventually("all processes are running again", || {
        !is_stopped(child.id()) && !sleepers(&mark).into_iter().any(is_stopped)
    });
    assert!(child.try_wait().unwrap().is_none());
    for sleeper in sleepers(&mark) {
        signal(sleeper, "TERM");
    }
    let end = wait(child);
    assert_eq!(end.code, Some(0), "{end:?}");
    assert_eq!(end.stdout.matches("awake").count(), 2, "{end:?}");
}

#[test]
fn session_leader_is_not_stopped() {
    let mark = mark();
    let launcher = launcher(
        &["--nproc-per-node", "2"],
        &format!("sleep {mark}; echo awake"),
    );
    // A session leader has no parent in its session that could resume it.
    let mut command = Command::new("setsid");
    command
        .arg(launcher.get_program())
        .args(launcher.get_args());
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("both sleep", || sleepers(&mark).len() == 2);
    signal(child.id(), "TSTP");
    thread::sleep(Duration::from_millis(100));
    for sleeper in sleepers(&mark) {
        signal(sleeper, "TERM");
    }
    let end = wait(child);
    assert_eq!(end.stdout.matches("awake").count(), 2, "{end:?}");
}

/// Acts as the first process of a container that reaps no orphans, for
/// [`no_process_is_left_unreaped`], which starts it from this test binary.
#[test]
fn reaps_nothing() {
    if std::env::var_os("REAPS_NOTHING_TEST").is_none() {
        return;
    }
    let own = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(own)).unwrap();
    let end = run(&["--nproc-per-node", "2"], "true & exit 0");
    assert_eq!(end.code, Some(0), "{end:?}");
    let left = fs::read_to_string(format!("/proc/self/task/{own}/children")).unwrap();
    let names = left
        .split_whitespace()
        .map(|id| fs::read_to_string(format!("/proc/{id}/comm")));
    let names: Vec<String> = names.map(Result::unwrap_or_default).collect();
    let watchdogs = names.iter().filter(|name| name.contains("ringtree"));
    println!("left: {}", watchdogs.count());
}

#[test]
fn no_process_is_left_unreaped() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "terminal::reaps_nothing",
            "--nocapture",
            "--test-threads",
            "1",
        ])
        .env("REAPS_NOTHING_TEST", "1")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("left: 0"), "{printed}");
}

#[test]
fn launcher_recovers_from_descriptor_exhaustion() {
    let hosts = Hosts::new(2);
    let options = [
        "--nproc-per-node=1",
        "--nnodes=2",
        "--rdzv-endpoint",
        hosts.endpoint(),
    ];
    let mut first = shell("ulimit -n 40", &options, "echo here");
    let first = first.env("RINGTREE_SECRET", SECRET).spawn().unwrap();
    hosts.await_coordinator();
    let strangers: Vec<_> = (0..100)
        .map(|_| TcpStream::connect(hosts.endpoint()))
        .collect();
    // The launcher closes an unauthenticated connection when it runs out of descriptors, so the
    // count may never exceed 39.
    eventually("no descriptor is left", || {
        fs::read_dir(format!("/proc/{}/fd", first.id()))
            .unwrap()
            .count()
            >= 39
    });
    drop(strangers);
    let second = wait_in_thread(&mut hosts.launcher(1, &[], "echo here"));
    for end in [wait(first), second.join().unwrap()] {
        assert_eq!((end.code, end.lines().len()), (Some(0), 1), "{end:?}");
    }
}
