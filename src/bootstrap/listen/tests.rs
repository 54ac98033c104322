use super::*;

#[test]
fn non_loopback_address_requires_secret() {
    let mut settings = Settings::new(0, 2, "10.0.0.1:29500");
    let address = IpAddr::from([10, 0, 0, 1]);
    let error = check_secretless(&settings, address)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("RINGTREE_SECRET") && error.contains("10.0.0.1"),
        "{error}"
    );
    check_secretless(&settings, IpAddr::from([127, 0, 0, 2])).unwrap();
    settings.secret = Some(crate::protocol::handshake::Secret::new([1; 32]));
    check_secretless(&settings, address).unwrap();
}

#[test]
fn loopback_rendezvous_for_several_hosts_yields_hint() {
    let mut settings = Settings::new(0, 4, "node1:29500");
    let loopback = IpAddr::from([127, 0, 1, 1]);
    assert_eq!(loopback_hint(&settings, loopback), "");
    settings.local_world_size = Some(2);
    assert!(loopback_hint(&settings, loopback).contains("node1 resolves to 127.0.1.1"));
    assert_eq!(loopback_hint(&settings, IpAddr::from([10, 0, 0, 1])), "");
}
