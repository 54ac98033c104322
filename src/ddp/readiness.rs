//! Tracks which gradients are complete and which buckets can be launched, as a state machine
//! without side effects.

use super::layout::Layout;
use std::ops::Range;

/// Progress of a backward pass. Buckets are launched strictly in order, so all ranks issue the same
/// operations even if their gradients arrive in different orders.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readiness {
    is_ready: Vec<bool>,
    /// Number of gradients that each bucket is still waiting for.
    missing: Vec<usize>,
    next_bucket: usize,
    /// Parameters in the order in which they became ready.
    pub(crate) order: Vec<usize>,
}

impl Readiness {
    /// Resets the progress so that no gradient is complete.
    pub(crate) fn begin(&mut self, layout: &Layout) {
        self.is_ready.clear();
        self.is_ready.resize(layout.places.len(), false);
        self.missing.clear();
        let sizes = layout.buckets.iter().map(|bucket| bucket.parameters.len());
        self.missing.extend(sizes);
        self.next_bucket = 0;
        self.order.clear();
    }

    pub(crate) fn is_ready(&self, parameter: usize) -> bool {
        self.is_ready[parameter]
    }

    /// Marks a gradient as complete. Returns the buckets that can now be launched, or `None` if the
    /// gradient was already complete.
    pub(crate) fn ready(&mut self, parameter: usize, layout: &Layout) -> Option<Range<usize>> {
        if std::mem::replace(&mut self.is_ready[parameter], true) {
            return None;
        }
        self.order.push(parameter);
        self.missing[layout.places[parameter].bucket] -= 1;
        let start = self.next_bucket;
        while self.missing.get(self.next_bucket) == Some(&0) {
            self.next_bucket += 1;
        }
        Some(start..self.next_bucket)
    }

    /// Returns the buckets that have not been launched yet, and counts them as launched.
    pub(crate) fn rest(&mut self) -> Range<usize> {
        let start = std::mem::replace(&mut self.next_bucket, self.missing.len());
        start..self.next_bucket
    }
}

#[cfg(test)]
mod tests;
