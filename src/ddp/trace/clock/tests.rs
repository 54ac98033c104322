use super::*;

#[test]
fn reading_error_is_at_most_half_the_round_trip() {
    let lead_ns = 1_000_000;
    for there_ns in [0, 7, 300] {
        for back_ns in [0, 1, 40] {
            let asked_ns = 5_000;
            let its_ns = asked_ns + there_ns + lead_ns;
            let reading = Reading::new(asked_ns, its_ns, asked_ns + there_ns + back_ns);
            assert!((reading.lead_ns() - lead_ns).abs() <= reading.error_ns);
            assert!(reading.error_ns <= (there_ns + back_ns + 1) / 2);
        }
    }
}

#[test]
fn clock_drift_is_interpolated_between_readings() {
    // The clock starts 500 ns ahead and gains 1 ns every 10 ns.
    let begin = Reading::new(0, 500, 0);
    let end = Reading::new(1_000, 1_600, 1_000);
    for ours_ns in [0, 10, 500, 1_000] {
        assert_eq!(shift(500 + ours_ns * 11 / 10, &begin, &end), ours_ns);
    }
    assert_eq!(shift(400, &begin, &end), -100);
    assert_eq!(shift(1_700, &begin, &end), 1_100);
    assert_eq!(shift(600, &begin, &begin), 100);
}
