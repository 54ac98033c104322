use super::*;

#[test]
fn addresses_include_loopback() {
    let loopback = ("lo".to_owned(), IpAddr::from([127, 0, 0, 1]));
    assert!(addresses().unwrap().contains(&loopback));
}
