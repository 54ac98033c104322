use super::*;
use crate::dtype::Dtype;
use crate::plan::internal::algorithms::pairs;
use crate::plan::internal::spec::whole_count;
use crate::plan::internal::topology::together;
use crate::plan::{Algorithm, Collective, TuningTable};

const RANKS: usize = 4;

/// Returns the scripts that `rank` enqueues, one per piece, or `None` if the call is staged or
/// invalid.
fn enqueued_by(rank: usize, call: Call) -> Option<Vec<Arc<Script>>> {
    let topology = together(RANKS);
    let mut cache = Cache::new(rank, topology, TuningTable::default(), Vec::new());
    let whole = Whole {
        collective: call.collective()?,
        count: call.count,
        element_bytes: call.dtype.size(),
        rank,
        world_size: RANKS,
        root: call.root,
    };
    Some(mapped(&mut cache, call, &whole).ok()??.rounds.concat())
}

/// Returns the number of bytes from the start of a frame to the end of the last byte that is
/// used.
fn end_in_frames(scripts: &[Arc<Script>]) -> usize {
    let end = |entry: &Entry| {
        let (places, bytes) = entry.places();
        let in_frames = places
            .iter()
            .filter(|one| one.memory != PlaceMemory::Buffer);
        in_frames.map(|one| one.at + bytes).max()
    };
    let entries = scripts.iter().flat_map(|one| &one.entries);
    entries.filter_map(end).max().unwrap_or(0)
}

/// With these counts, two complete messages of the first piece fill a frame up to the last few
/// bytes. Later pieces start at different offsets within a vector but must also fit.
#[test]
fn every_piece_ends_within_its_frame() {
    for (dtype, count) in [(Dtype::F32, 16_777_212), (Dtype::Bf16, 33_554_412)] {
        let mut checked = 0;
        for (collective, algorithm) in pairs(&[2, 3]) {
            let count = whole_count(collective, count, RANKS);
            let call = Call::new(collective, count).dtype(dtype).by(algorithm);
            for rank in 0..RANKS {
                let end = end_in_frames(&enqueued_by(rank, call).unwrap_or_default());
                assert!(end <= DEVICE_FRAME_BYTES, "{call}, rank {rank}: {end}");
                checked += usize::from(end > 0);
            }
        }
        assert!(checked > 20, "{checked}");
    }
}

/// Frames do not reserve space that no piece needs.
#[test]
fn pieces_with_equal_offsets_fill_their_frames() {
    let call = Call::new(Collective::AllReduce, 1 << 24).dtype(Dtype::F32);
    let call = call.by(Algorithm::RecursiveDoubling);
    let scripts = enqueued_by(0, call).unwrap();
    assert_eq!(scripts.len(), MAPPED_PIECES);
    assert_eq!(end_in_frames(&scripts), DEVICE_FRAME_BYTES);
}
