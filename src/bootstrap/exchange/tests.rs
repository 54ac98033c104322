use super::*;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// Returns a rank's channel to a launcher that answers its requests with `answer`, byte by byte,
/// until `answer` returns nothing.
fn channel_to(
    mut answer: impl FnMut(&str) -> Option<String> + Send + 'static,
) -> (Channel, UnixStream) {
    let (rank, launcher) = UnixStream::pair().unwrap();
    std::thread::spawn(move || {
        let mut requests = BufReader::new(launcher.try_clone().unwrap()).lines();
        let mut stream = launcher;
        while let Some(Ok(request)) = requests.next() {
            let Some(line) = answer(&request) else {
                return;
            };
            for byte in line.bytes() {
                if stream.write_all(&[byte]).is_err() {
                    return;
                }
                std::thread::yield_now();
            }
        }
    });
    let channel = Channel::open(&Meeting::Pmi(rank.as_raw_fd()), None).unwrap();
    (channel, rank)
}

fn end(channel: &mut Channel) -> std::result::Result<String, String> {
    loop {
        match channel.advance() {
            Ok(None) => std::thread::yield_now(),
            Ok(Some(value)) => return Ok(value),
            Err(why) => return Err(why),
        }
    }
}

fn launcher(request: &str) -> Option<String> {
    let answer = match request.split(' ').next()? {
        "cmd=init" => "cmd=response_to_init rc=0",
        "cmd=get_my_kvsname" => "cmd=my_kvsname kvsname=kvs",
        "cmd=barrier_in" => "cmd=barrier_out",
        "cmd=get" => "cmd=get_result rc=0 value=abcd",
        "cmd=finalize" => "cmd=finalize_ack",
        _ => return None,
    };
    Some(format!("{answer}\n"))
}

#[test]
fn value_arrives_although_every_read_returns_one_byte() {
    let (mut channel, _rank) = channel_to(launcher);
    assert_eq!(end(&mut channel), Ok("abcd".to_owned()));
}

#[test]
fn launcher_that_leaves_or_talks_too_much_is_an_error() {
    let (mut channel, _rank) = channel_to(|_| None);
    assert!(end(&mut channel).unwrap_err().contains("has closed it"));
    let (mut channel, _rank) = channel_to(|_| Some("x".repeat(100_000)));
    assert!(end(&mut channel).unwrap_err().contains("too long"));
}

#[test]
fn descriptor_of_another_socket_is_refused() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    for descriptor in [listener.as_raw_fd(), stream.as_raw_fd(), 2, 1 << 20] {
        assert!(Channel::open(&Meeting::Pmi(descriptor), None).is_err());
    }
}

#[test]
fn rank_whose_secret_differs_from_that_of_rank_0_gets_error() {
    let id = UniqueId::on("127.0.0.1").unwrap();
    let texts = ["a", "b"].map(|digit| digit.repeat(64));
    let secrets = texts.each_ref().map(|text| text.parse::<Secret>().unwrap());
    for theirs in [None, Some(&secrets[0])] {
        let fingerprint = theirs.map(Secret::fingerprint);
        let id = id.clone();
        let text = Passed { id, fingerprint }.to_text();
        // A value of PMI-1 may have 256 bytes.
        assert!(text.len() < 256 && !text.contains(&texts[0]));
        let passed = Passed::parse(&text).unwrap();
        assert_eq!(passed.check_secret(3, theirs), Ok(()));
        for own in [None, Some(&secrets[0]), Some(&secrets[1])] {
            let end = passed
                .check_secret(3, own)
                .map_err(|error| error.to_string());
            let is_same = own.map(Secret::fingerprint) == passed.fingerprint;
            let is_told = |error: &String| error.contains("`mpirun -x RINGTREE_SECRET`");
            assert_eq!(is_same, end.is_ok());
            assert!(end.err().is_none_or(|error| is_told(&error)));
        }
    }
}
