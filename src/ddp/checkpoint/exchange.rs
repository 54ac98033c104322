//! Gathers all ranks' contributions to a checkpoint, which are per-rank tensors and parts of
//! tensors.

use super::tensor::Tensor;
use crate::comm::Communicator;
use crate::comm::values::{receive_bytes, send_bytes};
use crate::ddp::agree::{from_json, to_json};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// The rank that writes checkpoints.
pub(super) const WRITER: usize = 0;

/// The description of a tensor, without its bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) dtype: u8,
    pub(super) shape: Vec<usize>,
    /// The complete tensor that this tensor is a part of, or `None` if this tensor is complete
    /// itself.
    pub(super) part_of: Option<Whole>,
}

/// The complete tensor that a part belongs to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Whole {
    pub(super) shape: Vec<usize>,
    /// Index of the part's first element in the complete tensor.
    pub(super) start: usize,
}

/// The tensors and parts of tensors that a rank contributes to the checkpoint. If the contribution
/// is invalid, a message that explains why.
pub(super) type Own<'a> = Result<Vec<(Entry, &'a Tensor)>, String>;

/// Gathers the contributions of all ranks on the writer, except for the writer's own complete
/// tensors, which the writer already has. Other ranks get an empty map. The inner error describes
/// the first contribution that is invalid.
pub(super) fn gather_own(
    comm: &Communicator,
    own: Own<'_>,
) -> Result<Result<BTreeMap<String, Tensor>, String>> {
    if comm.rank() != WRITER {
        send_pieces(comm, own)?;
        return Ok(Ok(BTreeMap::new()));
    }
    let mut assembly = Assembly::default();
    let mut outcome = own.and_then(|own| {
        let mut parts = own.into_iter().filter(|(entry, _)| entry.part_of.is_some());
        parts.try_for_each(|(entry, tensor)| assembly.add(WRITER, entry, tensor.clone()))
    });
    for rank in (0..comm.world_size()).filter(|rank| *rank != WRITER) {
        let received = receive_pieces(comm, rank, &mut assembly)?;
        outcome = outcome.and(received);
    }
    Ok(outcome.and_then(|()| assembly.finish()))
}

/// Sends the writer this rank's contribution or, if the contribution is invalid, a message that
/// explains why.
fn send_pieces(comm: &Communicator, own: Own<'_>) -> Result<()> {
    let entries = own
        .as_ref()
        .map(|own| own.iter().map(|(entry, _)| entry).collect::<Vec<_>>());
    send_bytes(comm, to_json(&entries), WRITER)?;
    for (_, tensor) in own.iter().flatten() {
        if !tensor.bytes().is_empty() {
            comm.send(tensor.bytes(), WRITER)?;
        }
    }
    Ok(())
}

fn receive_pieces(
    comm: &Communicator,
    rank: usize,
    assembly: &mut Assembly,
) -> Result<Result<(), String>> {
    let entries: Result<Vec<Entry>, String> = from_json(comm, &receive_bytes(comm, rank)?)?;
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

/// Complete tensors received from other ranks, and tensors assembled from the parts of several
/// ranks.
#[derive(Default)]
struct Assembly {
    tensors: BTreeMap<String, Tensor>,
    /// Element ranges of each assembled tensor that have been filled, each with the rank that
    /// provided it.
    parts: BTreeMap<String, Vec<(Range<usize>, usize)>>,
}

impl Assembly {
    fn add(&mut self, rank: usize, entry: Entry, tensor: Tensor) -> Result<(), String> {
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
                let no_room = || format!("cannot allocate tensor '{name}' of shape {shape:?}");
                free.insert(zeros.ok_or_else(no_room)?)
            }
        };
        let (from, bytes) = (start.saturating_mul(element), tensor.bytes());
        let fits = whole.dtype() == tensor.dtype() && whole.shape() == shape;
        let place = from.saturating_add(bytes.len());
        let place = whole.bytes_mut().get_mut(from..place).filter(|_| fits);
        let Some(place) = place else {
            return Err(format!(
                "ranks disagree about the shape or type of sharded tensor '{name}': rank {rank} \
                 passed elements from {start} on for shape {shape:?}; pass the same shape and type"
            ));
        };
        place.copy_from_slice(bytes);
        let part = (start..start + bytes.len() / element, rank);
        self.parts.entry(name).or_default().push(part);
        Ok(())
    }

    /// Returns the tensors, or a message if the parts of a tensor do not cover every element
    /// exactly once.
    fn finish(self) -> Result<BTreeMap<String, Tensor>, String> {
        for (name, mut parts) in self.parts {
            let count = self.tensors.get(&name).map_or(0, Tensor::count);
            parts.retain(|(part, _)| !part.is_empty());
            parts.sort_unstable_by_key(|(part, rank)| (part.start, *rank));
            let (mut end, mut rank_before) = (0, WRITER);
            for (part, rank) in parts.into_iter().chain([(count..count, WRITER)]) {
                if end < part.start {
                    return Err(format!(
                        "cannot save sharded tensor '{name}': no rank passed elements {end}..{} of \
                         {count}; pass each element on exactly one rank",
                        part.start
                    ));
                }
                if part.start < end {
                    return Err(format!(
                        "cannot save sharded tensor '{name}': rank {rank_before} and rank {rank} \
                         both passed element {}; pass each element on exactly one rank",
                        part.start
                    ));
                }
                (end, rank_before) = (part.end, rank);
            }
        }
        Ok(self.tensors)
    }
}

pub(super) fn entry(name: &str, tensor: &Tensor) -> Entry {
    Entry {
        name: name.to_owned(),
        dtype: tensor.dtype().code(),
        shape: tensor.shape().to_vec(),
        part_of: None,
    }
}

/// Creates a tensor of zeros to receive into. If there is not enough memory, the communicator fails
/// on all ranks because the sender does not know about the shortage.
pub(super) fn empty(comm: &Communicator, entry: &Entry) -> Result<Tensor> {
    let dtype = Dtype::from_code(entry.dtype);
    let tensor = dtype.and_then(|dtype| Tensor::zeros(dtype, entry.shape.clone()));
    tensor.ok_or_else(|| {
        let Entry { name, shape, .. } = entry;
        comm.first_cause(Error::system(format!(
            "cannot allocate tensor '{name}' of shape {shape:?}: not enough memory"
        )))
    })
}
