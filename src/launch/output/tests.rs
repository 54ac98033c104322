use super::*;

fn passed(pieces: &[&[u8]]) -> (String, Vec<u8>) {
    let heard = Heard::default();
    let show = Show::Lines("[7]: ".to_owned());
    let mut lines = Lines::new(show, Target::Stdout, heard.clone());
    pieces.iter().for_each(|piece| lines.feed(piece));
    lines.finish();
    let last = heard.noted().words.last().unwrap().words.clone();
    let text = String::from_utf8_lossy(&lines.ready).into_owned();
    (text, last.into_bytes())
}

#[test]
fn lines_are_whole_however_they_arrive() {
    let whole = passed(&[b"one\ntwo\n\nend"]);
    assert_eq!(whole.0, "[7]: one\n[7]: two\n[7]: \n[7]: end\n");
    assert_eq!(
        whole,
        passed(&[b"o", b"ne\ntw", b"o", b"\n", b"\ne", b"nd"])
    );
    assert_eq!(whole.1, b"end");
}

#[test]
fn a_carriage_return_moves_on_and_is_no_line() {
    let (text, last) = passed(&[b"\r10%", b"\r20%\r", b"\ndone\r\n"]);
    assert_eq!(text, "\r[7]: 10%\r[7]: 20%\r\n[7]: done\r\n");
    assert_eq!(last, b"done");
}

#[test]
fn what_several_ranks_say_of_another_is_passed_on_once() {
    let echoes = Echoes::default();
    let shown = |blames, line: &str| {
        let heard = Heard::default();
        heard.noted().record = Record::of(&[(blames, "1 has had enough")]);
        let mut lines = Lines::new(Show::Lines("> ".to_owned()), Target::Stderr, heard);
        lines.echoes = Some(echoes.clone());
        lines.feed(line.as_bytes());
        !lines.ready.is_empty()
    };
    let line = "train: 1 has had enough; look there\n";
    assert!(shown(Some(1), line));
    assert!(!shown(Some(1), line));
    assert!(shown(None, line), "its own words");
    assert!(shown(Some(1), "serve: 1 has had enough\n"));
    assert!(shown(Some(1), "step 4\n") && shown(Some(1), "step 4\n"));
}

#[test]
fn an_endless_line_is_passed_on_in_pieces() {
    let show = Show::Lines(String::new());
    let mut lines = Lines::new(show, Target::Stdout, Heard::default());
    for _ in 0..40 {
        lines.feed(&[b'x'; READ_BYTES]);
        assert!(lines.pending.len() <= LINE_BYTES_MAX);
    }
    assert!(lines.ready.len() >= 39 * READ_BYTES - LINE_BYTES_MAX);
}

#[test]
fn of_what_is_kept_back_the_last_is_there_and_no_more_than_fits() {
    let heard = Heard::default();
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
