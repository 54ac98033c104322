use super::*;
use crate::error::ErrorKind;

#[test]
fn interface_is_found_by_name_or_address() {
    let like = IpAddr::from([127, 0, 0, 1]);
    assert_eq!(interface_address("lo", like).unwrap(), like);
    assert_eq!(interface_address("127.0.0.1", like).unwrap(), like);
    let error = interface_address("nowhere0", like).unwrap_err().to_string();
    let (start, names) = error.split_once("; use one of ").unwrap();
    assert!(start.contains("nowhere0"), "{error}");
    let loopbacks = names.split(", ").filter(|name| *name == "lo");
    assert_eq!(loopbacks.count(), 1, "{error}");
}

#[test]
fn wildcard_address_is_rejected_as_rendezvous() {
    assert!(matches!(
        resolve("the rendezvous", "0.0.0.0:1", Instant::now()),
        Err(error) if error.kind() == ErrorKind::Configuration
    ));
}
