//! Reduces lists of tensors in one call.

use super::Communicator;
use crate::dtype::Element;
use crate::error::Result;
use crate::limits::BUCKET_BYTES_MAX;
use crate::op::ReduceOp;

impl Communicator {
    /// Reduces every tensor of a list across all ranks, in place. Every rank gets all results.
    ///
    /// Small tensors are copied into a common buffer and reduced together, so a list of many small
    /// tensors takes about as long as one large tensor. All ranks must pass tensors of the same
    /// lengths in the same order. To overlap communication with the backward pass of a training
    /// program, use `ddp::DataParallel` instead.
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let ends = ringtree::simulate(3, |comm| {
    ///     let (mut weight, mut bias) = ([1.0f32; 6], [comm.rank() as f32; 2]);
    ///     comm.all_reduce_many(&mut [&mut weight, &mut bias], ReduceOp::Sum)?;
    ///     Ok::<_, ringtree::Error>((weight, bias))
    /// });
    /// assert_eq!(ends, vec![Ok(([3.0; 6], [3.0; 2])); 3]);
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors). After an error, some
    /// tensors may already contain results.
    #[doc(alias("MPI_Allreduce", "all_reduce_coalesced"))]
    pub fn all_reduce_many<T: Element>(
        &self,
        tensors: &mut [&mut [T]],
        op: ReduceOp,
    ) -> Result<()> {
        packed(tensors, |flat| self.all_reduce(flat, op))
    }
}

/// Copies as many tensors as fit into one bucket to a common buffer, calls `run` with that buffer,
/// and copies the results back. Repeats this until all tensors are done. If only one tensor fits,
/// or if a tensor is larger than a bucket, calls `run` with the tensor itself.
pub(crate) fn packed<T: Element>(
    tensors: &mut [&mut [T]],
    run: impl Fn(&mut [T]) -> Result<()>,
) -> Result<()> {
    let room = BUCKET_BYTES_MAX / size_of::<T>();
    let mut flat = Vec::new();
    let mut rest = tensors;
    while !rest.is_empty() {
        let mut elements = 0;
        let fitting = rest.iter().take_while(|one| {
            elements += one.len();
            elements <= room
        });
        let together = fitting.count().max(1);
        let (now, later) = rest.split_at_mut(together);
        rest = later;
        if let [one] = now {
            run(one)?;
            continue;
        }
        flat.clear();
        now.iter().for_each(|one| flat.extend_from_slice(one));
        run(&mut flat)?;
        let mut from = flat.as_slice();
        for one in now {
            let (own, others) = from.split_at(one.len());
            one.copy_from_slice(own);
            from = others;
        }
    }
    Ok(())
}
