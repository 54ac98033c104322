use super::*;

#[test]
fn small_region_stays_within_its_share() {
    for (ranks, segment_kib) in [(1, 128), (2, 128), (3, 64), (4, 64), (8, 32), (64, 4)] {
        let layout = Layout::small(ranks);
        assert_eq!(layout.segment_bytes(), segment_kib << 10, "{ranks}");
        assert!(layout.division().bytes <= GROUP_SEGMENTS_BYTES, "{ranks}");
        assert!(layout.row_slots() >= 2, "a link must hold two messages");
    }
    assert_eq!(Layout::small(1000).segment_bytes(), SMALL_SEGMENT_BYTES_MIN);
}
