//! Calls on devices, cut into rounds and ready to be enqueued.

use super::pieces::{self, Whole};
use crate::comm::Issued;
use crate::device::mapped;
use crate::device::numbering::MESSAGES_MAX;
use crate::device::staging::{self, Piece};
use crate::engine::bind::Placement;
use crate::engine::cache::{Cache, Key, Prepared};
use crate::engine::medium::enqueued::{self, Entry, Place, Script, Where};
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

/// Pieces of a mapped call that overlap, if each is long enough.
const MAPPED_PIECES: usize = 4;

/// A call, cut: its rounds in order.
pub(super) enum Cut {
    Staged(Vec<Staged>),
    Mapped(Mapped),
}

/// A round of operations of the host.
pub(super) struct Staged {
    pub(super) pieces: Vec<Piece>,
    /// What to run for each.
    pub(super) prepared: Vec<Arc<Prepared>>,
}

/// Rounds of operations of the streams.
pub(super) struct Mapped {
    pub(super) rounds: Vec<Vec<Arc<Script>>>,
    /// The barrier of the hosts behind the last, in the call's name.
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
    /// Cuts a call; among ranks that read each other's memory if `is_mapped`, where its algorithm
    /// allows it.
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

/// What is run for a piece of `call` of `count` elements.
fn piece(cache: &mut Cache, call: Call, count: usize) -> Result<Arc<Prepared>> {
    cache
        .get(Key {
            call: Call { count, ..call },
            placement: Placement::InPlace,
            is_exposed: false,
        })
        .cloned()
}

/// The same operation in the name of `whole`.
fn in_the_name_of(whole: Call, prepared: &Prepared) -> Arc<Prepared> {
    Arc::new(Prepared {
        call: whole,
        digest: whole.digest(),
        counts: None,
        program: prepared.program.clone(),
        arithmetic: prepared.arithmetic,
        predicted_s: prepared.predicted_s,
        end: None,
    })
}

/// The call with the algorithm of its first piece: all pieces are the one call that the user made.
fn chosen(call: Call, first: &Prepared) -> Call {
    Call {
        algorithm: first.call.algorithm,
        pieces: first.call.pieces,
        ..call
    }
}

fn staged(cache: &mut Cache, call: Call, whole: &Whole) -> Result<Vec<Staged>> {
    // Most pieces are equally long.
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
                    place.insert(in_the_name_of(name, &own))
                }
            };
            prepared.push(Arc::clone(same));
        }
        rounds.push(Staged { pieces, prepared });
    }
    Ok(rounds)
}

/// Nothing where some program does not fit the frames however small the pieces are: all ranks look
/// at all programs, and find the same.
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
        barrier: in_the_name_of(whole_blocks(chosen(call, &first)), barrier),
        reduction: Reduction {
            dtype: call.dtype,
            op: call.op.unwrap_or(ReduceOp::Sum),
            divisor: first.arithmetic.divisor,
        },
    }))
}

/// The call without the pieces that suit the hosts' segments: a launch for each would cost a GPU
/// more than it gains. The pieces of a mapped call overlap already.
fn whole_blocks(call: Call) -> Call {
    Call { pieces: 1, ..call }
}

type Scripts = (Vec<Arc<Script>>, Arc<Prepared>);

/// The pieces' scripts, and what the first of them would be on the hosts.
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
        // Each piece, not each length: where a piece begins within a vector moves its messages.
        if !fits(programs, &each.rows) {
            return Ok(None);
        }
        scripts.push(script(programs, &each.rows, whole.rank));
    }
    Ok(first.map(|first| (scripts, first)))
}

/// Whether the messages of a piece that lies in `rows` fit the frames of all ranks, and their
/// numbers the words.
fn fits(programs: &[Program], rows: &[Rows]) -> bool {
    enqueued::fits(
        programs,
        &|at| run(rows, at).0,
        DEVICE_FRAME_BYTES,
        MESSAGES_MAX,
        DEVICE_SOURCES_MAX,
    )
}

/// Whether each rank's entries fit a queue; they are as many for all pieces of the length.
fn are_short(programs: &[Program], rows: &[Rows]) -> bool {
    let is_short = |rank| mapped::entries(&[script(programs, rows, rank)]) <= DEVICE_ENTRIES_MAX;
    (0..programs.len()).all(is_short)
}

