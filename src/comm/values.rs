//! Small values, by serde: metrics, settings, lists of names.
//!
//! A value travels as its bytes in postcard's format, after their number. What a peer announces
//! allocates nothing: room grows piece by piece, as the bytes come.
//!
//! *All ranks stay in step.* A rank whose value cannot be encoded, or is too long, announces that
//! instead, so no other rank waits for it. All that is announced is received before any of it is
//! decoded, so nothing is left for the next call. A rank that cannot receive it, for want of
//! memory, ends the communicator on all ranks ([`in_step`]).

use super::Communicator;
use crate::error::{Error, Result};
use crate::limits::{VALUE_BYTES_MAX, VALUE_PIECE_BYTES};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::any::type_name;
use std::ops::Range;

/// What a rank announces that has no value.
const NO_VALUE: u64 = u64::MAX;
/// What a value that the library itself sends consists of, in messages.
const BYTES: &str = "names and settings";

impl Communicator {
    /// The value that `root` passes, on every rank. What other ranks pass is dropped.
    ///
    /// For values of some kilobytes that are made once or now and then; tensors travel faster by
    /// [`Communicator::broadcast`]. At most 100 MB are taken. Floats keep every bit. A value takes
    /// several calls, between which no other thread may call the communicator. A type must
    /// decode without being told what comes, as derived ones do but for `serde(untagged)`,
    /// `serde(flatten)` and `serde_json::Value`: send those as text. All ranks name the same type,
    /// by the same path: two programs take it from a crate that both use.
    ///
    /// ```
    /// let settings = ringtree::simulate(3, |comm| {
    ///     let read = (comm.rank() == 0).then(|| ("cosine".to_owned(), 3e-4));
    ///     comm.broadcast_value(read, 0)
    /// });
    /// assert_eq!(settings, vec![Ok(("cosine".to_owned(), 3e-4)); 3]);
    /// ```
    ///
    /// # Errors
    /// Any of [`Error`]. [`Error::usage`] on every rank if `root` is no rank, passes `None` or a
    /// value that cannot be encoded, and on a rank whose `T` is not the root's; the communicator
    /// is fine then.
    pub fn broadcast_value<T>(&self, value: Option<T>, root: usize) -> Result<T>
    where
        T: Serialize + DeserializeOwned,
    {
        if self.rank() != root {
            return decode(root, &broadcast(self, Ok(Vec::new()), root)?);
        }
        let value = value.ok_or_else(|| Error::usage("the root of a value passes one"));
        let encoded = value.as_ref().map_err(Error::clone).and_then(encode);
        broadcast(self, encoded, root).and(value)
    }

    /// Every rank's value, in rank order, on every rank.
    ///
    /// See [`Communicator::broadcast_value`] for what can be a value.
    ///
    /// ```
    /// let losses = ringtree::simulate(3, |comm| {
    ///     comm.all_gather_value(&(format!("rank {}", comm.rank()), 0.5 * comm.rank() as f64))
    /// });
    /// let losses = losses[0].clone()?;
    /// assert_eq!(losses[2], ("rank 2".to_owned(), 1.0));
    /// # Ok::<(), ringtree::Error>(())
    /// ```
    ///
    /// # Errors
    /// Any of [`Error`]. [`Error::usage`] on every rank if one has a value that cannot be encoded,
    /// and on a rank that passes another type than a peer; the communicator is fine then.
    pub fn all_gather_value<T>(&self, value: &T) -> Result<Vec<T>>
    where
        T: Serialize + DeserializeOwned,
    {
        decode_all(all_gather(self, encode(value))?)
    }

    /// Every rank's value, in rank order, on `root`; `None` on the others.
    ///
    /// See [`Communicator::broadcast_value`] for what can be a value.
    ///
    /// ```
    /// let hosts = ringtree::simulate(2, |comm| {
    ///     comm.gather_value(&format!("host of rank {}", comm.rank()), 1)
    /// });
    /// assert_eq!(hosts[0], Ok(None));
    /// let all = vec!["host of rank 0".to_owned(), "host of rank 1".to_owned()];
    /// assert_eq!(hosts[1], Ok(Some(all)));
    /// ```
    ///
    /// # Errors
    /// Any of [`Error`]. [`Error::usage`] on every rank if `root` is no rank or a value cannot be
    /// encoded, and on a root that passes another type than a peer; the communicator is fine then.
    pub fn gather_value<T>(&self, value: &T, root: usize) -> Result<Option<Vec<T>>>
    where
        T: Serialize + DeserializeOwned,
    {
        self.check_peer("root", root)?;
        let parts = gather(self, encode(value), root)?;
        parts.map(decode_all).transpose()
    }
}

fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    let what = type_name::<T>();
    let bytes = postcard::to_extend(value, mark::<T>().to_vec())
        .map_err(|error| Error::usage(format!("a value of {what} cannot be encoded: {error}")))?;
    bounded(bytes, what)
}

/// `bytes` of a value of the type `what`, unless they are too many to be sent.
fn bounded(bytes: Vec<u8>, what: &str) -> Result<Vec<u8>> {
    match bytes.len() {
        ..=VALUE_BYTES_MAX => Ok(bytes),
        long => Err(Error::usage(format!(
            "a value of {what} has {long} bytes, but at most {VALUE_BYTES_MAX} are sent; tensors \
             travel by broadcast and all_gather"
        ))),
    }
}

/// Every rank's value, of what all ranks have sent.
fn decode_all<T: DeserializeOwned>(parts: Vec<Vec<u8>>) -> Result<Vec<T>> {
    let parts = parts.iter().enumerate();
    parts.map(|(rank, part)| decode(rank, part)).collect()
}

fn decode<T: DeserializeOwned>(rank: usize, bytes: &[u8]) -> Result<T> {
    let of_type = bytes.strip_prefix(&mark::<T>()[..]);
    let value = of_type.and_then(|bytes| postcard::from_bytes(bytes).ok());
    value.ok_or_else(|| {
        Error::usage(format!(
            "what rank {rank} sent is no {}; all ranks must name one type in one call",
            type_name::<T>()
        ))
    })
}

/// What a value's bytes begin with, as they do not say themselves what they are: the hash (FNV-1a)
/// of its type's name.
fn mark<T>() -> [u8; 4] {
    let hash = type_name::<T>()
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
    hash.to_le_bytes()
}

/// `bytes` of `root`, on every rank.
pub(crate) fn broadcast_bytes(comm: &Communicator, bytes: Vec<u8>, root: usize) -> Result<Vec<u8>> {
    broadcast(comm, bounded(bytes, BYTES), root)
}

