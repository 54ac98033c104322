use super::*;

fn cause_of_exit(status: i32, stderr: &str) -> Cause {
    cause_after_errors(&[], status, stderr)
}

/// Returns the cause of an exit after these reported errors, each with the rank that it blames.
fn cause_after_errors(errors: &[(Option<u32>, &str)], status: i32, stderr: &str) -> Cause {
    let mut words = LastOutput::default();
    let now = std::time::Instant::now();
    stderr
        .lines()
        .for_each(|line| words.record_stderr(line.as_bytes(), now));
    let (status, mut record) = (ExitStatus::from_raw(status), Record::of(errors));
    Cause::of_rank((3, "rank 3"), status, (&words, false), &mut record)
}

#[test]
fn cause_is_reported_in_one_line() {
    let killed = cause_of_exit(9, "step\t\x1b[31m4\n");
    assert_eq!(
        killed.line(None),
        "rank 3 was killed by SIGKILL; its last output: step  [31m4"
    );
    assert_eq!(killed.standing, Confidence::Original);
    let failed = cause_of_exit(7 << 8, "");
    assert_eq!(
        failed.line(None),
        "rank 3 exited with code 7; it produced no output"
    );
    assert_eq!(
        (failed.standing, failed.remedy),
        (Confidence::Exit, Remedy::Restart)
    );
    let misused = cause_of_exit(2 << 8, "");
    assert_eq!(
        (misused.remedy, misused.exit_code()),
        (Remedy::Correction, 2)
    );
}

#[test]
fn line_does_not_repeat_output_shown_above() {
    let mut cause = cause_of_exit(1 << 8, "no data");
    cause.then = Some("restart 1 of 2".to_owned());
    let above = || Some("its last output is above".to_owned());
    let line = "rank 3 exited with code 1; its last output is above; restart 1 of 2";
    assert_eq!(cause.line(above()), line);
    cause.log = Some("logs/rank-3.log".to_owned());
    let line = "rank 3 exited with code 1; see logs/rank-3.log; restart 1 of 2";
    assert_eq!(cause.line(above()), line);
    let line = "rank 3 exited with code 1; its last output: no data; see logs/rank-3.log; \
                restart 1 of 2";
    assert_eq!(cause.line(None), line);
}

#[test]
fn cause_without_known_output_quotes_nothing() {
    let unseen_after = |errors: &[_], status| {
        let (words, status) = (LastOutput::default(), ExitStatus::from_raw(status));
        Cause::of_rank(
            (3, "rank 3"),
            status,
            (&words, true),
            &mut Record::of(errors),
        )
    };
    let unseen = |status| unseen_after(&[], status);
    assert_eq!(unseen(1 << 8).line(None), "rank 3 exited with code 1");
    assert_eq!(unseen(9).line(None), "rank 3 was killed by SIGKILL");
    // The failure of another rank may explain an exit without output, except after a panic.
    let standings = [1 << 8, 101 << 8, 9].map(|status| unseen(status).standing);
    let expected = [Confidence::Unknown, Confidence::Exit, Confidence::Original];
    assert_eq!(standings, expected);
    // The last reported error decides whether another rank is to blame.
    let [own, others] = [(None, "no data"), (Some(1), "1 has had enough")];
    for status in [1 << 8, 101 << 8] {
        let standing = |errors: &[_]| unseen_after(errors, status).standing;
        assert_eq!(standing(&[own, others]), Confidence::Consequence);
        assert_eq!(standing(&[others, own]), Confidence::Exit);
    }
}

#[test]
fn panic_is_quoted_and_outranks_its_consequences() {
    let panic = "thread 'main' panicked at a.rs:1:2:\nno data\nnote: run with `RUST_BACKTRACE=1`";
    let panicked = cause_of_exit(101 << 8, panic);
    let text = "rank 3 exited with code 101; it panicked at a.rs:1:2: no data";
    assert_eq!(
        (&*panicked.line(None), panicked.standing),
        (text, Confidence::Panic)
    );
    // A caught panic does not explain a later exit.
    let caught = cause_of_exit(1 << 8, &format!("{panic}\ngoing on\nno disk"));
    assert!(
        caught.line(None).ends_with("its last output: no disk"),
        "{}",
        caught.line(None)
    );
    let errors = [(Some(1), "1 has had enough")];
    let consequence = "thread 'main' panicked at a.rs:3:4:\nErr(1 has had enough; look there)";
    for (status, words) in [
        (101 << 8, consequence),
        (1 << 8, "train: 1 has had enough"),
        (1 << 8, ""),
    ] {
        let standing = cause_after_errors(&errors, status, words).standing;
        assert_eq!(standing, Confidence::Consequence);
    }
    // The rank survived its error and failed for a different reason.
    assert_eq!(
        cause_after_errors(&errors, 1 << 8, "no disk").standing,
        Confidence::Exit
    );
    assert!(
        Confidence::Consequence < Confidence::Unknown && Confidence::Unknown < Confidence::Exit
    );
    assert!(Confidence::Panic < Confidence::Original);
}
