//! Tests the final message of a launcher after a rank has failed, and which rank it names.

use super::several_hosts::Hosts;
use super::*;
use ringtree::{Communicator, ReduceOp};

/// The code of the ranks below, which run this test binary. Rank 1 fails in the way that the test
/// specifies, while the others wait for it in a call.
#[test]
fn rank() {
    let Ok(role) = std::env::var("WORDS_TEST") else {
        return;
    };
    let ends = std::thread::Builder::new().name("training".to_owned());
    let trained = ends.spawn(move || train(&role)).unwrap().join();
    // Exit like a program whose main function trains.
    std::process::exit(match trained {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => {
            eprintln!("train: {error}");
            1
        }
        Err(_) => 101,
    });
}

fn train(role: &str) -> ringtree::Result<()> {
    let _slow = role.ends_with(" slowly").then_some(Slow);
    let comm = Communicator::from_env()?;
    let processes = comm.all_gather_value(&std::process::id())?;
    for step in 0..100 {
        if comm.rank() == 1 && step == 3 {
            match role {
                "panics" | "unwinds slowly" => panic!("no sample {step}"),
                "leaves early" => return Ok(()),
                _ => return Err(ringtree::Error::new(ringtree::ErrorKind::System, "no data")),
            }
        }
        let summed = comm.all_reduce(&mut [1.0f32; 64], ReduceOp::Sum);
        match role {
            "fails among ranks that unwrap" => summed.unwrap(),
            "leaves early" if summed.is_err() => {
                let has_ended = || !running("words::rank").contains(&processes[1]);
                eventually("rank 1 has ended", has_ended);
                summed?;
            }
            _ => summed?,
        }
    }
    Ok(())
}

/// A value that is dropped after the communicator, and takes time to drop.
struct Slow;

impl Drop for Slow {
    fn drop(&mut self) {
        thread::sleep(Duration::from_millis(300));
    }
}

pub(super) fn script(role: &str) -> String {
    let program = std::env::current_exe().unwrap();
    format!(
        "export WORDS_TEST='{role}'; exec '{}' --exact words::rank --nocapture",
        program.display()
    )
}

/// Returns the last message of a launcher of four ranks.
fn last_message(role: &str, backtrace: &str) -> (String, End) {
    let mut line = launcher(&["--nproc-per-node", "4"], &script(role));
    let end = wait(line.env("RUST_BACKTRACE", backtrace).spawn().unwrap());
    assert_eq!((end.code, end.messages().len()), (Some(1), 1), "{end:?}");
    (end.messages()[0].to_owned(), end)
}

#[test]
fn panicking_rank_is_named_and_no_other_is_blamed() {
    for backtrace in ["0", "1"] {
        for role in ["panics", "unwinds slowly"] {
            let (line, end) = last_message(role, backtrace);
            let expected = "ringtree: rank 1 exited with code 101; its last output is above, \
                            after [1]";
            assert_eq!(line, expected, "{end:?}");
            assert_eq!(end.stderr.matches("[1]: no sample 3").count(), 1, "{end:?}");
            assert_eq!(end.stderr.matches("no sample 3").count(), 1, "{end:?}");
        }
    }
}

#[test]
fn panic_of_a_rank_is_reported_once() {
    let (_, end) = last_message("panics", "0");
    let reports = end
        .stderr
        .lines()
        .filter(|line| line.contains("rank 1 panicked; check"));
    assert_eq!(reports.count(), 1, "{end:?}");
}

#[test]
fn ranks_that_panic_after_another_left_are_not_blamed() {
    for backtrace in ["0", "1"] {
        let (line, end) = last_message("fails among ranks that unwrap", backtrace);
        let expected = "ringtree: rank 1 exited with code 1; its last output is above, after \
                        [1]";
        assert_eq!(line, expected, "{end:?}");
        assert_eq!(end.stderr.matches("train: no data").count(), 1, "{end:?}");
    }
}

/// With inherited output, the launcher cannot read what the ranks print about each other.
#[test]
fn first_failed_rank_is_named_with_inherited_output() {
    let options = ["--output", "inherit", "--nproc-per-node", "4"];
    for (role, code) in [
        ("fails slowly", 1),
        ("unwinds slowly", 101),
        ("fails among ranks that unwrap", 1),
    ] {
        let end = run(&options, &script(role));
        let line = format!("ringtree: rank 1 exited with code {code}");
        assert_eq!(
            (end.code, end.messages()),
            (Some(1), vec![&*line]),
            "{role}: {end:?}"
        );
    }
}

#[test]
fn panic_is_quoted_on_hosts_that_did_not_print_it() {
    let hosts = Hosts::new(2);
    let script = script("unwinds slowly");
    let job = [1, 2].map(|ranks| wait_in_thread(&mut hosts.launcher(ranks, &[], &script)));
    for end in job.map(|end| end.join().unwrap()) {
        assert_eq!((end.code, end.messages().len()), (Some(1), 1), "{end:?}");
        let line = end.messages()[0];
        let is_its_host = end.stderr.contains("[1]: no sample 3");
        let ends_with = match is_its_host {
            true => "exited with code 101; its last output is above, after [1]",
            false => ": no sample 3",
        };
        let is_named = line.contains("rank 1 (node ") && line.ends_with(ends_with);
        assert!(is_named, "{end:?}");
        assert_eq!(end.stderr.matches("no sample 3").count(), 1, "{end:?}");
    }
}

#[test]
fn wrong_argument_of_program_sets_launchers_exit_code() {
    let usage = "printf \"error: unexpected argument '--stepz' found\\n\\n  tip: try \
                 '--steps'\\n\\nUsage: train [OPTIONS]\\n\\nFor more information, try \
                 '--help'.\\n\" >&2; exit 2";
    let end = run(&["--nproc-per-node", "2"], usage);
    assert_eq!(end.code, Some(2), "{end:?}");
    let shown = end
        .stderr
        .matches("error: unexpected argument '--stepz' found");
    assert!(end.messages()[0].contains("is above, after ["), "{end:?}");
    assert!(
        (1..=2).contains(&shown.count()),
        "each rank may print it once: {end:?}"
    );

    let hosts = Hosts::new(2);
    let job = [1, 1].map(|ranks| wait_in_thread(&mut hosts.launcher(ranks, &[], "exit 2")));
    for end in job.map(|end| end.join().unwrap()) {
        assert_eq!(end.code, Some(2), "{end:?}");
    }
}
