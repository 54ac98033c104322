use super::*;

#[test]
fn automatic_size_follows_square_root_within_bounds() {
    let link = |a: f64, b: f64| move |bytes: usize| a + b * bytes as f64;
    // For 40 MB, 0.5 ms per collective and 1 Gbit/s, the optimal size √(B·a / b) is 1.58 MB.
    let bytes = automatic(40_000_000, link(0.5e-3, 8e-9));
    assert!((1 << 20..=2 << 20).contains(&bytes), "{bytes}");
    // A model four times as large, or a latency four times as long, doubles the bucket size.
    assert_eq!(automatic(160_000_000, link(0.5e-3, 8e-9)), 2 * bytes);
    assert_eq!(automatic(40_000_000, link(2e-3, 8e-9)), 2 * bytes);
    assert_eq!(automatic(40_000_000, link(10.0, 8e-9)), BUCKET_BYTES_MAX);
    assert_eq!(automatic(40_000_000, link(0.0, 8e-9)), BUCKET_BYTES_MIN);
    assert_eq!(automatic(0, link(0.5e-3, 8e-9)), BUCKET_BYTES_MIN);
}
