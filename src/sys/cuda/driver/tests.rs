use super::*;
use crate::error::ErrorKind;

#[test]
fn error_states_missing_library_or_function() {
    let none = open(&[c"libringtree-none.so"]).unwrap_err();
    assert!(none.contains("libcuda.so.1"), "{none}");
    let other = open(&[c"libc.so.6"]).unwrap_err();
    assert!(other.contains("libc.so.6: cuInit is missing"), "{other}");
}

#[test]
fn gpu_count_without_driver_returns_one_line_error() {
    match gpu_count() {
        Ok(count) => assert!(count > 0),
        Err(error) if error.kind() == ErrorKind::NoDevice => {
            let why = error.to_string();
            assert!(
                why.starts_with("CUDA is not available: ") && !why.contains('\n'),
                "{why}"
            );
        }
        Err(other) => panic!("{other:?}"),
    }
}
