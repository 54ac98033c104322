//! Compares the data of all ranks by exchanging only fingerprints.

use candle_core::Var;
use ringtree::{Communicator, Result};
use ringtree_candle::with_slice;
use sha2::{Digest, Sha256};

/// SHA-256 digest of a rank's data.
pub(crate) type Fingerprint = [u8; 32];

/// Returns the fingerprint of the bits of all `weights`.
pub(crate) fn fingerprint<'a>(
    weights: impl Iterator<Item = &'a Var>,
) -> candle_core::Result<Fingerprint> {
    let mut hash = Sha256::new();
    for weight in weights {
        with_slice(weight, |values: &[f32]| {
            let mut bytes = Vec::with_capacity(size_of_val(values));
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            hash.update(&bytes);
        })?;
    }
    Ok(hash.finalize().into())
}

/// Returns the fingerprint of the contents and the lengths of `parts`.
pub(crate) fn fingerprint_of_bytes(parts: &[&[u8]]) -> Fingerprint {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// Returns the first 16 hexadecimal digits of `fingerprint`.
pub(crate) fn short(fingerprint: &Fingerprint) -> String {
    let digits = fingerprint[..8].iter().map(|byte| format!("{byte:02x}"));
    digits.collect()
}

/// Gathers the fingerprints of all ranks, in rank order.
pub(crate) fn gather(comm: &Communicator, own: &Fingerprint) -> Result<Vec<Fingerprint>> {
    let mut bytes = vec![0; own.len() * comm.world_size()];
    comm.all_gather_into(own.as_slice(), &mut bytes)?;
    Ok(bytes.as_chunks().0.to_vec())
}

/// Returns the ranks whose fingerprints differ from rank 0's, as "rank 1" or "ranks 1, 3". Returns
/// `None` if there are none.
pub(crate) fn differing(fingerprints: &[Fingerprint]) -> Option<String> {
    let ranks: Vec<String> = (0..fingerprints.len())
        .filter(|&rank| fingerprints[rank] != fingerprints[0])
        .map(|rank| rank.to_string())
        .collect();
    match ranks.as_slice() {
        [] => None,
        [rank] => Some(format!("rank {rank}")),
        ranks => Some(format!("ranks {}", ranks.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_bit_of_one_weight_changes_fingerprint() {
        let of = |values: &[f32]| {
            let weights = Var::from_slice(values, values.len(), &candle_core::Device::Cpu);
            fingerprint([weights.unwrap()].iter()).unwrap()
        };
        assert_ne!(of(&[0.5, 3.25]), of(&[0.5, 3.25f32.next_up()]));
        assert_ne!(of(&[0.0]), of(&[-0.0]));
    }

    #[test]
    fn differing_ranks_are_named() {
        let (one, other) = ([1; 32], [2; 32]);
        assert_eq!(differing(&[one, one, one]), None);
        assert_eq!(differing(&[one, other, one]).unwrap(), "rank 1");
        assert_eq!(differing(&[one, other, one, other]).unwrap(), "ranks 1, 3");
    }
}