/// Every rank's `bytes`, on every rank.
pub(crate) fn all_gather_bytes(comm: &Communicator, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>> {
    all_gather(comm, bounded(bytes, BYTES))
}

/// Every rank's `bytes`, on `root`.
pub(crate) fn gather_bytes(
    comm: &Communicator,
    bytes: Vec<u8>,
    root: usize,
) -> Result<Option<Vec<Vec<u8>>>> {
    gather(comm, bounded(bytes, BYTES), root)
}

/// Sends `bytes`, which [`receive_bytes`] receives; on both ranks an error, if they are too many.
pub(crate) fn send_bytes(comm: &Communicator, bytes: Vec<u8>, to: usize) -> Result<()> {
    in_step(comm, || {
        let own = bounded(bytes, BYTES);
        comm.send(&[announcement(&own)], to)?;
        send(comm, &own?, to)
    })
}

/// What `from` sends by [`send_bytes`].
pub(crate) fn receive_bytes(comm: &Communicator, from: usize) -> Result<Vec<u8>> {
    in_step(comm, || {
        let mut announced = [0];
        comm.recv(&mut announced, from)?;
        receive(comm, length(announced[0], from)?, from)
    })
}

/// Ends the communicator, on all ranks, with an error of `exchange` that they do not all have:
/// they would wait for messages that do not come, or take those of one call for another's. An
/// error of usage they have, or what it is about has been received.
fn in_step<R>(comm: &Communicator, exchange: impl FnOnce() -> Result<R>) -> Result<R> {
    exchange().map_err(|error| comm.first_cause(error))
}

fn broadcast(comm: &Communicator, own: Result<Vec<u8>>, root: usize) -> Result<Vec<u8>> {
    in_step(comm, || {
        let mut announced = [announcement(&own)];
        comm.broadcast(&mut announced, root)?;
        let mut bytes = match comm.rank() == root {
            true => own?,
            false => Vec::new(),
        };
        let length = length(announced[0], root)?;
        for piece in pieces(length) {
            grow(&mut bytes, piece.end)?;
            comm.broadcast(&mut bytes[piece], root)?;
        }
        Ok(bytes)
    })
}

fn gather(comm: &Communicator, own: Result<Vec<u8>>, root: usize) -> Result<Option<Vec<Vec<u8>>>> {
    in_step(comm, || {
        let lengths = all_lengths(comm, &own)?;
        let mut own = own?;
        if comm.rank() != root {
            return send(comm, &own, root).map(|()| None);
        }
        let part = |(rank, length)| match rank == root {
            true => Ok(std::mem::take(&mut own)),
            false => receive(comm, length, rank),
        };
        let parts = lengths.into_iter().enumerate().map(part);
        parts.collect::<Result<_>>().map(Some)
    })
}

fn all_gather(comm: &Communicator, own: Result<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
    in_step(comm, || {
        let lengths = all_lengths(comm, &own)?;
        let own = own?;
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let mut parts = vec![Vec::new(); comm.world_size()];
        for start in (0..longest).step_by(VALUE_PIECE_BYTES) {
            let slot = (longest - start).min(VALUE_PIECE_BYTES);
            let of = |length: usize| start.min(length)..(start + slot).min(length);
            let mut slots = vec![0; slot * comm.world_size()];
            let piece = &own[of(own.len())];
            slots[slot * comm.rank()..][..piece.len()].copy_from_slice(piece);
            comm.all_gather(&mut slots)?;
            for ((part, length), slot) in parts.iter_mut().zip(&lengths).zip(slots.chunks(slot)) {
                part.extend_from_slice(&slot[..of(*length).len()]);
            }
        }
        Ok(parts)
    })
}

/// The bytes that every rank has; an error on every rank if one has none.
fn all_lengths(comm: &Communicator, own: &Result<Vec<u8>>) -> Result<Vec<usize>> {
    let mut announced = vec![0; comm.world_size()];
    announced[comm.rank()] = announcement(own);
    comm.all_gather(&mut announced)?;
    if let Err(error) = own {
        return Err(error.clone());
    }
    let announced = announced.into_iter().enumerate();
    announced
        .map(|(rank, announced)| length(announced, rank))
        .collect()
}

fn send(comm: &Communicator, bytes: &[u8], to: usize) -> Result<()> {
    pieces(bytes.len()).try_for_each(|piece| comm.send(&bytes[piece], to))
}

fn receive(comm: &Communicator, length: usize, from: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for piece in pieces(length) {
        grow(&mut bytes, piece.end)?;
        comm.recv(&mut bytes[piece], from)?;
    }
    Ok(bytes)
}

fn announcement(own: &Result<Vec<u8>>) -> u64 {
    own.as_ref().map_or(NO_VALUE, |bytes| bytes.len() as u64)
}

/// The bytes that `rank` has announced.
fn length(announced: u64, rank: usize) -> Result<usize> {
    if announced == NO_VALUE {
        return Err(Error::usage(format!(
            "rank {rank} has no value that could be sent; its own error says why"
        )));
    }
    let length = usize::try_from(announced).unwrap_or(usize::MAX);
    if length > VALUE_BYTES_MAX {
        return Err(Error::protocol(format!(
            "rank {rank} announced {announced} bytes; at most {VALUE_BYTES_MAX} are taken"
        )));
    }
    Ok(length)
}

/// The pieces in which so many bytes travel: none is longer than what has come before it, but for
/// the first one.
fn pieces(length: usize) -> impl Iterator<Item = Range<usize>> {
    let after = move |piece: &Range<usize>| {
        let longest = piece.end.max(VALUE_PIECE_BYTES);
        Some(piece.end..length.min(piece.end + longest))
    };
    std::iter::successors(after(&(0..0)), after).take_while(|piece| !piece.is_empty())
}

/// Makes room for the bytes before `end`, where there is none yet.
fn grow(bytes: &mut Vec<u8>, end: usize) -> Result<()> {
    let missing = end.saturating_sub(bytes.len());
    bytes
        .try_reserve_exact(missing)
        .map_err(|_| Error::system(format!("no memory for {end} bytes of a value")))?;
    bytes.resize(bytes.len() + missing, 0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_announces_allocates_nothing() {
        for announced in [VALUE_BYTES_MAX as u64 + 1, 1 << 62, u64::MAX - 1] {
            assert!(length(announced, 1).is_err_and(|error| error.is_protocol()));
        }
        assert!(length(NO_VALUE, 1).is_err_and(|error| error.is_usage()));
        for total in [
            0,
            1,
            VALUE_PIECE_BYTES,
            VALUE_PIECE_BYTES + 1,
            VALUE_BYTES_MAX,
        ] {
            let mut come = 0;
            for piece in pieces(total) {
                assert_eq!(piece.start, come);
                assert!(piece.len() <= come.max(VALUE_PIECE_BYTES), "{piece:?}");
                come = piece.end;
            }
            assert_eq!(come, total);
        }
        assert!(grow(&mut vec![], usize::MAX / 2 + 1).is_err_and(|error| error.is_system()));
    }
}
