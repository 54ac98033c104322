//! Tests the safeguards that keep child processes from outliving this process.

use super::*;
use std::os::fd::AsFd;
use std::process::Stdio;

#[test]
fn only_chosen_child_inherits_descriptor() {
    let (reading, writing) = io::pipe().unwrap();
    let number = writing.as_raw_fd();
    // Use `/proc`, because a shell can redirect only to descriptors that have a single digit.
    let script = format!("echo chosen >/proc/self/fd/{number}");
    let command = || {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &script]).stderr(Stdio::null());
        command
    };
    let mut watchdog = Watchdog::start().unwrap();
    let mut spawn =
        |inherited: &[BorrowedFd<'_>]| watchdog.spawn(command(), inherited, false).unwrap();
    let (mut chosen, mut other) = (spawn(&[writing.as_fd()]), spawn(&[]));
    assert!(chosen.wait().unwrap().success());
    assert!(!other.wait().unwrap().success());
    drop(writing);
    assert_eq!(io::read_to_string(reading).unwrap(), "chosen\n");
}

#[test]
fn watchdog_kills_guarded_groups_and_spares_released_ones() {
    let mut watchdog = Watchdog::start().unwrap();
    let mut sleeper = || {
        let mut command = Command::new("/bin/sleep");
        command.arg("60");
        watchdog.spawn(command, &[], true).unwrap()
    };
    let (mut guarded, mut released) = (sleeper(), sleeper());
    watchdog.release(released.id() as i32);
    let process = format!("/proc/{}", watchdog.process);
    assert!(std::fs::exists(&process).unwrap());
    drop(watchdog);
    assert!(
        !std::fs::exists(&process).unwrap(),
        "the watchdog must be reaped"
    );
    assert!(!guarded.wait().unwrap().success());
    assert!(released.try_wait().unwrap().is_none());
    released.kill().unwrap();
    released.wait().unwrap();
}

#[test]
fn failed_child_is_not_guarded_and_others_stay_guarded() {
    let mut groups = Groups::new();
    for word in [CHILD_FOLLOWS, 11, CHILD_FOLLOWS, 12, CHILD_FAILED] {
        groups.hear(word);
    }
    // The first of these children could not be forked and sent nothing.
    for word in [CHILD_FOLLOWS, CHILD_FAILED, CHILD_FOLLOWS, 13] {
        groups.hear(word);
    }
    assert_eq!(groups.guarded[..3], [11, 13, 0]);
    groups.hear(-11);
    assert_eq!(groups.guarded[..3], [0, 13, 0]);
    groups.hear(-11);
    assert_eq!(groups.guarded[..3], [0, 13, 0]);
}

#[test]
fn child_is_guarded_before_its_program_starts() {
    let (mut received, writer) = io::pipe().unwrap();
    let mut watchdog = Watchdog {
        writer: Some(writer),
        // This is not a child of this process, so `drop` does not wait for it.
        process: 1,
    };
    let mut child = watchdog
        .spawn(Command::new("/bin/true"), &[], false)
        .unwrap();
    let mut words = [0; 8];
    received.read_exact(&mut words).unwrap();
    assert_eq!(words[..4], CHILD_FOLLOWS.to_ne_bytes());
    assert_eq!(words[4..], (child.id() as i32).to_ne_bytes());
    child.wait().unwrap();
    let missing = Command::new("/nowhere/at/all");
    watchdog.spawn(missing, &[], false).unwrap_err();
    drop(watchdog);
    let mut words = Vec::new();
    received.read_to_end(&mut words).unwrap();
    assert_eq!(words.len(), 12);
    assert_eq!(words[8..], CHILD_FAILED.to_ne_bytes());
}
