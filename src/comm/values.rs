//! Sends small values, such as metrics, settings and lists of names, by encoding them with serde.
//!
//! A value is sent as its length followed by its bytes in postcard format. The length that a peer
//! announces is not used to allocate memory in advance. Instead, memory grows piece by piece as the
//! bytes arrive.
//!
//! *All ranks stay in step.* A rank whose value cannot be encoded or is too long announces this
//! instead of a length, so that no other rank waits for the value. A rank receives everything that
//! was announced before it decodes any of it, so that nothing is left over for the next call. A
//! rank that does not have enough memory to receive a value aborts the communicator on all ranks
//! ([`in_step`]).

use super::Communicator;
use crate::error::{Error, Result};
use crate::limits::{VALUE_BYTES_MAX, VALUE_PIECE_BYTES};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::any::type_name;
use std::ops::Range;

/// Value that a rank announces instead of a length if it has nothing to send.
const NO_VALUE: u64 = u64::MAX;
/// Value that a rank announces instead of a root if every rank receives the values.
const ALL_RANKS: u64 = u64::MAX;
/// Name that error messages use for a value that the caller has already encoded.
const ENCODED: &str = "encoded data";

/// The bytes that this rank sends, or the error that prevented it from encoding its value.
type Own = Result<Vec<u8>>;

impl Communicator {
    /// Sends the value passed by `root` to all ranks, and returns it on each of them. The values
    /// that other ranks pass are dropped.
    ///
    /// Use this for values of a few kilobytes that are sent only once or occasionally. For tensors,
    /// [`Communicator::broadcast`] is faster. A value can be up to 100 MB in size. Floats are
    /// transferred exactly. This method makes several calls, and no other thread may use the
    /// communicator between them.
    ///
    /// The encoding is not self-describing. Therefore, `serde_json::Value` and types that use
    /// `serde(untagged)` or `serde(flatten)` cannot be decoded. Send such values as text. Other
    /// types that derive `Serialize` and `Deserialize` can be decoded. All ranks must use the same
    /// type with the same path. If the ranks run two different programs, the type must come from a
    /// crate that both programs use.
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
    /// Returns one of the [errors that all calls share](Communicator#errors), such as
    /// [`Usage`](crate::ErrorKind::Usage):
    ///
    /// - on every rank, if `root` is out of range, passes `None`, or passes a value that cannot be
    ///   encoded.
    /// - on a rank whose type `T` differs from the type on `root`.
    #[doc(alias("broadcast_object_list"))]
    pub fn broadcast_value<T>(&self, value: Option<T>, root: usize) -> Result<T>
    where
        T: Serialize + DeserializeOwned,
    {
        if self.rank() != root {
            return decode(root, &broadcast(self, Ok(Vec::new()), root)?);
        }
        let value = value.ok_or_else(|| Error::usage("the root must pass a value, not None"));
        let encoded = value.as_ref().map_err(Error::clone).and_then(encode);
        broadcast(self, encoded, root).and(value)
    }

    /// Gathers the values of all ranks on every rank and returns them in rank order.
    ///
    /// See [`Communicator::broadcast_value`] for the types that can be sent.
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
    /// Returns one of the [errors that all calls share](Communicator#errors), such as
    /// [`Usage`](crate::ErrorKind::Usage):
    ///
    /// - on every rank, if any rank's value cannot be encoded.
    /// - on a rank whose type `T` differs from the type on another rank.
    #[doc(alias("all_gather_object"))]
    pub fn all_gather_value<T>(&self, value: &T) -> Result<Vec<T>>
    where
        T: Serialize + DeserializeOwned,
    {
        decode_all(all_gather(self, encode(value))?)
    }

    /// Gathers the values of all ranks on `root` and returns them there in rank order. Returns
    /// `None` on the other ranks.
    ///
    /// See [`Communicator::broadcast_value`] for the types that can be sent.
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
    /// Returns one of the [errors that all calls share](Communicator#errors), such as
    /// [`Usage`](crate::ErrorKind::Usage):
    ///
    /// - on every rank, if `root` is out of range or any rank's value cannot be encoded.
    /// - on `root`, if its type `T` differs from the type on another rank.
    #[doc(alias("gather_object"))]
    pub fn gather_value<T>(&self, value: &T, root: usize) -> Result<Option<Vec<T>>>
    where
        T: Serialize + DeserializeOwned,
    {
        let parts = gather(self, encode(value), root)?;
        parts.map(decode_all).transpose()
    }
}

fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    let what = type_name::<T>();
    let bytes = postcard::to_extend(value, mark::<T>().to_vec())
        .map_err(|error| Error::usage(format!("cannot encode a value of type {what}: {error}")))?;
    bounded(Ok(bytes), what)
}

/// Returns `own` unchanged, or an error if it has too many bytes to send. The error names the type
/// of the value, which is `what`.
fn bounded(own: Own, what: &str) -> Own {
    match own {
        Ok(bytes) if bytes.len() > VALUE_BYTES_MAX => Err(Error::usage(format!(
            "a value of {what} takes {} bytes, which exceeds the limit of {VALUE_BYTES_MAX}; send \
             tensors with broadcast or all_gather",
            bytes.len()
        ))),
        own => own,
    }
}

/// Decodes the values of all ranks.
fn decode_all<T: DeserializeOwned>(parts: Vec<Vec<u8>>) -> Result<Vec<T>> {
    let parts = parts.iter().enumerate();
    parts.map(|(rank, part)| decode(rank, part)).collect()
}

fn decode<T: DeserializeOwned>(rank: usize, bytes: &[u8]) -> Result<T> {
    let of_type = bytes.strip_prefix(&mark::<T>()[..]);
    let value = of_type.and_then(|bytes| postcard::from_bytes(bytes).ok());
    value.ok_or_else(|| {
        Error::usage(format!(
            "cannot decode the value from rank {rank} as {}; use the same type on all ranks",
            type_name::<T>()
        ))
    })
}

/// Returns the prefix of a value's bytes, which is the FNV-1a hash of the name of its type. The
/// encoding itself does not identify the type.
fn mark<T>() -> [u8; 4] {
    let hash = type_name::<T>()
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
    hash.to_le_bytes()
}

/// Sends the `bytes` that `root` passes to all ranks, and returns them on each rank.
pub(crate) fn broadcast_bytes(comm: &Communicator, bytes: Vec<u8>, root: usize) -> Result<Vec<u8>> {
    broadcast(comm, Ok(bytes), root)
}

