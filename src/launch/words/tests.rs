use super::*;

fn words_of(text: &str) -> LastOutput {
    let mut words = LastOutput::default();
    let at = Instant::now();
    text.lines()
        .for_each(|line| words.record_stderr(line.as_bytes(), at));
    words
}

fn last(words: &LastOutput) -> &str {
    words.last().map_or("", |said| &said.words)
}

fn panic(words: &LastOutput) -> Option<&str> {
    words.panic().map(|said| &*said.words)
}

#[test]
fn panic_is_quoted_without_note_or_frames() {
    let opening = "thread 'main' (4211) panicked at src/main.rs:9:5:\nno such sample\n";
    let note = "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace";
    let frames = "stack backtrace:\n   0: __rustc::rust_begin_unwind\n             at \
                  /rustc/5/panicking.rs:689:5\n  19: _start\nnote: Some details are omitted, \
                  run with `RUST_BACKTRACE=full`";
    for end in [note, frames] {
        let words = words_of(&format!("step 4\n{opening}{end}"));
        assert_eq!(last(&words), "panicked at src/main.rs:9:5: no such sample");
        assert_eq!(panic(&words), Some(last(&words)));
    }
    // A panic in a thread is followed by a panic in its owner, whose message has an older format.
    let second = "thread 'main' panicked at 'a thread panicked: Any', src/main.rs:20:1\n";
    let words = words_of(&format!("{opening}{note}\n{second}"));
    assert_eq!(
        panic(&words),
        Some("panicked at src/main.rs:9:5: no such sample")
    );
    let assertion = "thread 'main' panicked at a.rs:1:1:\nassertion `left == \
                     right` failed\n  left: 1\n right: 2\n";
    let whole = "panicked at a.rs:1:1: assertion `left == right` failed left: 1 right: 2";
    assert_eq!(panic(&words_of(&format!("{assertion}{note}"))), Some(whole));
}

#[test]
fn error_is_quoted_without_trailing_hints() {
    let parser = [
        "error: unexpected argument '--stepz' found\n",
        "  tip: a similar argument exists: '--steps'\n",
        "Usage: mingpt [OPTIONS]\n",
        "For more information, try '--help'.",
    ];
    let missing = [
        "error: the following required arguments were not provided:",
        "  --text <FILE>\n",
        "Usage: mingpt --text <FILE>\n",
        "For more information, try '--help'.",
    ];
    let candle = [
        "Error: shape mismatch in matmul",
        "   0: candle_core::error::Error::bt",
        "             at /candle/error.rs:264:25",
        "  19: _start",
    ];
    let chain = [
        "Error: cannot read the data\n",
        "Caused by:",
        "    0: no such file",
        "    1: data.bin\n",
        "Stack backtrace:",
        "   0: anyhow::error",
    ];
    let python = [
        "Traceback (most recent call last):",
        "  File \"a.py\", line 3, in <module>",
        "    f()",
        "ValueError: no data",
    ];
    let last_of = |lines: &[&str]| last(&words_of(&lines.join("\n"))).to_owned();
    assert_eq!(
        last_of(&parser),
        "error: unexpected argument '--stepz' found"
    );
    let whole = "error: the following required arguments were not provided: --text <FILE>";
    assert_eq!(last_of(&missing), whole);
    assert_eq!(last_of(&candle), "Error: shape mismatch in matmul");
    assert_eq!(last_of(&chain), "Error: cannot read the data");
    assert_eq!(last_of(&python), "ValueError: no data");
    assert_eq!(last(&words_of("   0: only this")), "0: only this");
}

#[test]
fn later_stream_is_quoted_and_stderr_breaks_ties() {
    let mut words = words_of("warning");
    let now = Instant::now();
    words.record_stdout(b"step 1\n", now);
    assert_eq!(last(&words), "warning");
    words.record_stdout(b"step 2\n", now + 2 * TOGETHER);
    assert_eq!(last(&words), "step 2");
}

#[test]
fn shown_lines_are_distinguished_from_hidden() {
    let mut words = words_of("no data\n  in line 3");
    let is_shown = |words: &LastOutput| words.is_shown(words.last().unwrap());
    assert!(!is_shown(&words));
    words.were_shown(Target::Stdout);
    assert!(!is_shown(&words), "only standard output was shown");
    words.were_shown(Target::Stderr);
    assert!(is_shown(&words));
    words.record_stderr(b"rank 1 is gone", Instant::now());
    words.hide();
    words.were_shown(Target::Stderr);
    assert!(!is_shown(&words), "a hidden line must not count as shown");
}
