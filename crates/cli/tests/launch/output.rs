//! Tests the output of ranks: what the launcher prints and what it stores.

use super::several_hosts::Hosts;
use super::terminal::shell;
use super::*;
use crate::pty::Terminal;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Starts a launcher on a terminal.
fn on_terminal(options: &[&str], script: &str) -> (Child, Terminal) {
    let (terminal, launchers) = Terminal::open();
    let mut command = launcher(options, script);
    command.stdout(launchers.try_clone().unwrap());
    let child = command.stderr(launchers).spawn().unwrap();
    (child, terminal)
}

/// Returns shell commands with which two ranks wait for each other.
fn barrier(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "touch {folder}/$RANK; until [ -e {folder}/0 ] && [ -e {folder}/1 ]; do sleep 0.01; done"
    )
}

fn rank0(ranks: &'static str) -> [&'static str; 4] {
    ["--output", "rank0", "--nproc-per-node", ranks]
}

#[test]
fn rank_0_has_terminal_and_its_output_is_unchanged() {
    let script = "if [ $RANK = 0 ]; then [ -t 1 ] && [ -t 2 ] && stty size <&1; \
                  printf '\\r10%%' >&2; printf '\\r20%%\\r' >&2; echo; printf end; \
                  else [ -t 1 ] || [ -t 2 ] || echo rank $RANK has none; fi";
    let (child, mut terminal) = on_terminal(&rank0("3"), script);
    assert_eq!(terminal.rest(), "33 111\r\n\r10%\r20%\r\r\nend");
    assert_eq!(wait(child).code, Some(0));
}

#[test]
fn rank_0_is_notified_of_terminal_resize() {
    let script = "[ $RANK = 0 ] || exit 0; trap 'stty size <&1; exit 0' WINCH; echo up; \
                  while :; do sleep 0.05; done";
    let (child, mut terminal) = on_terminal(&rank0("2"), script);
    assert_eq!(terminal.line(), "up\r\n");
    terminal.resize(44, 222);
    signal(child.id(), "WINCH");
    assert_eq!(terminal.rest(), "44 222\r\n");
    assert_eq!(wait(child).code, Some(0));
}

#[test]
fn interrupted_launcher_forwards_rank_0s_last_output() {
    let script = "trap 'echo saved; exit 0' INT; printf 'step 1'; while :; do sleep 0.05; done";
    let (child, mut terminal) = on_terminal(&rank0("2"), script);
    let mut begun = [0; 6];
    terminal.0.read_exact(&mut begun).unwrap();
    signal(child.id(), "INT");
    let line = "ringtree: the launcher received SIGINT and forwarded it to its ranks";
    assert_eq!(terminal.rest(), format!("saved\r\n{line}\r\n"));
    assert_eq!(wait(child).code, Some(1));
}

#[test]
fn rank_0_writes_to_launchers_streams_without_terminal() {
    let script = "[ -t 1 ] || echo out $RANK; echo err $RANK >&2";
    let end = run(&rank0("3"), script);
    assert_eq!(end.code, Some(0), "{end:?}");
    assert_eq!((&*end.stdout, &*end.stderr), ("out 0\n", "err 0\n"));
}

#[test]
fn withheld_output_of_failing_rank_is_shown() {
    let meeting = tempfile::tempdir().unwrap();
    let both = barrier(meeting.path());
    let script = format!(
        "echo step $RANK; {both}; [ $RANK = 1 ] || exec sleep 1000; \
         i=0; while [ $i -lt 4000 ]; do echo line $i >&2; i=$((i+1)); done; \
         printf 'Traceback:\\n  File a.py\\nValueError: no data' >&2; exit 3"
    );
    let (child, mut terminal) = on_terminal(&rank0("2"), &script);
    let text = terminal.rest();
    assert_eq!(wait(child).code, Some(1));
    let end = "[1]: Traceback:\r\n[1]:   File a.py\r\n[1]: ValueError: no data\r\nringtree: rank 1 \
               exited with code 3; its last output is above, after [1]\r\n";
    assert!(
        text.starts_with("step 0\r\n") && text.ends_with(end),
        "{text}"
    );
    assert!(
        text.contains("[1]: line 3999\r") && !text.contains("[1]: line 0\r"),
        "{text}"
    );
}

#[test]
fn last_output_of_rank_0_is_shown_once() {
    let failure = "[ $RANK = 0 ] || exec sleep 1000; printf 'no data' >&2; exit 3";
    let end = run(&rank0("2"), failure);
    let line = "ringtree: rank 0 exited with code 3; its last output is above";
    assert_eq!(end.stderr, format!("no data\n{line}\n"));
    // If the two streams go to different places, standard error lacks what rank 0 printed to
    // standard output, so the message quotes it.
    let printed = "[ $RANK = 0 ] || exec sleep 1000; echo no data; exit 3";
    let end = run(&rank0("2"), printed);
    let line = "ringtree: rank 0 exited with code 3; its last output: no data\n";
    assert_eq!((&*end.stdout, &*end.stderr), ("no data\n", line));
    let (reader, writer) = io::pipe().unwrap();
    let mut command = launcher(&["--nproc-per-node", "2"], printed);
    command.stdout(writer.try_clone().unwrap()).stderr(writer);
    let child = command.spawn().unwrap();
    drop(command);
    let text = io::read_to_string(reader).unwrap();
    let line = "ringtree: rank 0 exited with code 3; its last output is above, after [0]";
    assert_eq!(text, format!("[0]: no data\n{line}\n"));
    wait(child);
}

