use super::*;

#[test]
fn credential_of_other_step_is_rejected() {
    let id = UniqueId::on("127.0.0.1").unwrap();
    let own = content("17.3", &id);
    assert_eq!(id_in(&own, "17.3").map(|id| id.to_hex()), Ok(id.to_hex()));
    for other in ["17.30", "17", "7.3", ""] {
        let error = id_in(&own, other).unwrap_err();
        assert!(error.contains("another job"), "{other}: {error}");
    }
    assert!(id_in(&own[..own.len() - 1], "17.3").is_err());
}

#[test]
fn process_that_sends_no_credential_is_not_rank_0() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let other = std::thread::spawn(move || {
        // The next port may belong to any other program.
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n")
    });
    let text = credential_from(address).unwrap();
    other.join().unwrap().unwrap();
    let end = Munge::load().map(|munge| munge.decode(&text));
    assert!(end.is_none_or(|end| end.is_err()));
}
