//! Reports how often a communicator was used.

use super::Communicator;
use crate::engine::group::Group;
use crate::engine::stats::CallStats;

impl Communicator {
    /// Returns how often this rank has made each kind of call on this communicator, through any of
    /// its handles. This method does not communicate.
    ///
    /// Groups made by [`split`](Communicator::split) and
    /// [`duplicate`](Communicator::duplicate) have their own counts.
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let ends = ringtree::simulate(2, |comm| {
    ///     for _ in 0..3 {
    ///         comm.all_reduce(&mut [1f32; 100], ReduceOp::Sum)?;
    ///     }
    ///     Ok::<_, ringtree::Error>(comm.stats())
    /// });
    /// let all_reduce = &ends[0].as_ref().unwrap()[0];
    /// assert_eq!((all_reduce.call, all_reduce.transport), ("all-reduce", "sim"));
    /// assert_eq!((all_reduce.calls, all_reduce.bytes), (3, 1200));
    /// ```
    #[must_use]
    pub fn stats(&self) -> Vec<CallStats> {
        let parts = &self.core.parts;
        let stats = |group: &mut Group| group.stats();
        let runtime = parts.runtime.get().ok();
        let rows = runtime.and_then(|runtime| runtime.with_group(parts.group, stats));
        let mut rows = rows.unwrap_or_default();
        if parts.transport_name == "sim" {
            let remote = rows.iter_mut().filter(|row| row.transport != "none");
            remote.for_each(|row| row.transport = "sim");
            rows.dedup_by(|next, row| {
                let is_same = (next.call, next.transport) == (row.call, row.transport);
                if is_same {
                    row.calls += next.calls;
                    row.bytes += next.bytes;
                    row.waited += next.waited;
                }
                is_same
            });
        }
        rows
    }
}
