//! Tests how calls are split into pieces.

use super::*;

/// Returns two offsets for each byte in `rows`: its offset in the device buffer and its offset in
/// the piece.
fn offsets_of(piece: &Piece, rows: &[Rows]) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    for rows in rows {
        assert!(rows.count <= 1 || rows.pitch >= rows.width);
        for row in 0..rows.count {
            let (device_at, host_at) = (
                rows.device_at + row * rows.pitch,
                rows.host_at - piece.host_at + row * rows.width,
            );
            pairs.extend((0..rows.width).map(|byte| (device_at + byte, host_at + byte)));
        }
    }
    pairs
}

/// Every element of a rank's block is in exactly one piece, at the position that it has in a small
/// call of the same kind.
#[test]
fn pieces_are_small_calls_of_the_same_kind() {
    for collective in [Collective::AllGather, Collective::ReduceScatter] {
        for world_size in [1, 2, 3, 5] {
            for count in [0, 1, 4, 7, 600_001, 1_700_003] {
                let whole = |rank| Whole {
                    collective,
                    count,
                    element_bytes: 2,
                    rank,
                    world_size,
                    root: 0,
                };
                let mut seen = vec![0u8; count * 2];
                for rank in 0..world_size {
                    for piece in rounds(&whole(rank)).concat() {
                        let (own, all) = match collective {
                            Collective::AllGather => (&piece.inputs, &piece.outputs),
                            _ => (&piece.outputs, &piece.inputs),
                        };
                        let start = |rank| part_start(piece.count, world_size, rank) * 2;
                        let places: Vec<_> = offsets_of(&piece, own);
                        let bytes = start(rank + 1) - start(rank);
                        assert!(
                            places
                                .iter()
                                .map(|one| one.1)
                                .eq(start(rank)..start(rank) + bytes)
                        );
                        let all = offsets_of(&piece, all);
                        assert_eq!(all.len(), piece.bytes);
                        assert!(count > 100 || places.iter().all(|place| all.contains(place)));
                        places.iter().for_each(|place| seen[place.0] += 1);
                    }
                }
                assert!(
                    seen.iter().all(|times| *times == 1),
                    "{count} of {world_size}"
                );
            }
        }
    }
}

#[test]
fn rounds_of_long_calls_are_bounded() {
    for collective in [Collective::AllReduce, Collective::AllGather] {
        let all = rounds(&Whole {
            collective,
            count: 300_000_001,
            element_bytes: 4,
            rank: 1,
            world_size: 3,
            root: 0,
        });
        assert!(all.len() > 10);
        for round in &all {
            let entries = crate::device::staging::entries(round);
            assert!(2 * entries < crate::limits::DEVICE_ENTRIES_MAX, "{entries}");
        }
        let total: usize = all.concat().iter().map(|piece| piece.count).sum();
        assert_eq!(total, 300_000_001);
    }
}
