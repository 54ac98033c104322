//! Collectives as values: any of them called in place, and what would run.

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
    /// Any collective in place, for programs to which it is a value, such as benchmarks. `op` and
    /// `root` count where the collective has one; a barrier leaves the buffer alone.
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
    /// Any of [`Error`].
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

    /// What would run for a call on `count` elements of `dtype` from or to `root` (0 where there is
    /// none), and the seconds it is expected to take.
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
    /// [`Error::usage`] if `root` is no rank.
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

    /// One line that says what would run for such a call, as [`Communicator::preview`] has it, over
    /// what it was chosen and by how much, and what its predicted time is made of.
    ///
    /// ```
    /// use ringtree::{Collective, Dtype};
    ///
    /// let lines = ringtree::simulate(8, |comm| {
    ///     comm.explain(Collective::AllReduce, 2, Dtype::F32, 0)
    /// });
    /// let line = lines[0].clone()?;
    /// assert!(line.starts_with("all-reduce of 8 B over 8 ranks: "), "{line}");
    /// assert!(line.contains("; next best ") && line.contains(" for messages (o)"), "{line}");
    /// # Ok::<(), ringtree::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::usage`] if `root` is no rank.
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
        let parts = &self.0.parts;
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
