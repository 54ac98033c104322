//! Runs collectives that are selected at run time, and predicts how a call would run.

use super::Communicator;
use super::buffer::BufferMut;
use super::collectives::forced;
use crate::dtype::Dtype;
use crate::engine::bind::Placement;
use crate::engine::cache::Key;
use crate::error::{Error, Result};
use crate::op::ReduceOp;
use crate::plan::spec::{Algorithm, Collective};
use crate::protocol::call::Call;

impl Communicator {
    /// Runs `collective` in place. This method is intended for programs that select the collective
    /// at run time, such as benchmarks.
    ///
    /// `op` and `root` are ignored if the collective does not use them. A barrier ignores the
    /// buffer as well.
    ///
    /// ```
    /// use ringtree::{Collective, ReduceOp};
    /// let ends = ringtree::simulate(2, |comm| {
    ///     let mut numbers = [comm.rank() as f32; 2];
    ///     for collective in [Collective::AllReduce, Collective::Broadcast, Collective::Barrier] {
    ///         comm.collective(collective, &mut numbers, ReduceOp::Sum, 0)?;
    ///     }
    ///     Ok::<_, ringtree::Error>(numbers)
    /// });
    /// assert_eq!(ends, vec![Ok([1.0; 2]); 2]);
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors).
    pub fn collective<B>(
        &self,
        collective: Collective,
        buffer: &mut B,
        op: ReduceOp,
        root: usize,
    ) -> Result<()>
    where
        B: BufferMut + ?Sized,
    {
        if collective == Collective::Barrier {
            return self.barrier();
        }
        let call = Call::new(collective, 0);
        let root = if collective.is_rooted() { root } else { 0 };
        let op = call.op.map(|_| op);
        self.in_place(Call { op, root, ..call }, buffer)
    }

    /// Returns the algorithm that an in-place call would use, together with the predicted duration
    /// of the call in seconds.
    ///
    /// The prediction is for a buffer of `count` elements of type `dtype`. Pass 0 as `root` if the
    /// collective does not have a root.
    ///
    /// ```
    /// use ringtree::Dtype;
    /// use ringtree::plan::{Algorithm, Collective};
    /// let previews = ringtree::simulate(2, |comm| {
    ///     comm.use_algorithm(Some(Algorithm::Ring))?;
    ///     comm.preview(Collective::AllReduce, 1000, Dtype::F32, 0)
    /// });
    /// let (algorithm, seconds) = previews[0].clone()?;
    /// assert_eq!(algorithm, Algorithm::Ring);
    /// assert!(seconds > 0.0);
    /// # Ok::<(), ringtree::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`Usage`](crate::ErrorKind::Usage) if `root` is out of range or the collective does
    /// not support `count` elements.
    pub fn preview(
        &self,
        collective: Collective,
        count: usize,
        dtype: Dtype,
        root: usize,
    ) -> Result<(Algorithm, f64)> {
        self.check_peer("root", root)?;
        let call = call_of(collective, count, dtype, root);
        let issued = &mut *self.enter()?;
        let key = Key {
            call: Call {
                algorithm: forced(issued.algorithm, call),
                ..call
            },
            placement: Placement::InPlace,
            is_exposed: false,
        };
        let prepared = issued.cache.get(key)?;
        let algorithm = prepared.call.algorithm.unwrap_or(Algorithm::Flat);
        Ok((algorithm, prepared.predicted_s))
    }

    /// Returns a one-line explanation of the algorithm choice.
    ///
    /// The line names the algorithm that [`Communicator::preview`] returns for these arguments, and
    /// the next-best algorithm. It also shows the difference between the two and a breakdown of the
    /// predicted time.
    ///
    /// ```
    /// use ringtree::{Collective, Dtype};
    ///
    /// let lines = ringtree::simulate(8, |comm| {
    ///     comm.explain(Collective::AllReduce, 2, Dtype::F32, 0)
    /// });
    /// let line = lines[0].clone()?;
    /// assert!(line.starts_with("all-reduce of 8 B over 8 ranks: "), "{line}");
    /// assert!(line.contains("; next best ") && line.contains("(o), "), "{line}");
    /// # Ok::<(), ringtree::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`Usage`](crate::ErrorKind::Usage) if `root` is out of range or the collective does
    /// not support `count` elements.
    pub fn explain(
        &self,
        collective: Collective,
        count: usize,
        dtype: Dtype,
        root: usize,
    ) -> Result<String> {
        self.check_peer("root", root)?;
        let call = call_of(collective, count, dtype, root);
        let issued = self.enter()?;
        let algorithm = forced(issued.algorithm, call);
        let choice = issued.cache.choice(Call { algorithm, ..call })?;
        drop(issued);
        let parts = &self.core.parts;
        let line = choice.explain_parts(&parts.topology().hosts, &parts.tuning);
        line.map_err(Error::usage)
    }
}

fn call_of(collective: Collective, count: usize, dtype: Dtype, root: usize) -> Call {
    match collective {
        // A barrier has no data.
        Collective::Barrier => Call::barrier(),
        _ => Call::new(collective, count).dtype(dtype).root(root),
    }
}
