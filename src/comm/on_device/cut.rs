//! Splits calls on devices into rounds that are ready to be enqueued.

use super::pieces::{self, Whole};
use crate::comm::Issued;
use crate::device::mapped;
use crate::device::numbering::MESSAGES_MAX;
use crate::device::staging::{self, Piece};
use crate::engine::bind::Placement;
use crate::engine::cache::{Cache, Key, Prepared};
use crate::engine::medium::enqueued::{self, Entry, Place, PlaceMemory, Script};
use crate::engine::program::Program;
use crate::error::Result;
use crate::limits::{
    DEVICE_ENTRIES_MAX, DEVICE_FRAME_BYTES, DEVICE_MAPPED_BYTES_MAX, DEVICE_PIECE_BYTES_MIN,
    DEVICE_SOURCES_MAX,
};
use crate::op::ReduceOp;
use crate::protocol::call::Call;
use crate::sys::cuda::{Reduction, Rows};
use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::Arc;

/// Number of overlapping pieces into which a mapped call is split, provided that the pieces are
/// long enough.
const MAPPED_PIECES: usize = 4;

/// The rounds of a call, in order.
pub(super) enum Cut {
    Staged(Vec<Staged>),
    Mapped(Mapped),
}

/// A round of a staged call. The engine runs one operation for each piece.
pub(super) struct Staged {
    pub(super) pieces: Vec<Piece>,
    /// The operation for each piece, in the order of `pieces`.
    pub(super) prepared: Vec<Arc<Prepared>>,
}

/// A mapped call, as rounds of scripts that are enqueued on the streams.
pub(super) struct Mapped {
    pub(super) rounds: Vec<Vec<Arc<Script>>>,
    /// Barrier that the hosts run after the last round. It carries the call's description and
    /// digest.
    pub(super) barrier: Arc<Prepared>,
    pub(super) reduction: Reduction,
}

impl Staged {
    pub(super) fn entries(&self) -> usize {
        staging::entries(&self.pieces)
    }

    pub(super) fn pinned_bytes(&self) -> usize {
        let end = |piece: &Piece| piece.host_at + piece.bytes;
        self.pieces.last().map_or(0, end)
    }
}

impl Cut {
    /// Splits a call for the mapped path if `is_mapped` is `true` and every rank's program fits.
    /// Otherwise, splits it for the staged path.
    pub(super) fn new(
        issued: &mut Issued,
        call: Call,
        whole: &Whole,
        is_mapped: bool,
    ) -> Result<Self> {
        let mapped = match is_mapped {
            true => mapped(&mut issued.cache, call, whole)?,
            false => None,
        };
        match mapped {
            Some(mapped) => Ok(Self::Mapped(mapped)),
            None => staged(&mut issued.cache, call, whole).map(Self::Staged),
        }
    }
}

/// Returns the operation for a piece of `call` with `count` elements.
fn piece(cache: &mut Cache, call: Call, count: usize) -> Result<Arc<Prepared>> {
    cache
        .get(Key {
            call: Call { count, ..call },
            placement: Placement::InPlace,
            is_exposed: false,
        })
        .cloned()
}

/// Returns `prepared` with the description and digest of `whole`.
fn with_description_of(whole: Call, prepared: &Prepared) -> Arc<Prepared> {
    Arc::new(Prepared {
        call: whole,
        digest: whole.digest(),
        counts: None,
        program: prepared.program.clone(),
        arithmetic: prepared.arithmetic,
        predicted_s: prepared.predicted_s,
        transport: prepared.transport,
        end: None,
    })
}

/// Returns the call with the algorithm that was chosen for its first piece. All pieces carry this
/// description, because the user made only one call.
fn chosen(call: Call, first: &Prepared) -> Call {
    Call {
        algorithm: first.call.algorithm,
        pieces: first.call.pieces,
        ..call
    }
}