/// Gathers the `bytes` that all ranks pass, and returns them on every rank.
pub(crate) fn all_gather_bytes(comm: &Communicator, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>> {
    all_gather(comm, Ok(bytes))
}

/// Gathers the `bytes` that all ranks pass, and returns them on `root`. Returns `None` on the other
/// ranks.
pub(crate) fn gather_bytes(
    comm: &Communicator,
    bytes: Vec<u8>,
    root: usize,
) -> Result<Option<Vec<Vec<u8>>>> {
    gather(comm, Ok(bytes), root)
}

/// Sends `bytes` to rank `to`, which must call [`receive_bytes`]. If `bytes` is too long, both
/// ranks get an error.
///
/// # Errors
/// Returns one of the [errors that all calls share](Communicator#errors).
pub fn send_bytes(comm: &Communicator, bytes: Vec<u8>, to: usize) -> Result<()> {
    in_step(comm, || {
        let own = bounded(Ok(bytes), ENCODED);
        comm.send(&[announcement(&own)], to)?;
        send(comm, &own?, to)
    })
}

/// Receives the bytes that rank `from` sends with [`send_bytes`].
///
/// # Errors
/// Returns one of the [errors that all calls share](Communicator#errors).
pub fn receive_bytes(comm: &Communicator, from: usize) -> Result<Vec<u8>> {
    in_step(comm, || {
        let mut announced = [0];
        comm.recv(&mut announced, from)?;
        receive(comm, length(announced[0], from)?, from)
    })
}

/// Runs `exchange`, and aborts the communicator on all ranks if `exchange` fails with an error that
/// the other ranks may not have. If the communicator were not aborted, the other ranks would wait
/// for messages that never arrive, or mistake the messages of one call for those of another.
///
/// A usage error does not abort the communicator, because either all ranks get the error, or
/// everything that was announced has already been received.
fn in_step<R>(comm: &Communicator, exchange: impl FnOnce() -> Result<R>) -> Result<R> {
    exchange().map_err(|error| comm.first_cause(error))
}

/// Sends the bytes that `root` passes to all ranks, and returns them on each rank. If `root` cannot
/// encode its value, it passes the error instead, and every rank gets an error.
///
/// # Errors
/// Returns one of the [errors that all calls share](Communicator#errors).
pub fn broadcast(comm: &Communicator, own: Own, root: usize) -> Result<Vec<u8>> {
    in_step(comm, || {
        let own = bounded(own, ENCODED);
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

/// Gathers the bytes that all ranks pass, and returns them on `root`. Returns `None` on the other
/// ranks. If any rank passes an error, every rank gets an error.
///
/// # Errors
/// Returns one of the [errors that all calls share](Communicator#errors).
pub fn gather(comm: &Communicator, own: Own, root: usize) -> Result<Option<Vec<Vec<u8>>>> {
    comm.check_peer("root", root)?;
    in_step(comm, || {
        let own = bounded(own, ENCODED);
        let lengths = all_lengths(comm, &own, Some(root))?;
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

/// Gathers the bytes that all ranks pass, and returns them on every rank. If any rank passes an
/// error, every rank gets an error.
///
/// # Errors
/// Returns one of the [errors that all calls share](Communicator#errors).
pub fn all_gather(comm: &Communicator, own: Own) -> Result<Vec<Vec<u8>>> {
    in_step(comm, || {
        let own = bounded(own, ENCODED);
        let lengths = all_lengths(comm, &own, None)?;
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

/// Returns how many bytes each rank sends to `root`, or to all ranks if `root` is `None`. Every
/// rank gets an error if any rank has no value or passes a different `root`.
fn all_lengths(comm: &Communicator, own: &Own, root: Option<usize>) -> Result<Vec<usize>> {
    let rank = comm.rank();
    let root = root.map_or(ALL_RANKS, |root| root as u64);
    let mut announced = vec![[0; 2]; comm.world_size()];
    announced[rank] = [announcement(own), root];
    comm.all_gather(announced.as_flattened_mut())?;
    let mut of_ranks = announced.iter().zip(0..);
    if let Some(([_, theirs], peer)) = of_ranks.find(|([_, theirs], _)| *theirs != root) {
        return Err(Error::mismatch(format!(
            "rank {rank} {}, but rank {peer} {}; make the same call with the same root on all \
             ranks",
            gathering(root),
            gathering(*theirs)
        )));
    }
    if let Err(error) = own {
        return Err(error.clone());
    }
    let announced = announced.into_iter().enumerate();
    announced
        .map(|(rank, [announced, _])| length(announced, rank))
        .collect()
}

/// Describes a call that gathers values on `root`, which may be [`ALL_RANKS`].
fn gathering(root: u64) -> String {
    match root {
        ALL_RANKS => "gathers values on all ranks".to_owned(),
        root => format!("gathers values on rank {root}"),
    }
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

/// Returns the number of bytes that `rank` has announced, or an error if `rank` has no value or
/// announced too many bytes.
fn length(announced: u64, rank: usize) -> Result<usize> {
    if announced == NO_VALUE {
        return Err(Error::usage(format!(
            "rank {rank} cannot send its value; check the error on that rank"
        )));
    }
    let length = usize::try_from(announced).unwrap_or(usize::MAX);
    if length > VALUE_BYTES_MAX {
        return Err(Error::protocol(format!(
            "rank {rank} announced {announced} bytes, which exceeds the limit of \
             {VALUE_BYTES_MAX}; run the same version on all ranks"
        )));
    }
    Ok(length)
}

/// Returns the pieces in which `length` bytes are sent. Except for the first piece, no piece is
/// longer than all previous pieces together.
fn pieces(length: usize) -> impl Iterator<Item = Range<usize>> {
    let after = move |piece: &Range<usize>| {
        let longest = piece.end.max(VALUE_PIECE_BYTES);
        Some(piece.end..length.min(piece.end + longest))
    };
    std::iter::successors(after(&(0..0)), after).take_while(|piece| !piece.is_empty())
}

/// Extends `bytes` to `end` bytes if it is shorter.
fn grow(bytes: &mut Vec<u8>, end: usize) -> Result<()> {
    let missing = end.saturating_sub(bytes.len());
    bytes
        .try_reserve_exact(missing)
        .map_err(|_| Error::system(format!("not enough memory for a value of {end} bytes")))?;
    bytes.resize(bytes.len() + missing, 0);
    Ok(())
}

#[cfg(test)]
mod tests;