#[test]
fn inherited_output_reaches_terminal_and_is_not_quoted() {
    let options = ["--output", "inherit", "--nproc-per-node", "2"];
    let meeting = tempfile::tempdir().unwrap();
    let both = barrier(meeting.path());
    let script =
        format!("[ -t 1 ] && [ -t 2 ] && stty size <&1; {both}; [ $RANK = 0 ] || exit 3; sleep 9");
    let (child, mut terminal) = on_terminal(&options, &script);
    let size = "33 111\r\n";
    let line = "ringtree: rank 1 exited with code 3\r\n";
    assert_eq!(terminal.rest(), [size, size, line].concat());
    assert_eq!(wait(child).code, Some(1));

    let script = format!("echo $RANK; {both}; [ $RANK = 0 ] || kill -KILL $$; sleep 9");
    let end = run(&options, &script);
    assert_eq!(end.lines(), BTreeSet::from(["0", "1"]));
    assert_eq!(end.stderr, "ringtree: rank 1 was killed by SIGKILL\n");
}

#[test]
fn tostop_terminal_does_not_stop_ranks() {
    let (mut terminal, launchers) = Terminal::open();
    let options = ["--output", "inherit", "--nproc-per-node", "2"];
    let launcher = launcher(&options, "stty sane <&1 && echo fine");
    let mut command = Command::new("setsid");
    command.args(["--ctty", "/bin/sh", "-c", "stty tostop; exec \"$0\" \"$@\""]);
    command
        .arg(launcher.get_program())
        .args(launcher.get_args());
    command.stdin(launchers.try_clone().unwrap());
    command
        .stdout(launchers.try_clone().unwrap())
        .stderr(launchers);
    let child = command.spawn().unwrap();
    drop(command);
    assert_eq!([terminal.line(), terminal.line()], ["fine\r\n", "fine\r\n"]);
    assert_eq!(wait(child).code, Some(0));
}

#[test]
fn withheld_output_of_other_host_is_quoted() {
    let hosts = Hosts::new(2);
    let meeting = tempfile::tempdir().unwrap();
    let both = barrier(meeting.path());
    let last = meeting.path().join("2");
    let script = format!(
        "echo of rank $RANK; {both}; until [ -e {} ]; do sleep 0.01; done; \
         [ $RANK != 2 ] || {{ echo no data >&2; exit 3; }}; sleep 9",
        last.display()
    );
    let options = ["--output", "rank0"];
    let first = hosts.coordinator(1, &options, &script);
    let second = wait_in_thread(&mut hosts.launcher(2, &options, &script));
    let (first, second) = (wait(first), second.join().unwrap());
    let shown = ("of rank 0\n", "of rank 1\n");
    assert_eq!((&*first.stdout, &*second.stdout), shown);
    let [line] = first.messages()[..] else {
        panic!("{first:?}");
    };
    assert!(
        line.ends_with("exited with code 3; its last output: no data"),
        "{line}"
    );
    // The order of the two streams is unspecified.
    let lines: BTreeSet<_> = second.stderr.lines().take(2).collect();
    let shown = BTreeSet::from(["[2]: of rank 2", "[2]: no data"]);
    assert_eq!(lines, shown, "{second:?}");
    let line = second.messages()[0];
    assert!(line.contains("rank 2 (node 1, host "), "{line}");
    assert!(line.ends_with("is above, after [2]"), "{line}");
}

/// Returns the log of a rank.
fn stored_log(folder: &Path, rank: usize) -> String {
    fs::read_to_string(folder.join(format!("rank-{rank}.log"))).unwrap()
}

