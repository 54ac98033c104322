use super::*;
use crate::control::peer::tests::{hosts, peer, unable_to_share};
use std::io;

#[test]
fn obstacle_names_first_rank_and_reason() {
    assert_eq!(obstacle(&[unable_to_share()]), None);
    assert_eq!(obstacle(&hosts(&[1, 1])), None);
    let line = obstacle(&hosts(&[1, 1, 9, 2])).unwrap();
    assert!(
        line.contains("rank 2 ") && line.contains("memfd_create: no"),
        "{line}"
    );
    let line = obstacle(&hosts(&[9, 1])).unwrap();
    assert!(line.contains("rank 0 "), "{line}");
    let reasons = ["RINGTREE_HOST_ID", "boot1 and boot2", "network", "users"];
    for (property, reason) in reasons.iter().enumerate() {
        let mut other = [1; 4];
        other[property] = 2;
        let line = obstacle(&[peer([1; 4]), peer(other)]).unwrap();
        assert!(line.contains("rank 1 ") && line.contains(reason), "{line}");
    }
}

#[test]
fn each_failed_check_prevents_sharing() {
    let (place, _socket) = Findings::here(2).place().unwrap();
    assert!(!place.boot_id.is_empty() && place.network > 0);
    let spoil: [fn(&mut Findings); 5] = [
        |findings| findings.memory = Err("no".into()),
        |findings| findings.socket = Err("no".into()),
        |findings| findings.boot_id = Err("no".into()),
        |findings| findings.network = Err("no".into()),
        |findings| findings.users = Err("no".into()),
    ];
    for spoil in spoil {
        let mut findings = Findings::here(2);
        spoil(&mut findings);
        assert_eq!(findings.place().unwrap_err(), "no");
    }
}

#[test]
fn memory_beyond_address_space_is_rejected() {
    let too_much = address_space_holds(usize::MAX / 4).unwrap_err();
    assert_eq!(too_much.kind(), io::ErrorKind::OutOfMemory);
    assert!(address_space_holds(1 << 20).is_ok());
    assert_eq!(Findings::here(usize::MAX).memory, Ok(true));
}

#[test]
fn tcp_transport_offers_no_shared_memory() {
    let mut settings = Settings::new(0, 2, "127.0.0.1:1");
    assert!(offer(&settings).0.is_ok());
    settings.transport = TransportChoice::Tcp;
    assert!(matches!(offer(&settings), (Err(_), None)));
}
