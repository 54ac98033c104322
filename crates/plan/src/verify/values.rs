//! Interns association trees so that equal trees have equal IDs.

use std::collections::HashMap;

/// The ID of a tree. The lowest IDs are those of the leaves, which the ranks hold at the start.
pub(super) type Value = u32;

/// All trees seen so far.
pub(super) struct Values {
    /// `true` if combining means forming a union of sets, which is idempotent and does not preserve
    /// the tree.
    is_union: bool,
    world_size: usize,
    /// Number of distinct contributions per rank.
    blocks: usize,
    trees: Vec<Tree>,
    /// Trees of reductions, indexed by their operands. If there are two operands, they are in
    /// ascending order.
    folds: HashMap<Box<[Value]>, Value>,
    unions: HashMap<Runs, Value>,
}

struct Tree {
    contributors: Runs,
    fingerprint: u64,
}

/// A set of ranks as sorted, disjoint, non-adjacent half-open runs. This representation is exact,
/// and it is short for the arcs and aligned groups that algorithms build.
type Runs = Vec<(u32, u32)>;

impl Values {
    /// Creates the leaves of `world_size` ranks with `blocks` distinct contributions each.
    pub(super) fn new(world_size: usize, blocks: usize, is_union: bool) -> Self {
        let leaf = |rank: u32| Tree {
            contributors: vec![(rank, rank + 1)],
            fingerprint: mix(1, u64::from(rank)),
        };
        let ranks = u32::try_from(world_size).expect("invariant: a rank fits 32 bits");
        let leaves = (0..ranks).flat_map(|rank| std::iter::repeat_n(rank, blocks));
        let mut values = Self {
            is_union,
            world_size,
            blocks,
            trees: leaves.map(leaf).collect(),
            folds: HashMap::new(),
            unions: HashMap::new(),
        };
        for rank in 0..ranks {
            values.unions.insert(vec![(rank, rank + 1)], rank);
        }
        values
    }

    /// Returns the leaf that a rank initially holds in a block. Blocks are distinguished only if
    /// content moves between them.
    pub(super) fn leaf(&self, rank: usize, block: usize) -> Value {
        (rank * self.blocks + block % self.blocks) as Value
    }

    /// Returns the tree of a single reduction of the operands. Their order matters only if there
    /// are more than two.
    ///
    /// # Errors
    /// Returns a rank whose contribution would be combined twice.
    pub(super) fn fold(&mut self, operands: &[Value]) -> Result<Value, usize> {
        if self.is_union {
            return self.union(operands);
        }
        let pair;
        let operands = match *operands {
            [one, other] => {
                pair = [one.min(other), one.max(other)];
                &pair
            }
            _ => operands,
        };
        if let Some(&known) = self.folds.get(operands) {
            return Ok(known);
        }
        let tree = self.combined(operands)?;
        let value = self.insert(tree);
        self.folds.insert(operands.into(), value);
        Ok(value)
    }

    /// Returns the tree of a single reduction, in rank order, of what each rank initially holds in
    /// its first block.
    pub(super) fn in_rank_order(&mut self) -> Value {
        let leaves: Vec<Value> = (0..self.world_size)
            .map(|rank| self.leaf(rank, 0))
            .collect();
        match *leaves {
            [alone] => alone,
            _ => self
                .fold(&leaves)
                .expect("invariant: the ranks are distinct"),
        }
    }

    fn insert(&mut self, tree: Tree) -> Value {
        self.trees.push(tree);
        Value::try_from(self.trees.len() - 1).expect("invariant: fewer than 2³² trees in memory")
    }

    fn combined(&self, operands: &[Value]) -> Result<Tree, usize> {
        let contributors = self.united(operands)?;
        let mut prints: Vec<u64> = operands.iter().map(|&one| self.fingerprint(one)).collect();
        if prints.len() == 2 {
            prints.sort_unstable();
        }
        let fingerprint = prints
            .iter()
            .fold(prints.len() as u64, |so_far, &print| mix(so_far, print));
        Ok(Tree {
            contributors,
            fingerprint,
        })
    }

    /// Returns the contributors to all operands, or an error with a rank that would contribute
    /// twice.
    fn united(&self, operands: &[Value]) -> Result<Runs, usize> {
        operands.iter().try_fold(Runs::new(), |united, &operand| {
            let more = &self.trees[operand as usize].contributors;
            unite(&united, more, self.is_union)
        })
    }

    fn union(&mut self, operands: &[Value]) -> Result<Value, usize> {
        let contributors = self.united(operands)?;
        if let Some(&known) = self.unions.get(&contributors) {
            return Ok(known);
        }
        let value = self.insert(Tree {
            contributors: contributors.clone(),
            fingerprint: 0,
        });
        self.unions.insert(contributors, value);
        Ok(value)
    }

