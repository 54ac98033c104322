//! The number of cases that a test generates.

/// Returns `long` if `RINGTREE_TEST_LONG` is 1, and `short` otherwise.
pub(crate) fn short_or_long<N>(short: N, long: N) -> N {
    match std::env::var_os("RINGTREE_TEST_LONG").is_some_and(|value| value == "1") {
        true => long,
        false => short,
    }
}
