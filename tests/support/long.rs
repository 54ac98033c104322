//! How much of it a test does.

/// `short`; or `long` with `RINGTREE_TEST_LONG=1`, in runs that may take long.
pub(crate) fn short_or_long<N>(short: N, long: N) -> N {
    match std::env::var_os("RINGTREE_TEST_LONG").is_some_and(|value| value == "1") {
        true => long,
        false => short,
    }
}