fn staged(cache: &mut Cache, call: Call, whole: &Whole) -> Result<Vec<Staged>> {
    // Most pieces have the same length.
    let mut by_count: HashMap<usize, Arc<Prepared>> = HashMap::new();
    let mut chosen_call = None;
    let mut rounds = Vec::new();
    for pieces in pieces::rounds(whole) {
        let mut prepared = Vec::with_capacity(pieces.len());
        for each in &pieces {
            let same = match by_count.entry(each.count) {
                Slot::Occupied(known) => known.into_mut(),
                Slot::Vacant(place) => {
                    let own = piece(cache, call, each.count)?;
                    let name = *chosen_call.get_or_insert_with(|| chosen(call, &own));
                    place.insert(with_description_of(name, &own))
                }
            };
            prepared.push(Arc::clone(same));
        }
        rounds.push(Staged { pieces, prepared });
    }
    Ok(rounds)
}

/// Splits a call for the mapped path. Returns `None` if some rank's program does not fit, even with
/// the smallest pieces. Every rank checks the programs of all ranks, so all get the same result.
fn mapped(cache: &mut Cache, call: Call, whole: &Whole) -> Result<Option<Mapped>> {
    let wanted = whole.bytes().div_ceil(MAPPED_PIECES);
    let mut piece_bytes = wanted.clamp(DEVICE_PIECE_BYTES_MIN, DEVICE_MAPPED_BYTES_MAX);
    let found = loop {
        match scripts(cache, call, whole, piece_bytes)? {
            None if piece_bytes > DEVICE_PIECE_BYTES_MIN => piece_bytes /= 2,
            found => break found,
        }
    };
    let Some((scripts, first)) = found else {
        return Ok(None);
    };
    let barrier = cache.get(Key {
        call: Call::barrier(),
        placement: Placement::InPlace,
        is_exposed: false,
    })?;
    Ok(Some(Mapped {
        rounds: in_rounds(scripts),
        barrier: with_description_of(whole_blocks(chosen(call, &first)), barrier),
        reduction: Reduction {
            dtype: call.dtype,
            op: call.op.unwrap_or(ReduceOp::Sum),
            divisor: first.arithmetic.divisor,
        },
    }))
}

/// Returns the call with blocks that are not split further. Hosts split blocks to suit the size of
/// their segments, but on a GPU, a separate launch for each part of a block would cost more than it
/// gains, because the pieces of a mapped call already overlap.
fn whole_blocks(call: Call) -> Call {
    Call { pieces: 1, ..call }
}

type Scripts = (Vec<Arc<Script>>, Arc<Prepared>);

/// Returns the scripts for all pieces, and the operation that hosts would run for the first piece.
/// Returns `None` if a piece of `piece_bytes` does not fit.
fn scripts(
    cache: &mut Cache,
    call: Call,
    whole: &Whole,
    piece_bytes: usize,
) -> Result<Option<Scripts>> {
    let mut by_count: HashMap<usize, Vec<Program>> = HashMap::new();
    let mut first = None;
    let mut scripts = Vec::new();
    for each in pieces::pieces(whole, piece_bytes) {
        let programs = match by_count.entry(each.count) {
            Slot::Occupied(known) => known.into_mut(),
            Slot::Vacant(place) => {
                let own = piece(cache, call, each.count)?;
                let programs = cache.of_all_ranks(&whole_blocks(own.call))?;
                if !are_short(&programs, &each.rows) {
                    return Ok(None);
                }
                first.get_or_insert(own);
                place.insert(programs)
            }
        };
        // Check each piece, not each length: the offset of a piece within a vector shifts its
        // messages.
        if !fits(programs, &each.rows) {
            return Ok(None);
        }
        scripts.push(script(programs, &each.rows, whole.rank));
    }
    Ok(first.map(|first| (scripts, first)))
}

/// Returns `true` if the piece in `rows` fits: all messages that a rank sends must fit into its
/// frame, and neither the messages per link nor the sources per reduction may exceed their limits.
fn fits(programs: &[Program], rows: &[Rows]) -> bool {
    enqueued::fits(
        programs,
        &|at| run(rows, at).0,
        DEVICE_FRAME_BYTES,
        MESSAGES_MAX,
        DEVICE_SOURCES_MAX,
    )
}

