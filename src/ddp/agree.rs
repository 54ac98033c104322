//! What all ranks must have in common, compared before it can do harm.

use crate::comm::Communicator;
use crate::comm::values::{all_gather_bytes, broadcast_bytes};
use crate::error::{Error, Result};
use crate::op::ReduceOp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

/// Rank 0's `entries`, on every rank.
pub(super) fn broadcast_entries(
    comm: &Communicator,
    entries: Vec<(String, Vec<f32>)>,
) -> Result<Vec<(String, Vec<f32>)>> {
    let names: Vec<_> = entries
        .iter()
        .map(|(name, values)| (name, values.len()))
        .collect();
    let names = serde_json::to_vec(&names).expect("invariant: names and numbers are valid JSON");
    let names = broadcast_bytes(comm, names, 0)?;
    // The other ranks go on with what rank 0 has sent: an error that they do not have ends all.
    let names: Vec<(String, usize)> = serde_json::from_slice(&names).map_err(|error| {
        comm.first_cause(Error::protocol(format!(
            "rank 0 sent no list of states: {error}"
        )))
    })?;
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

/// Room for the values of a state, of which rank 0 says how many they are.
fn room(name: &str, count: usize) -> Result<Vec<f32>> {
    let mut values = Vec::new();
    values.try_reserve_exact(count).map_err(|_| {
        Error::system(format!(
            "no memory for the state '{name}' of {count} values, which rank 0 has"
        ))
    })?;
    values.resize(count, 0.0);
    Ok(values)
}

/// Compares `lines` over the ranks.
///
/// # Errors
/// [`Error::mismatch`] on every rank, with the first line that differs from rank 0's.
pub(super) fn compare(comm: &Communicator, lines: &[String]) -> Result<()> {
    let own = lines.join("\n").into_bytes();
    let expected = broadcast_bytes(comm, own, 0)?;
    let expected = String::from_utf8_lossy(&expected).into_owned();
    let expected: Vec<_> = expected.split('\n').collect();
    let line = |at: usize| lines.get(at).map_or("nothing", String::as_str);
    let differs = (0..expected.len().max(lines.len())).find(|at| {
        expected
            .get(*at)
            .is_none_or(|expected| *expected != line(*at))
    });
    // The first place, and of the ranks that differ there the lowest.
    let (world_size, rank) = (comm.world_size() as u64, comm.rank() as u64);
    let mut first = [differs.map_or(u64::MAX, |at| at as u64 * world_size + rank)];
    comm.all_reduce(&mut first, ReduceOp::Min)?;
    if first[0] == u64::MAX {
        return Ok(());
    }
    let at = usize::try_from(first[0] / world_size).unwrap_or(usize::MAX);
    let culprit = usize::try_from(first[0] % world_size).unwrap_or(0);
    let its = broadcast_bytes(comm, line(at).into(), culprit)?;
    Err(Error::mismatch(format!(
        "rank {culprit} has {}, rank 0 has {}; all ranks must give the same parameters in the same \
         order, with the same options",
        String::from_utf8_lossy(&its),
        expected.get(at).copied().unwrap_or("nothing"),
    ))
    .with_rank(0)
    .with_peer(culprit))
}

/// Every rank's complaints, on every rank, without duplicates.
pub(super) fn gather_words(comm: &Communicator, own: &[String]) -> Result<Vec<String>> {
    let mut sayers = BTreeMap::<String, Vec<usize>>::new();
    let words: Vec<Vec<String>> = gather_json(comm, &own.to_vec())?;
    for (rank, words) in words.into_iter().enumerate() {
        for word in words {
            sayers.entry(word).or_default().push(rank);
        }
    }
    let world_size = comm.world_size();
    let said = sayers.into_iter().map(|(word, ranks)| match ranks[..] {
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

/// Returns `own`, or an error on every rank if loading failed on any: it says why, and on which.
pub(super) fn agree<T>(comm: &Communicator, own: Result<T>) -> Result<T> {
    let word = own.as_ref().err().map(Error::to_string);
    let words = gather_words(comm, word.as_slice())?;
    match own {
        Ok(own) if words.is_empty() => Ok(own),
        _ => Err(Error::usage(format!(
            "the state is loaded in part: {}",
            words.join("; ")
        ))),
    }
}

/// Every rank's value.
pub(super) fn gather_json<T>(comm: &Communicator, own: &T) -> Result<Vec<T>>
where
    T: Serialize + DeserializeOwned,
{
    let texts = all_gather_bytes(comm, to_json(own))?;
    texts.iter().map(|text| from_json(comm, text)).collect()
}

pub(super) fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("invariant: what ranks exchange has only text for keys")
}

/// The value that `text` is; otherwise the communicator ends on all ranks, as it says what follows.
pub(super) fn from_json<T: DeserializeOwned>(comm: &Communicator, text: &[u8]) -> Result<T> {
    serde_json::from_slice(text).map_err(|error| {
        comm.first_cause(Error::protocol(format!(
            "what a rank sent of its state is malformed: {error}"
        )))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_length_of_a_peer_allocates_what_there_is_not() {
        assert_eq!(room("a", 2).unwrap(), [0.0; 2]);
        for count in [usize::MAX, usize::MAX / 4, isize::MAX as usize / 4] {
            let line = room("momentum", count).unwrap_err().to_string();
            assert!(line.contains("'momentum'"), "{line}");
        }
    }
}
