//! What ranks send each other of a checkpoint: tensors that one rank alone has, parts of tensors
//! that the ranks share out, and small values.

use super::tensor::Tensor;
use crate::comm::Communicator;
use crate::comm::values::{broadcast_bytes, receive_bytes, send_bytes};
use crate::ddp::agree::{from_json, to_json};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use std::ops::Range;

/// The rank that writes.
pub(super) const WRITER: usize = 0;

/// A tensor without its bytes.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) dtype: u8,
    pub(super) shape: Vec<usize>,
    /// Of which tensor it is a part.
    pub(super) part_of: Option<Whole>,
}

/// The tensor that a part belongs to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Whole {
    pub(super) shape: Vec<usize>,
    /// The place of the part's first element among the whole one's.
    pub(super) start: usize,
}

/// A tensor, or a part of one, that the writer gets from the rank that has it.
pub(super) struct Piece<'a> {
    pub(super) name: &'a str,
    pub(super) tensor: &'a Tensor,
    pub(super) part_of: Option<&'a Whole>,
}

impl Piece<'_> {
    fn entry(&self) -> Entry {
        Entry {
            part_of: self.part_of.cloned(),
            ..entry(self.name, self.tensor)
        }
    }
}

/// What a rank contributes, or what is wrong with it.
pub(super) type Own<'a> = std::result::Result<Vec<Piece<'a>>, String>;

/// Brings what the ranks have of their own to the writer; the inner error is what is wrong with
/// a rank's part. Other ranks than the writer get nothing.
pub(super) fn gather_own(
    comm: &Communicator,
    own: Own<'_>,
) -> Result<std::result::Result<BTreeMap<String, Tensor>, String>> {
    if comm.rank() != WRITER {
        send_pieces(comm, own)?;
        return Ok(Ok(BTreeMap::new()));
    }
    let mut assembly = Assembly::default();
    let mut outcome = own.and_then(|own| {
        let mut parts = own.iter().filter(|piece| piece.part_of.is_some());
        parts.try_for_each(|part| assembly.add(WRITER, part.entry(), part.tensor.clone()))
    });
    for rank in (0..comm.world_size()).filter(|rank| *rank != WRITER) {
        let received = receive_pieces(comm, rank, &mut assembly)?;
        outcome = outcome.and(received);
    }
    Ok(outcome.and_then(|()| assembly.finish()))
}

/// Sends this rank's own tensors to the writer, or what is wrong with them.
fn send_pieces(comm: &Communicator, own: Own<'_>) -> Result<()> {
    let entries: std::result::Result<Vec<Entry>, &String> = match &own {
        Ok(own) => Ok(own.iter().map(Piece::entry).collect()),
        Err(what) => Err(what),
    };
    send_bytes(comm, to_json(&entries), WRITER)?;
    for piece in own.iter().flatten() {
        if !piece.tensor.bytes().is_empty() {
            comm.send(piece.tensor.bytes(), WRITER)?;
        }
    }
    Ok(())
}

fn receive_pieces(
    comm: &Communicator,
    rank: usize,
    assembly: &mut Assembly,
) -> Result<std::result::Result<(), String>> {
    let entries: std::result::Result<Vec<Entry>, String> =
        from_json(comm, &receive_bytes(comm, rank)?)?;
    let entries = match entries {
        Ok(entries) => entries,
        Err(what) => return Ok(Err(what)),
    };
    let mut outcome = Ok(());
    for entry in entries {
        let mut tensor = empty(comm, &entry)?;
        if !tensor.bytes().is_empty() {
            comm.recv(tensor.bytes_mut(), rank)?;
        }
        outcome = outcome.and(assembly.add(rank, entry, tensor));
    }
    Ok(outcome)
}

/// Tensors of several ranks, and tensors that several ranks have parts of.
#[derive(Default)]
struct Assembly {
    tensors: BTreeMap<String, Tensor>,
    /// Which elements of a tensor in parts have come, and from which rank.
    parts: BTreeMap<String, Vec<(Range<usize>, usize)>>,
}

impl Assembly {
    fn add(
        &mut self,
        rank: usize,
        entry: Entry,
        tensor: Tensor,
    ) -> std::result::Result<(), String> {
        let Entry { name, part_of, .. } = entry;
        let Some(Whole { shape, start }) = part_of else {
            self.tensors.insert(name, tensor);
            return Ok(());
        };
        let element = tensor.dtype().size();
        let whole = match self.tensors.entry(name.clone()) {
            std::collections::btree_map::Entry::Occupied(there) => there.into_mut(),
            std::collections::btree_map::Entry::Vacant(free) => {
                let zeros = Tensor::zeros(tensor.dtype(), shape.clone());
                let no_room = || format!("no memory for the tensor '{name}' of shape {shape:?}");
                free.insert(zeros.ok_or_else(no_room)?)
            }
        };
        let (from, bytes) = (start.saturating_mul(element), tensor.bytes());
        let fits = whole.dtype() == tensor.dtype() && whole.shape() == shape;
        let place = from.saturating_add(bytes.len());
        let place = whole.bytes_mut().get_mut(from..place).filter(|_| fits);
        let Some(place) = place else {
            return Err(format!(
                "ranks disagree about the tensor '{name}' that they have parts of: rank {rank} \
                 has elements {start} and following of {shape:?}"
            ));
        };
        place.copy_from_slice(bytes);
        let part = (start..start + bytes.len() / element, rank);
        self.parts.entry(name).or_default().push(part);
        Ok(())
    }

    /// The tensors, each of whose parts begins where the one before ends.
    fn finish(self) -> std::result::Result<BTreeMap<String, Tensor>, String> {
        for (name, mut parts) in self.parts {
            let count = self.tensors.get(&name).map_or(0, Tensor::count);
            parts.retain(|(part, _)| !part.is_empty());
            parts.sort_unstable_by_key(|(part, rank)| (part.start, *rank));
            let (mut end, mut rank_before) = (0, WRITER);
            for (part, rank) in parts.into_iter().chain([(count..count, WRITER)]) {
                if end < part.start {
                    return Err(format!(
                        "no rank has the elements from {end} up to {} of the {count} of the tensor \
                         '{name}', which the ranks share out",
                        part.start
                    ));
                }
                if part.start < end {
                    return Err(format!(
                        "rank {rank_before} and rank {rank} both have element {} of the tensor \
                         '{name}', which the ranks share out",
                        part.start
                    ));
                }
                (end, rank_before) = (part.end, rank);
            }
        }
        Ok(self.tensors)
    }
}

/// The value that `root` has, on every rank.
pub(super) fn share<T>(comm: &Communicator, root: usize, own: &T) -> Result<T>
where
    T: Serialize + DeserializeOwned,
{
    from_json(comm, &broadcast_bytes(comm, to_json(own), root)?)
}

pub(super) fn entry(name: &str, tensor: &Tensor) -> Entry {
    Entry {
        name: name.to_owned(),
        dtype: tensor.dtype().code(),
        shape: tensor.shape().to_vec(),
        part_of: None,
    }
}

/// A tensor of zeros to receive into. Without memory for it the communicator ends on all ranks:
/// its sender does not know.
pub(super) fn empty(comm: &Communicator, entry: &Entry) -> Result<Tensor> {
    let dtype = Dtype::from_code(entry.dtype);
    let tensor = dtype.and_then(|dtype| Tensor::zeros(dtype, entry.shape.clone()));
    tensor.ok_or_else(|| {
        let Entry { name, shape, .. } = entry;
        comm.first_cause(Error::system(format!(
            "no memory for the tensor '{name}' of shape {shape:?}"
        )))
    })
}
