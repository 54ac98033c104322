use super::*;

#[test]
fn send_buffer_is_requested_only_if_larger() {
    let tuned = "4096\t16384\t4194304\n";
    assert_eq!(widest("4194304\n", tuned), Some(4_194_304));
    assert_eq!(widest("212992\n", tuned), None);
    assert_eq!(widest("much", tuned), None);
}
