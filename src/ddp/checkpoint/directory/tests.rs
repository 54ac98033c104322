use super::*;
use crate::sys::fork::tests::with_forked_child;

#[test]
fn forked_child_does_not_hold_lock() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = Directory::new(scratch.path());
    let lock = directory.lock().unwrap();
    with_forked_child(|| {
        assert!(directory.lock().is_err(), "the parent still holds the lock");
        drop(lock);
        directory.lock().unwrap();
    });
}