/// Returns `true` if the entries of every rank fit into a queue. This needs to be checked only once
/// per length, because pieces of the same length have the same number of entries.
fn are_short(programs: &[Program], rows: &[Rows]) -> bool {
    let is_short = |rank| mapped::entries(&[script(programs, rows, rank)]) <= DEVICE_ENTRIES_MAX;
    (0..programs.len()).all(is_short)
}

/// Groups the scripts into bounded rounds, so that the first round can finish while the last one
/// is still being enqueued.
fn in_rounds(scripts: Vec<Arc<Script>>) -> Vec<Vec<Arc<Script>>> {
    let mut rounds: Vec<Vec<Arc<Script>>> = Vec::new();
    for script in scripts {
        let one = mapped::entries(&[Arc::clone(&script)]);
        match rounds.last_mut() {
            Some(round) if mapped::entries(round) + one <= DEVICE_ENTRIES_MAX / 2 => {
                round.push(script);
            }
            _ => rounds.push(vec![script]),
        }
    }
    rounds
}

/// Returns the script of `rank` for the piece in `rows`. The script contains offsets into the
/// user's buffer rather than into the piece.
fn script(programs: &[Program], rows: &[Rows], rank: usize) -> Arc<Script> {
    let script = enqueued::script(programs, &|at| run(rows, at).0, rank);
    let entries = script.entries.iter();
    Arc::new(Script {
        entries: entries.flat_map(|entry| spread(entry, rows)).collect(),
        ..script
    })
}

/// Splits `entry` into parts so that the bytes of each part are contiguous in every place that the
/// entry refers to.
fn spread(entry: &Entry, rows: &[Rows]) -> Vec<Entry> {
    let (places, bytes) = entry.places();
    if bytes == 0 {
        return vec![entry.clone()];
    }
    let mut spread = Vec::new();
    let mut done = 0;
    while done < bytes {
        let lengths = places.iter().map(|place| match place.memory {
            PlaceMemory::Buffer => run(rows, place.at + done).1,
            PlaceMemory::Frame | PlaceMemory::Peer(_) => bytes,
        });
        let length = lengths.fold(bytes - done, usize::min);
        spread.push(part(entry, rows, done, length));
        done += length;
    }
    spread
}

/// Returns the `length` bytes of `entry` that begin at byte `from`.
fn part(entry: &Entry, rows: &[Rows], from: usize, length: usize) -> Entry {
    let moved = |place: &Place| {
        let at = place.at + from;
        Place {
            memory: place.memory,
            at: match place.memory {
                PlaceMemory::Buffer => run(rows, at).0,
                PlaceMemory::Frame | PlaceMemory::Peer(_) => at,
            },
        }
    };
    match entry {
        Entry::Copy { from, to, .. } => Entry::Copy {
            from: moved(from),
            to: moved(to),
            bytes: length,
        },
        Entry::Reduce {
            from,
            to,
            completes,
            ..
        } => Entry::Reduce {
            from: from.iter().map(moved).collect(),
            to: moved(to),
            bytes: length,
            completes: *completes,
        },
        other => other.clone(),
    }
}

/// Converts `at`, an offset in the piece, to an offset in the user's buffer. Also returns the
/// number of contiguous bytes that start there.
fn run(rows: &[Rows], at: usize) -> (usize, usize) {
    let holds = |one: &&Rows| (one.host_at..one.host_at + one.width * one.count).contains(&at);
    let one = rows.iter().find(holds);
    let one = one.expect("invariant: the byte is in the piece");
    let (row, column) = (
        (at - one.host_at) / one.width,
        (at - one.host_at) % one.width,
    );
    (one.device_at + row * one.pitch + column, one.width - column)
}

#[cfg(test)]
mod tests;
