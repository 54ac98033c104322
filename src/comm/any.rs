//! Runs collectives that are selected at run time, and predicts how a call would run.

use super::Communicator;
use super::buffer::BufferMut;
use super::collectives::forced;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::op::ReduceOp;
use crate::plan::internal::select::with_breakdown;
use crate::plan::{Choice, Collective};
use crate::protocol::call::Call;

/// Runs a collective in place. Use this function if the collective is known only at run time. `op`
/// and `root` are ignored if the collective does not use them. A barrier ignores the buffer as
/// well.
///
/// # Errors
/// Returns one of the [errors that all calls share](Communicator#errors).
pub fn collective<B: BufferMut + ?Sized>(
    comm: &Communicator,
    collective: Collective,
    buffer: &mut B,
    op: ReduceOp,
    root: usize,
) -> Result<()> {
    if collective == Collective::Barrier {
        return comm.barrier();
    }
    let call = Call::new(collective, 0);
    let root = if collective.is_rooted() { root } else { 0 };
    let op = call.op.map(|_| op);
    comm.in_place(Call { op, root, ..call }, buffer)
}

impl Communicator {
    /// Returns the algorithm that an in-place call would use on a buffer of `count` elements, with
    /// its predicted time and the best alternative. The result prints as one line that explains the
    /// choice. Pass 0 as `root` if the collective does not have a root.
    ///
    /// ```
    /// use ringtree::plan::Collective;
    /// use ringtree::Dtype;
    /// let choices = ringtree::simulate(8, |comm| {
    ///     comm.plan_for(Collective::AllReduce, 2, Dtype::F32, 0)
    /// });
    /// let choice = choices[0].clone()?;
    /// assert!(choice.predicted_s > 0.0);
    /// let line = choice.to_string();
    /// assert!(line.starts_with("all-reduce of 8 B over 8 ranks: "), "{line}");
    /// assert!(line.contains("; next best ") && line.contains("(o), "), "{line}");
    /// # Ok::<(), ringtree::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`Usage`](crate::ErrorKind::Usage) if `root` is out of range or the collective does
    /// not support `count` elements.
    #[doc(alias("explain"))]
    pub fn plan_for(
        &self,
        collective: Collective,
        count: usize,
        dtype: Dtype,
        root: usize,
    ) -> Result<Choice> {
        self.check_peer("root", root)?;
        let call = match collective {
            // A barrier has no data.
            Collective::Barrier => Call::barrier(),
            _ => Call::new(collective, count).dtype(dtype).root(root),
        };
        let issued = self.enter()?;
        let algorithm = forced(issued.algorithm, call);
        let choice = issued.cache.choice(Call { algorithm, ..call })?;
        drop(issued);
        let parts = &self.core.parts;
        let whole = with_breakdown(choice, &parts.topology(), &parts.tuning);
        whole.map_err(Error::usage)
    }
}