#[test]
fn log_dir_appends_to_one_file_per_rank() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("made/here");
    let place = folder.to_str().unwrap();
    let options = [
        "--nproc-per-node=2",
        "--max-restarts=1",
        "--rdzv-id=night",
        "--log-dir",
        place,
    ];
    let script = "printf \"10%%\\r$RANK in attempt $RINGTREE_ATTEMPT\\n\"; echo oops >&2; \
                  [ $RINGTREE_ATTEMPT$RANK != 01 ] || exit 3; [ $RINGTREE_ATTEMPT = 1 ] || sleep 9";
    let end = run(&options, script);
    assert_eq!(end.code, Some(0), "{end:?}");
    let line =
        format!("ringtree: rank 1 exited with code 3; see {place}/rank-1.log; restart 1 of 1");
    assert_eq!(end.messages(), [line], "{end:?}");
    assert!(end.stdout.contains("[1]: 1 in attempt 0\n"), "{end:?}");
    let attempt = |number| format!("10%\r1 in attempt {number}\noops\n");
    let heading = |number| format!("\nringtree: job night, restart {number}\n");
    let expected = [attempt(0), heading(1), attempt(1)].concat();
    let sorted = |text: &str| {
        // The order of the two streams is unspecified.
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let before = stored_log(&folder, 1);
    assert_eq!(sorted(&before), sorted(&expected));
    assert!(stored_log(&folder, 0).contains("0 in attempt 1\n"));

    let options = ["--output=rank0", "--nproc-per-node=2", "--log-dir", place];
    let meeting = barrier(scratch.path());
    let end = run(
        &options,
        &format!("echo again; {meeting}; [ $RANK = 0 ] || {{ echo no >&2; exit 3; }}; sleep 9"),
    );
    assert_eq!((end.code, &*end.stdout), (Some(1), "again\n"), "{end:?}");
    // The message refers to the log, which contains the withheld output.
    let line = format!("exited with code 3; its last output: no; see {place}/rank-1.log\n");
    assert!(
        end.stderr.ends_with(&line) && end.stderr.lines().count() == 1,
        "{end:?}"
    );
    let all = stored_log(&folder, 1);
    assert!(all.starts_with(&before), "{all}");
    assert!(
        all.contains("\n\nringtree: job ") && all.contains("again\n"),
        "{all}"
    );
}

#[test]
fn unusable_log_dir_is_reported_before_ranks_start() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("file");
    fs::write(&file, "mine").unwrap();
    let pipe = scratch.path().join("pipe");
    fs::create_dir(&pipe).unwrap();
    let made = Command::new("mkfifo").arg(pipe.join("rank-0.log")).status();
    assert!(made.unwrap().success());
    let below = file.join("below");
    for (place, why) in [
        (&*file, "not a directory"),
        (&*below, "cannot create"),
        (&*pipe, "rank-0.log"),
        (Path::new("/dev/full"), "not a directory"),
        (Path::new(""), "a value is required"),
    ] {
        let options = [
            "--nproc-per-node",
            "1",
            "--log-dir",
            place.to_str().unwrap(),
        ];
        let end = run(&options, "echo started");
        assert_eq!((end.code, end.messages().len()), (Some(2), 1), "{end:?}");
        assert!(end.stderr.contains(why) && end.stdout.is_empty(), "{end:?}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"mine");
    let options = ["--nproc-per-node=1", "--output=inherit", "--log-dir=logs"];
    let end = run(&options, "echo started");
    assert_eq!((end.code, end.messages().len()), (Some(2), 1), "{end:?}");
    assert!(end.stderr.contains("prefixed or rank0"), "{end:?}");
}

#[test]
fn full_disk_stops_log_but_not_job() {
    let scratch = tempfile::tempdir().unwrap();
    let log = scratch.path().join("rank-1.log");
    std::os::unix::fs::symlink("/dev/full", &log).unwrap();
    let options = [
        "--nproc-per-node",
        "2",
        "--log-dir",
        scratch.path().to_str().unwrap(),
    ];
    let end = run(
        &options,
        "for i in 1 2 3; do echo line $i; sleep 0.02; done",
    );
    assert_eq!((end.code, end.messages().len()), (Some(0), 1), "{end:?}");
    let line = format!("ringtree: cannot write to {}: No space left", log.display());
    assert!(end.stderr.starts_with(&line), "{end:?}");
    assert_eq!(end.stdout.lines().count(), 6, "{end:?}");
    assert_eq!(stored_log(scratch.path(), 0), "line 1\nline 2\nline 3\n");

    // By default, the signal for a write beyond this limit kills the process.
    let script = "head -c 9000 /dev/zero | tr '\\0' x; echo; echo fine";
    let end = wait(shell("ulimit -f 4", &options, script).spawn().unwrap());
    assert_eq!((end.code, end.messages().len()), (Some(0), 2), "{end:?}");
    assert!(end.stderr.contains("rank-0.log: File too large"), "{end:?}");
    assert_eq!(end.stdout.matches("]: fine\n").count(), 2, "{end:?}");
}

#[test]
fn output_without_newlines_is_forwarded() {
    let script = "head -c 100000000 /dev/zero | tr '\\0' x";
    for options in [&rank0("2")[..], &["--nproc-per-node", "2"]] {
        let mut child = launcher(options, script).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut count = 0;
        loop {
            let length = output.fill_buf().unwrap().len();
            if length == 0 {
                break;
            }
            count += length;
            output.consume(length);
        }
        let end = wait(child);
        assert_eq!((end.code, &*end.stderr), (Some(0), ""), "{options:?}");
        let expected = if options.len() == 4 {
            100_000_000
        } else {
            200_000_000
        };
        // Each part of a split line gets a prefix and a newline.
        assert!((expected..expected + 10_000).contains(&count), "{count}");
    }
}