/// Bounded rounds, so that the first can end while the last is enqueued.
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

/// The script of `rank`, with places in the user's buffer, in which the piece's bytes lie in
/// `rows`.
fn script(programs: &[Program], rows: &[Rows], rank: usize) -> Arc<Script> {
    let script = enqueued::script(programs, &|at| run(rows, at).0, rank);
    let entries = script.entries.iter();
    Arc::new(Script {
        entries: entries.flat_map(|entry| spread(entry, rows)).collect(),
        ..script
    })
}

/// The entry, once for each run of bytes that lie one behind the other in all its places.
fn spread(entry: &Entry, rows: &[Rows]) -> Vec<Entry> {
    let (places, bytes) = entry.places();
    if bytes == 0 {
        return vec![entry.clone()];
    }
    let mut spread = Vec::new();
    let mut done = 0;
    while done < bytes {
        let lengths = places.iter().map(|place| match place.memory {
            Where::Buffer => run(rows, place.at + done).1,
            Where::Frame | Where::Peer(_) => bytes,
        });
        let length = lengths.fold(bytes - done, usize::min);
        spread.push(part(entry, rows, done, length));
        done += length;
    }
    spread
}

/// The part of an entry from byte `from` on.
fn part(entry: &Entry, rows: &[Rows], from: usize, length: usize) -> Entry {
    let moved = |place: &Place| {
        let at = place.at + from;
        Place {
            memory: place.memory,
            at: match place.memory {
                Where::Buffer => run(rows, at).0,
                Where::Frame | Where::Peer(_) => at,
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

/// Where byte `at` of a piece lies in the user's buffer, and how many bytes lie behind each other
/// from there on.
fn run(rows: &[Rows], at: usize) -> (usize, usize) {
    let holds = |one: &&Rows| (one.host_at..one.host_at + one.width * one.count).contains(&at);
    let one = rows.iter().find(holds);
    let one = one.expect("invariant: a byte of the piece");
    let (row, column) = (
        (at - one.host_at) / one.width,
        (at - one.host_at) % one.width,
    );
    (one.device_at + row * one.pitch + column, one.width - column)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::plan::algorithms::pairs;
    use crate::plan::select::TuningTable;
    use crate::plan::{Algorithm, Collective, Topology};

    const RANKS: usize = 4;

    /// What `rank` enqueues, piece by piece; nothing where the call is staged, or cannot be made.
    fn enqueued_by(rank: usize, call: Call) -> Option<Vec<Arc<Script>>> {
        let topology = Topology::together(RANKS);
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

    /// Behind the last byte that is used in a frame.
    fn end_in_frames(scripts: &[Arc<Script>]) -> usize {
        let end = |entry: &Entry| {
            let (places, bytes) = entry.places();
            let in_frames = places.iter().filter(|one| one.memory != Where::Buffer);
            in_frames.map(|one| one.at + bytes).max()
        };
        let entries = scripts.iter().flat_map(|one| &one.entries);
        entries.filter_map(end).max().unwrap_or(0)
    }

    /// Two whole messages of the first piece fill a frame to the last bytes; the later pieces begin
    /// elsewhere within a vector.
    #[test]
    fn every_piece_ends_within_its_frame() {
        for (dtype, count) in [(Dtype::F32, 16_777_212), (Dtype::Bf16, 33_554_412)] {
            let mut checked = 0;
            for (collective, algorithm) in pairs(&[2, 3]) {
                let count = collective.whole_count(count, RANKS);
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

    /// Frames are not cut for what no piece needs.
    #[test]
    fn pieces_that_begin_alike_fill_their_frames() {
        let call = Call::new(Collective::AllReduce, 1 << 24).dtype(Dtype::F32);
        let call = call.by(Algorithm::RecursiveDoubling);
        let scripts = enqueued_by(0, call).unwrap();
        assert_eq!(scripts.len(), MAPPED_PIECES);
        assert_eq!(end_in_frames(&scripts), DEVICE_FRAME_BYTES);
    }
}
