//! Which algorithm a collective on device buffers takes.

use super::algorithms::entry;
use super::spec::{Algorithm, Collective};
use super::topology::Topology;

/// Up to so many bytes it is hand-overs that cost, and one round is best.
pub const FLAT_BYTES_MAX: usize = 256 << 10;
/// Up to so many a rank may fold what all others send at once.
pub const TWO_SHOT_BYTES_MAX: usize = 8 << 20;
/// A fold on a device takes no more operands.
pub const FAN_IN_MAX: usize = 64;

/// The algorithm for `bytes` among `world_size` ranks that each have a device. Every hand-over
/// between ranks passes through their hosts, which is dear, so rounds are few; what moves is moved
/// by the device itself. The bounds are set, not measured.
///
/// ```
/// use ringtree::plan::on_device::choose;
/// use ringtree::plan::{Algorithm, Collective};
/// assert_eq!(choose(Collective::AllReduce, 4, 1 << 10), Algorithm::Flat);
/// assert_eq!(choose(Collective::AllReduce, 4, 1 << 28), Algorithm::Circulant);
/// ```
#[must_use]
pub fn choose(collective: Collective, world_size: usize, bytes: usize) -> Algorithm {
    let order = if bytes <= FLAT_BYTES_MAX {
        [Algorithm::Flat, Algorithm::TwoShot, Algorithm::Circulant]
    } else if bytes <= TWO_SHOT_BYTES_MAX {
        [Algorithm::TwoShot, Algorithm::Circulant, Algorithm::Flat]
    } else {
        [Algorithm::Circulant, Algorithm::TwoShot, Algorithm::Flat]
    };
    let fits = |algorithm: &Algorithm| {
        let topology = Topology::together(world_size);
        entry(collective, *algorithm)
            .is_some_and(|entry| (entry.fan_in)(collective, topology) <= FAN_IN_MAX)
    };
    // Every collective has a tree, if nothing else.
    let otherwise = match collective {
        Collective::Barrier => Algorithm::Dissemination,
        _ => Algorithm::Binomial,
    };
    order.into_iter().find(fits).unwrap_or(otherwise)
}
