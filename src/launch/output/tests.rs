use super::*;

fn forwarded(pieces: &[&[u8]]) -> (String, Vec<u8>) {
    let heard = SharedOutput::default();
    let show = Show::Lines("[7]: ".to_owned());
    let mut lines = Lines::new(show, Target::Stdout, heard.clone());
    pieces.iter().for_each(|piece| lines.feed(piece));
    lines.finish();
    let last = heard.noted().words.last().unwrap().words.clone();
    let text = String::from_utf8_lossy(&lines.ready).into_owned();
    (text, last.into_bytes())
}

#[test]
fn split_reads_yield_complete_lines() {
    let whole = forwarded(&[b"one\ntwo\n\nend"]);
    assert_eq!(whole.0, "[7]: one\n[7]: two\n[7]: \n[7]: end\n");
    assert_eq!(
        whole,
        forwarded(&[b"o", b"ne\ntw", b"o", b"\n", b"\ne", b"nd"])
    );
    assert_eq!(whole.1, b"end");
}

#[test]
fn carriage_returns_are_kept_and_add_no_lines() {
    let (text, last) = forwarded(&[b"\r10%", b"\r20%\r", b"\ndone\r\n"]);
    assert_eq!(text, "\r[7]: 10%\r[7]: 20%\r\n[7]: done\r\n");
    assert_eq!(last, b"done");
}

#[test]
fn repeated_blame_is_shown_once() {
    let echoes = Echoes::default();
    let shown = |blames, line: &str| {
        let heard = SharedOutput::default();
        heard.noted().record = Record::of(&[(blames, "1 has had enough")]);
        let mut lines = Lines::new(Show::Lines("> ".to_owned()), Target::Stderr, heard);
        lines.echoes = Some(echoes.clone());
        lines.feed(line.as_bytes());
        !lines.ready.is_empty()
    };
    let line = "train: 1 has had enough; look there\n";
    assert!(shown(Some(1), line));
    assert!(!shown(Some(1), line));
    assert!(
        shown(None, line),
        "an error that does not blame another rank must be shown"
    );
    assert!(shown(Some(1), "serve: 1 has had enough\n"));
    assert!(shown(Some(1), "step 4\n") && shown(Some(1), "step 4\n"));
}

#[test]
fn overlong_line_is_forwarded_in_pieces() {
    let show = Show::Lines(String::new());
    let mut lines = Lines::new(show, Target::Stdout, SharedOutput::default());
    for _ in 0..40 {
        lines.feed(&[b'x'; READ_BYTES]);
        assert!(lines.pending.len() <= LINE_BYTES_MAX);
    }
    assert!(lines.ready.len() >= 39 * READ_BYTES - LINE_BYTES_MAX);
}

#[test]
fn kept_output_is_bounded_and_includes_last_line() {
    let heard = SharedOutput::default();
    let show = Show::Kept("[7]: ".to_owned());
    let mut lines = Lines::new(show, Target::Stderr, heard.clone());
    lines.feed(&[b'x'; 3 * KEPT_BYTES_MAX]);
    (0..9_000).for_each(|number| lines.feed(format!("line {number}\n").as_bytes()));
    assert!(lines.ready.is_empty());
    let noted = heard.noted();
    assert!(noted.kept.len() > 1_000 && noted.kept_bytes <= KEPT_BYTES_MAX);
    assert_eq!(noted.kept.back().unwrap().1, b"line 8999\n");
    assert!(noted.has_kept(noted.words.last().unwrap()));
}
