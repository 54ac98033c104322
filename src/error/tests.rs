use super::*;

#[test]
fn control_characters_are_escaped_in_output() {
    let error = Error::join("host \u{1b}]0;x\u{7}é\n\u{9b}2J is héron");
    let line = error.to_string();
    assert_eq!(line, "host \\u{1b}]0;x\\u{7}é\\n\\u{9b}2J is héron");
    assert_eq!(
        format!("{error:?}"),
        line,
        "`Debug` prints the line when `main` fails"
    );
    let fields = format!("{error:#?}");
    assert!(fields.starts_with("Join {") && !fields.contains(['\u{1b}', '\u{7}']));
}

#[test]
fn result_is_pointer_sized() {
    assert_eq!(size_of::<Result<()>>(), size_of::<usize>());
}

#[test]
fn serialization_keeps_all_fields_except_source() {
    let refused = io::Error::from_raw_os_error(13);
    let error = Error::io("opening", &refused)
        .with_call(Some(Collective::Reduce), 1 << 40)
        .with_rank(3)
        .with_peer(1)
        .with_missing(0..100)
        .with_elapsed(Duration::from_millis(1500))
        .with_origin(&Error::system("another"));
    let bytes = postcard::to_stdvec(&error).unwrap();
    let decoded: Error = postcard::from_bytes(&bytes).unwrap();
    assert_eq!(decoded, error);
    assert_eq!(decoded.missing(), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(decoded.missing_count(), 100);
    use std::error::Error as _;
    assert!(decoded.source().is_none() && error.source().is_some());
}

#[test]
fn long_text_keeps_both_ends_locally_and_from_peer() {
    for filling in ["a", "é", "💾", "aé", "\n"] {
        let long = format!("first {} last", filling.repeat(50_000));
        // A peer may encode a text without shortening it.
        let by_peer = postcard::to_stdvec(&long).unwrap();
        let by_peer: Text = postcard::from_bytes(&by_peer).unwrap();
        let own = Error::system(long).0.text;
        assert_eq!(own.0, by_peer.0);
        assert!((ERROR_BYTES_MAX - 8..=ERROR_BYTES_MAX).contains(&own.0.len()));
        assert!(own.0.starts_with("first ") && own.0.ends_with(" last"));
        assert!(own.0.contains(CUT));
        assert_eq!(Text::from(own.0.clone()).0, own.0);
    }
    let fits = "a".repeat(ERROR_BYTES_MAX);
    assert_eq!(Error::system(&*fits).to_string(), fits);
}

#[test]
fn within_removes_ranks_of_larger_world() {
    let error = Error::peer_lost(7, "rank 7 is gone").with_rank(1);
    assert_eq!(error.clone().within(8), error);
    let inside = error.within(4);
    assert!(
        inside.kind() == ErrorKind::PeerLost && inside.peer().is_none() && inside.rank().is_none()
    );
}
