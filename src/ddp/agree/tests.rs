use super::*;

#[test]
fn impossible_count_from_peer_returns_error() {
    assert_eq!(room("a", 2).unwrap(), [0.0; 2]);
    for count in [usize::MAX, usize::MAX / 4, isize::MAX as usize / 4] {
        let line = room("momentum", count).unwrap_err().to_string();
        assert!(line.contains("'momentum'"), "{line}");
    }
}
