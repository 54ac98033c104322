use super::*;
use crate::error::ErrorKind;

#[test]
fn announced_lengths_are_limited_and_split_into_bounded_pieces() {
    for announced in [VALUE_BYTES_MAX as u64 + 1, 1 << 62, u64::MAX - 1] {
        assert!(length(announced, 1).is_err_and(|error| error.kind() == ErrorKind::Protocol));
    }
    assert!(length(NO_VALUE, 1).is_err_and(|error| error.kind() == ErrorKind::Usage));
    for total in [
        0,
        1,
        VALUE_PIECE_BYTES,
        VALUE_PIECE_BYTES + 1,
        VALUE_BYTES_MAX,
    ] {
        let mut received = 0;
        for piece in pieces(total) {
            assert_eq!(piece.start, received);
            assert!(piece.len() <= received.max(VALUE_PIECE_BYTES), "{piece:?}");
            received = piece.end;
        }
        assert_eq!(received, total);
    }
    assert!(
        grow(&mut vec![], usize::MAX / 2 + 1).is_err_and(|error| error.kind() == ErrorKind::System)
    );
}
