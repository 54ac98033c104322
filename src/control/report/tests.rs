use super::*;

fn blame_and_text(error: &Error, own: usize) -> (Option<u32>, String) {
    let members = Members::of(vec![5, 0, 2], 8);
    match Report::failed(error, &members, own) {
        Report::Failed { blames, text } => (blames, text),
        other => panic!("{other:?}"),
    }
}

#[test]
fn report_blames_lost_rank_by_world_rank() {
    let lost = Error::peer_lost(0, "rank 0 died ");
    let text = "rank 0 died".to_owned();
    assert_eq!(blame_and_text(&lost, 2), (Some(5), text.clone()));
    assert_eq!(blame_and_text(&lost, 5), (None, text));
    for error in [
        Error::mismatch("two calls").with_peer(1),
        Error::deadline("late").with_missing([1]),
        Error::peer_lost(7, "no such rank").within(3),
    ] {
        assert_eq!(blame_and_text(&error, 2).0, None, "{error}");
    }
    let long = Error::peer_lost(1, "é".repeat(2_000));
    assert_eq!(blame_and_text(&long, 2), (Some(0), "é".repeat(200)));
}

#[test]
fn incomplete_report_is_kept_until_complete() {
    let reports = [
        Report::Table("{ }".to_owned()),
        Report::Failed {
            blames: Some(1 << 20),
            text: "héron".to_owned(),
        },
        Report::Failed {
            blames: None,
            text: String::new(),
        },
    ];
    let encoded = reports
        .each_ref()
        .map(|one| postcard::to_stdvec(one).unwrap());
    let all = encoded.concat();
    for cut in 0..=all.len() {
        let (mut bytes, mut later) = (all[..cut].to_vec(), all[cut..].to_vec());
        let mut taken = Report::take_all(&mut bytes);
        assert!(reports.starts_with(&taken), "{cut}: {taken:?}");
        bytes.append(&mut later);
        taken.extend(Report::take_all(&mut bytes));
        assert_eq!((taken.as_slice(), bytes.len()), (&reports[..], 0), "{cut}");
    }
    let mut garbage = vec![0xff; 40];
    assert_eq!(
        (Report::take_all(&mut garbage), garbage.len()),
        (Vec::new(), 40)
    );
}
