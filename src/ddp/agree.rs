//! Shares small values between ranks. Values that must be the same on all ranks are compared, so
//! that differences are reported before they do any harm.

use crate::comm::Communicator;
use crate::comm::values::{all_gather_bytes, broadcast_bytes};
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::op::ReduceOp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

/// Returns rank 0's `entries` on every rank.
pub(super) fn broadcast_entries(
    comm: &Communicator,
    entries: Vec<(String, Vec<f32>)>,
) -> Result<Vec<(String, Vec<f32>)>> {
    let names = entries
        .iter()
        .map(|(name, values)| (name.clone(), values.len()));
    let names: Vec<(String, usize)> = share(comm, 0, &names.collect())?;
    let mut mine = entries.into_iter().map(|(_, values)| values);
    let one = |(name, count): (String, usize)| {
        let own = mine.next().filter(|_| comm.rank() == 0);
        let mut values = match own {
            Some(own) => own,
            None => room(&name, count).map_err(|error| comm.first_cause(error))?,
        };
        comm.broadcast(&mut values, 0)?;
        Ok((name, values))
    };
    names.into_iter().map(one).collect()
}

/// Allocates `count` zeros for the state entry `name`. Returns an error if there is not enough
/// memory, because `count` was received from rank 0 and may be arbitrarily large.
fn room(name: &str, count: usize) -> Result<Vec<f32>> {
    let mut values = Vec::new();
    values.try_reserve_exact(count).map_err(|_| {
        Error::system(format!(
            "cannot allocate the {count} values that rank 0 has for the state '{name}'"
        ))
    })?;
    values.resize(count, 0.0);
    Ok(values)
}

/// Checks that all ranks have the same `lines`.
///
/// # Errors
/// Returns [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch) on every rank if the lines differ.
/// The error contains the first line that differs from rank 0's.
pub(super) fn compare(comm: &Communicator, lines: &[String]) -> Result<()> {
    let expected = share(comm, 0, &lines.to_vec())?;
    let line = |of: &[String], at: usize| of.get(at).map_or("nothing".to_owned(), String::clone);
    let mut all = 0..expected.len().max(lines.len());
    let differs = all.find(|at| lines.get(*at) != expected.get(*at));
    // Find the first line that differs on any rank, and the lowest rank on which this line differs.
    let (world_size, rank) = (comm.world_size() as u64, comm.rank() as u64);
    let mut first = [differs.map_or(u64::MAX, |at| at as u64 * world_size + rank)];
    comm.all_reduce(&mut first, ReduceOp::Min)?;
    if first[0] == u64::MAX {
        return Ok(());
    }
    let at = usize::try_from(first[0] / world_size).unwrap_or(usize::MAX);
    let culprit = usize::try_from(first[0] % world_size).unwrap_or(0);
    let its = broadcast_bytes(comm, line(lines, at).into(), culprit)?;
    Err(Error::mismatch(format!(
        "rank {culprit} has {}, but rank 0 has {}; pass the same parameters in the same order, and \
         the same options, on all ranks",
        String::from_utf8_lossy(&its),
        line(&expected, at),
    ))
    .with_rank(0)
    .with_peer(culprit))
}

/// Collects the messages of all ranks and returns them on every rank, without duplicates. If only
/// some ranks have a message, the lowest of these ranks is named at its end.
pub(super) fn gather_messages(comm: &Communicator, own: &[String]) -> Result<Vec<String>> {
    let mut ranks_by_message = BTreeMap::<String, Vec<usize>>::new();
    let words: Vec<Vec<String>> = gather_json(comm, &own.to_vec())?;
    for (rank, words) in words.into_iter().enumerate() {
        for word in words {
            ranks_by_message.entry(word).or_default().push(rank);
        }
    }
    let world_size = comm.world_size();
    let said = ranks_by_message
        .into_iter()
        .map(|(word, ranks)| match ranks[..] {
            _ if ranks.len() == world_size => word,
            [rank] => format!("{word} (seen by rank {rank})"),
            _ => format!(
                "{word} (seen by rank {} and {} more)",
                ranks[0],
                ranks.len() - 1
            ),
        });
    Ok(said.collect())
}

/// Returns `own`, or an error on every rank if loading failed on any rank. The message names the
/// causes and the ranks.
pub(super) fn agree<T>(comm: &Communicator, own: Result<T>) -> Result<T> {
    let word = own.as_ref().err().map(Error::to_string);
    let words = gather_messages(comm, word.as_slice())?;
    match own {
        Ok(own) if words.is_empty() => Ok(own),
        _ => Err(Error::usage(format!(
            "cannot finish loading the state, which is now partly overwritten: {}",
            words.join("; ")
        ))),
    }
}

/// Lists `names` for a message. Names beyond the first `count_max` are only counted.
pub(super) fn listed<S: AsRef<str>>(names: &[S], count_max: usize) -> String {
    let shown: Vec<_> = names.iter().take(count_max).map(AsRef::as_ref).collect();
    match names.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Broadcasts `own` from `root` and returns it on every rank.
pub(super) fn share<T>(comm: &Communicator, root: usize, own: &T) -> Result<T>
where
    T: Serialize + DeserializeOwned,
{
    from_json(comm, &broadcast_bytes(comm, to_json(own), root)?)
}

/// Gathers `own` from every rank. The result is indexed by rank.
pub(super) fn gather_number<T: Element>(comm: &Communicator, own: T) -> Result<Vec<T>> {
    let mut all = vec![own; comm.world_size()];
    comm.all_gather(&mut all)?;
    Ok(all)
}

/// Gathers `own`, encoded as JSON, from every rank. The result is indexed by rank.
pub(super) fn gather_json<T>(comm: &Communicator, own: &T) -> Result<Vec<T>>
where
    T: Serialize + DeserializeOwned,
{
    let texts = all_gather_bytes(comm, to_json(own))?;
    texts.iter().map(|text| from_json(comm, text)).collect()
}

pub(super) fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("invariant: the keys of exchanged values are strings")
}

/// Decodes `text`. If decoding fails, the communicator fails on all ranks because the next calls
/// depend on the value.
pub(super) fn from_json<T: DeserializeOwned>(comm: &Communicator, text: &[u8]) -> Result<T> {
    serde_json::from_slice(text).map_err(|error| {
        comm.first_cause(Error::protocol(format!(
            "cannot decode the state that a rank sent: {error}"
        )))
    })
}

#[cfg(test)]
mod tests;