    /// Returns whether all contributors to `part` also contributed to `whole`.
    pub(super) fn includes(&self, whole: Value, part: Value) -> bool {
        if whole == part || self.is_complete(whole) {
            return true;
        }
        let [whole, part] = [whole, part].map(|one| &self.trees[one as usize].contributors);
        part.iter().all(|(first, end)| {
            let mut runs = whole.iter();
            runs.any(|(from, to)| from <= first && end <= to)
        })
    }

    /// Returns whether every rank has contributed.
    pub(super) fn is_complete(&self, value: Value) -> bool {
        self.trees[value as usize].contributors == [(0, self.world_size as u32)]
    }

    /// Returns a hash of the tree that does not depend on when the tree was added.
    pub(super) fn fingerprint(&self, value: Value) -> u64 {
        self.trees[value as usize].fingerprint
    }

    /// Returns the contributors in ascending order.
    pub(super) fn contributors(&self, value: Value) -> impl Iterator<Item = usize> {
        let runs = self.trees[value as usize].contributors.iter();
        runs.flat_map(|(first, end)| *first as usize..*end as usize)
    }

    /// Returns the contributors as text.
    pub(super) fn describe(&self, value: Value) -> String {
        let runs = &self.trees[value as usize].contributors;
        let describe = |&(first, end): &(u32, u32)| {
            if end == first + 1 {
                first.to_string()
            } else {
                format!("{first}..={}", end - 1)
            }
        };
        runs.iter().map(describe).collect::<Vec<_>>().join(", ")
    }
}

/// Returns the union of two sets. Unless `may_overlap` is `true`, returns an error with a rank that
/// is in both sets.
fn unite(one: &[(u32, u32)], other: &[(u32, u32)], may_overlap: bool) -> Result<Runs, usize> {
    let mut all: Runs = [one, other].concat();
    all.sort_unstable();
    let mut united = Runs::with_capacity(all.len());
    for (first, end) in all {
        match united.last_mut() {
            Some((_, last_end)) if first < *last_end && !may_overlap => {
                return Err(first as usize);
            }
            Some((_, last_end)) if first <= *last_end => *last_end = end.max(*last_end),
            _ => united.push((first, end)),
        }
    }
    Ok(united)
}

/// Returns the next state of a 64-bit hash in which every input bit affects every output bit.
pub(super) fn mix(state: u64, more: u64) -> u64 {
    let product =
        u128::from(state ^ 0x9E37_79B9_7F4A_7C15) * u128::from(more ^ 0xD1B5_4A32_D192_ED03);
    let folded = (product as u64) ^ ((product >> 64) as u64);
    folded.rotate_left(23).wrapping_mul(0x9FB2_1C65_1E98_DF25) ^ state.rotate_left(41)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operand_order_matters_only_for_more_than_two_operands() {
        let mut values = Values::new(4, 1, false);
        assert_eq!(values.fold(&[0, 1]), values.fold(&[1, 0]));
        assert_ne!(values.fold(&[0, 1, 2]), values.fold(&[1, 0, 2]));
        let left = values.fold(&[0, 1]).unwrap();
        assert_ne!(values.fold(&[left, 2]), values.fold(&[0, 1, 2]));
        let (one, other) = (
            values.fold(&[0, 1, 2]).unwrap(),
            values.fold(&[left, 2]).unwrap(),
        );
        assert_ne!(values.fingerprint(one), values.fingerprint(other));
    }

    #[test]
    fn contribution_may_repeat_in_a_union_but_not_in_a_sum() {
        let mut sums = Values::new(4, 1, false);
        let pair = sums.fold(&[1, 2]).unwrap();
        assert_eq!(sums.fold(&[pair, 2]), Err(2));
        let mut unions = Values::new(4, 1, true);
        let pair = unions.fold(&[1, 2]).unwrap();
        assert_eq!(unions.fold(&[pair, 2]), Ok(pair));
        let all = unions.fold(&[0, pair, 3]).unwrap();
        assert!(unions.is_complete(all));
        assert!(!unions.is_complete(pair));
    }

    #[test]
    fn fingerprints_do_not_depend_on_the_order_of_insertion() {
        let mut values = Values::new(4, 1, false);
        let mut others = Values::new(4, 1, false);
        others.fold(&[2, 3]).unwrap();
        let one = values.fold(&[0, 1]).unwrap();
        let other = others.fold(&[1, 0]).unwrap();
        assert_ne!(one, other);
        assert_eq!(values.fingerprint(one), others.fingerprint(other));
    }
}
