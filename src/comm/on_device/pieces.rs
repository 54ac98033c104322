//! Splits a call on a device buffer into pieces, which are small calls of the same kind.
//!
//! The split depends only on the collective, the count, the element type and constants, so it is
//! the same on all ranks. For an all-reduce, a broadcast or a reduce, a piece is a part of the
//! buffer. For a collective with blocks, such as an all-gather, a piece contains a part of every
//! rank's block. The first `count mod n` blocks are one element longer than the others, and so are
//! the last parts of these blocks. All other parts of a piece have the same length.

use crate::device::staging::Piece;
use crate::limits::{DEVICE_PIECE_BYTES_MAX, DEVICE_PIECE_BYTES_MIN, DEVICE_PIECES_MAX};
use crate::plan::Collective;
use crate::plan::internal::layout::part_start;
use crate::plan::internal::spec::is_blocked;
use crate::sys::cuda::Rows;

/// The properties of a call that determine its pieces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    pub(super) collective: Collective,
    pub(super) count: usize,
    pub(super) element_bytes: usize,
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) root: usize,
}

/// Returns the pieces of a staged call in order, in rounds of at most [`DEVICE_PIECES_MAX`].
pub(super) fn rounds(whole: &Whole) -> Vec<Vec<Piece>> {
    let bytes = whole.bytes().div_ceil(DEVICE_PIECES_MAX);
    let bytes = bytes.clamp(DEVICE_PIECE_BYTES_MIN, DEVICE_PIECE_BYTES_MAX);
    let mut rounds: Vec<_> = pieces(whole, bytes)
        .chunks(DEVICE_PIECES_MAX)
        .map(<[Piece]>::to_vec)
        .collect();
    for round in &mut rounds {
        let mut host_at = 0;
        for piece in round {
            piece.host_at = host_at;
            for rows in piece.inputs.iter_mut().chain(&mut piece.outputs) {
                rows.host_at += host_at;
            }
            // Start the next piece at a cache line.
            host_at += piece.bytes.next_multiple_of(64);
        }
    }
    rounds
}

impl Whole {
    pub(super) fn bytes(&self) -> usize {
        self.count * self.element_bytes
    }
}

/// Returns the pieces of a call, in order. Each piece has about `piece_bytes` bytes.
pub(super) fn pieces(whole: &Whole, piece_bytes: usize) -> Vec<Piece> {
    let bytes = whole.bytes();
    match is_blocked(whole.collective) {
        true => {
            let shortest = whole.count / whole.world_size;
            let parts = bytes.div_ceil(piece_bytes).clamp(1, shortest.max(1));
            (0..parts)
                .map(|part| block_piece(whole, part, parts))
                .collect()
        }
        false => {
            let parts = bytes.div_ceil(piece_bytes).clamp(1, whole.count.max(1));
            (0..parts)
                .map(|part| flat_piece(whole, part, parts))
                .collect()
        }
    }
}

/// Returns a piece that is a part of the buffer.
fn flat_piece(whole: &Whole, part: usize, parts: usize) -> Piece {
    let start = |part| part_start(whole.count, parts, part);
    let count = start(part + 1) - start(part);
    let bytes = count * whole.element_bytes;
    let rows = || vec![Rows::one(start(part) * whole.element_bytes, 0, bytes)];
    let is_root = whole.rank == whole.root;
    let (gives, gets) = match whole.collective {
        Collective::Broadcast => (is_root, !is_root),
        Collective::Reduce => (true, is_root),
        _ => (true, true),
    };
    Piece {
        count,
        host_at: 0,
        bytes,
        rows: rows(),
        inputs: if gives { rows() } else { Vec::new() },
        outputs: if gets { rows() } else { Vec::new() },
    }
}

/// Returns a piece that contains a part of every block.
fn block_piece(whole: &Whole, part: usize, parts: usize) -> Piece {
    let Whole {
        count,
        element_bytes,
        rank,
        world_size,
        ..
    } = *whole;
    let (shortest, longer) = (count / world_size, count % world_size);
    let at = part_start(shortest, parts, part);
    let length = part_start(shortest, parts, part + 1) - at;
    // The last part contains the extra element of the longer blocks.
    let extra = if part + 1 == parts { longer } else { 0 };
    let width = |block: usize| (length + usize::from(block < extra)) * element_bytes;
    let device_at = |block: usize| (part_start(count, world_size, block) + at) * element_bytes;
    let host_at = |block: usize| (block * length + block.min(extra)) * element_bytes;
    let own = vec![Rows::one(device_at(rank), host_at(rank), width(rank))];
    // Blocks of the same length have the same pitch and width, so one `Rows` describes all longer
    // blocks, and a second `Rows` describes the rest.
    let alike = |blocks: std::ops::Range<usize>, block_length: usize| Rows {
        device_at: device_at(blocks.start),
        pitch: block_length * element_bytes,
        host_at: host_at(blocks.start),
        width: width(blocks.start),
        count: blocks.len(),
    };
    let all = match parts {
        1 => vec![Rows::one(0, 0, count * element_bytes)],
        _ => [(0..longer, shortest + 1), (longer..world_size, shortest)]
            .into_iter()
            .filter(|(blocks, _)| !blocks.is_empty())
            .map(|(blocks, block_length)| alike(blocks, block_length))
            .collect(),
    };
    let rows = all.clone();
    let is_root = whole.rank == whole.root;
    let if_any = |rows: Vec<Rows>, any: bool| if any { rows } else { Vec::new() };
    let (inputs, outputs) = match whole.collective {
        Collective::AllGather => (own, all),
        Collective::Gather => (own, if_any(all, is_root)),
        Collective::Scatter => (if_any(all, is_root), if_any(own, !is_root)),
        Collective::AllToAll => (all.clone(), all),
        _ => (all, own),
    };
    let count = world_size * length + extra;
    Piece {
        count,
        host_at: 0,
        bytes: count * element_bytes,
        rows,
        inputs,
        outputs,
    }
}

#[cfg(test)]
mod tests;
