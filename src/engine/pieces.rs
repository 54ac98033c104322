//! Where the bytes of a step lie: in the caller's buffer or in the operation's scratch.

use super::program::{Piece, Space};
use crate::sys::memory::Region;

/// The piece that byte `at` of a stream falls in, from there on, at most `most` bytes of it.
pub(super) fn rest(pieces: &[Piece], at: usize, most: usize) -> Piece {
    let mut skip = at;
    for piece in pieces {
        if skip < piece.bytes {
            let bytes = (piece.bytes - skip).min(most);
            return Piece {
                space: piece.space,
                offset: piece.offset + skip,
                bytes,
            };
        }
        skip -= piece.bytes;
    }
    Piece {
        space: Space::Buffer,
        offset: 0,
        bytes: 0,
    }
}

pub(super) fn read<'a>(buffer: &'a Option<Region>, scratch: &'a [u8], piece: Piece) -> &'a [u8] {
    let whole = match (piece.space, buffer) {
        (Space::Buffer, Some(region)) => region.bytes(),
        (Space::Buffer, None) => &[],
        (Space::Scratch, _) => scratch,
    };
    &whole[piece.offset..piece.offset + piece.bytes]
}

pub(super) fn whole<'a>(
    buffer: &'a mut Option<Region>,
    scratch: &'a mut [u8],
    space: Space,
) -> &'a mut [u8] {
    match (space, buffer) {
        (Space::Buffer, Some(region)) => region.bytes_mut(),
        (Space::Buffer, None) => &mut [],
        (Space::Scratch, _) => scratch,
    }
}

pub(super) fn write<'a>(
    buffer: &'a mut Option<Region>,
    scratch: &'a mut [u8],
    piece: Piece,
) -> &'a mut [u8] {
    &mut whole(buffer, scratch, piece.space)[piece.offset..piece.offset + piece.bytes]
}

/// Two disjoint places of this rank: one to read, one to write.
pub(super) fn pair<'a>(
    buffer: &'a mut Option<Region>,
    scratch: &'a mut [u8],
    from: Piece,
    to: Piece,
) -> (&'a [u8], &'a mut [u8]) {
    if from.space != to.space {
        let buffer = whole(buffer, &mut [], Space::Buffer);
        return match from.space {
            Space::Buffer => (
                &buffer[from.offset..from.offset + from.bytes],
                &mut scratch[to.offset..to.offset + to.bytes],
            ),
            Space::Scratch => (
                &scratch[from.offset..from.offset + from.bytes],
                &mut buffer[to.offset..to.offset + to.bytes],
            ),
        };
    }
    let whole = whole(buffer, scratch, from.space);
    let (low, high) = whole.split_at_mut(from.offset.max(to.offset));
    if from.offset < to.offset {
        (
            &low[from.offset..from.offset + from.bytes],
            &mut high[..to.bytes],
        )
    } else {
        (
            &high[..from.bytes],
            &mut low[to.offset..to.offset + to.bytes],
        )
    }
}
