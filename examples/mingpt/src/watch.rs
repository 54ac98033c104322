//! Tracks whether the model still improves from one validation to the next.

use serde::{Deserialize, Serialize};

/// The best validation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Best {
    pub(crate) step: u64,
    pub(crate) loss: f64,
}

/// The best validation so far, and the number of validations since. All ranks have the same losses
/// and therefore make the same decisions. Checkpoints contain this state, so that a resumed
/// training continues to count.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Watch {
    pub(crate) best: Option<Best>,
    since: u64,
}

impl Watch {
    /// Records a validation after `step`. Returns `true` if it is the best so far.
    pub(crate) fn note(&mut self, step: u64, loss: f64) -> bool {
        if self.best.is_some_and(|best| loss >= best.loss) {
            self.since += 1;
            return false;
        }
        *self = Self {
            best: Some(Best { step, loss }),
            since: 0,
        };
        true
    }

    /// Returns `true` after `patience` validations without a better loss, unless `patience` is 0.
    pub(crate) fn is_exhausted(&self, patience: u64) -> bool {
        patience > 0 && self.since >= patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_counts_validations_since_best() {
        let mut watch = Watch::default();
        assert!(watch.note(10, 3.0) && watch.note(20, 2.0));
        assert!(!watch.note(30, 2.0) && !watch.is_exhausted(2));
        assert!(!watch.note(40, 2.5) && watch.is_exhausted(2) && !watch.is_exhausted(0));
        let (step, loss) = (20, 2.0);
        assert_eq!(watch.best, Some(Best { step, loss }));
        assert!(watch.note(50, 1.9) && !watch.is_exhausted(2));
    }
}
