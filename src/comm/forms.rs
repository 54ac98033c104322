//! Defines the collectives, each in all of its forms.
//!
//! Each row passed to [`in_place`] or [`into`] defines one collective, with its documentation. The
//! macro turns the row into a blocking method of [`Communicator`], a method that takes ownership of
//! a buffer and starts the collective on it, and a method of [`Scope`] that starts the collective
//! on a borrowed buffer. The functions that issue the calls are in `collectives`.

use super::Communicator;
use super::buffer::{Buffer, BufferMut};
use super::scope::{Scope, ScopedWork};
use super::work::{Work, WorkError};
use crate::error::Result;
use crate::op::ReduceOp;
use crate::plan::Collective;
use crate::protocol::call::Call;

/// Generates the documentation for a method that starts a collective.
macro_rules! started {
    ($name:ident, $waits:literal, $buffers:literal) => {
        concat!(
            "Starts [`Communicator::",
            stringify!($name),
            "`] and returns immediately. [`",
            $waits,
            "`] returns ",
            $buffers,
            ". [`Layout`](crate::Layout) describes blocks of different lengths.",
            "\n\n# Errors\nReturns an error if the call is invalid or the communicator has ",
            "failed. [`",
            $waits,
            "`] returns all other [errors](Communicator#errors)."
        )
    };
}

macro_rules! in_place {
    ($(
        $(#[$about:meta])*
        $name:ident($($argument:ident: $type:ty),*),
        $(#[$alias:meta])*
        $start:ident: $collective:ident;
    )*) => {
        /// Collectives in which each rank passes one buffer, whose contents the call replaces.
        impl Communicator {$(
            $(#[$about])*
            pub fn $name<B>(&self, buffer: &mut B $(, $argument: $type)*) -> Result<()>
            where
                B: BufferMut + ?Sized,
            {
                let call = Call::new(Collective::$collective, 0)$(.$argument($argument))*;
                self.in_place(call, buffer)
            }
        )*}

        /// Collectives that own their buffer while they are in flight.
        impl Communicator {$(
            #[doc = started!($name, "Work::wait", "the buffer")]
            $(#[$alias])*
            pub fn $start<B: BufferMut + Send + 'static>(
                &self,
                buffer: B
                $(, $argument: $type)*
            ) -> Result<Work<B>, WorkError<B>> {
                let call = Call::new(Collective::$collective, 0)$(.$argument($argument))*;
                self.start_in_place(call, buffer)
            }
        )*}

        /// Collectives that borrow their buffer.
        impl<'scope, 'buffers> Scope<'scope, 'buffers> {$(
            #[doc = started!($name, "ScopedWork::wait", "the reference to the buffer")]
            $(#[$alias])*
            pub fn $name<B: BufferMut + ?Sized>(
                &self,
                buffer: &'buffers mut B
                $(, $argument: $type)*
            ) -> Result<ScopedWork<'_, 'scope, 'buffers, &'buffers mut B>> {
                let call = Call::new(Collective::$collective, 0)$(.$argument($argument))*;
                self.start_in_place(call, buffer)
            }
        )*}
    };
}

macro_rules! into {
    ($(
        $(#[$about:meta])*
        $name:ident($($argument:ident: $type:ty),*),
        $(#[$alias:meta])*
        $start:ident: $collective:ident;
    )*) => {
        /// Collectives that read an input and write an output.
        impl Communicator {$(
            $(#[$about])*
            pub fn $name<I, O>(
                &self,
                input: &I,
                output: &mut O
                $(, $argument: $type)*
            ) -> Result<()>
            where
                I: Buffer + ?Sized,
                O: BufferMut<Element = I::Element> + ?Sized,
            {
                let call = Call::new(Collective::$collective, 0)$(.$argument($argument))*;
                self.run_into(call, input, output)
            }
        )*}

        /// Collectives that own an input and an output while they are in flight.
        impl Communicator {$(
            #[doc = started!($name, "Work::wait", "both buffers")]
            $(#[$alias])*
            pub fn $start<I, O>(
                &self,
                input: I,
                output: O
                $(, $argument: $type)*
            ) -> Result<Work<(I, O)>, WorkError<(I, O)>>
            where
                I: Buffer + Send + 'static,
                O: BufferMut<Element = I::Element> + Send + 'static,
            {
                let call = Call::new(Collective::$collective, 0)$(.$argument($argument))*;
                self.start_into_output(call, input, output)
            }
        )*}

        /// Collectives that borrow an input and an output.
        impl<'scope, 'buffers> Scope<'scope, 'buffers> {$(
            #[doc = started!($name, "ScopedWork::wait", "the reference to the output")]
            $(#[$alias])*
            pub fn $name<I, O>(
                &self,
                input: &'buffers I,
                output: &'buffers mut O
                $(, $argument: $type)*
            ) -> Result<ScopedWork<'_, 'scope, 'buffers, &'buffers mut O>>
            where
                I: Buffer + ?Sized,
                O: BufferMut<Element = I::Element> + ?Sized,
            {
                let call = Call::new(Collective::$collective, 0)$(.$argument($argument))*;
                self.start_into_output(call, input, output)
            }
        )*}
    };
}

in_place! {
    /// Replaces `buffer` on every rank with the reduction of all ranks' buffers.
    ///
    /// Every rank gets the same bits.
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let means = ringtree::simulate(2, |comm| {
    ///     let mut gradients = vec![comm.rank() as f32; 3];
    ///     comm.all_reduce(&mut gradients, ReduceOp::Avg).map(|()| gradients)
    /// });
    /// assert_eq!(means[0], Ok(vec![0.5; 3]));
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors).
    #[doc(alias("MPI_Allreduce", "ncclAllReduce"))]
    all_reduce(op: ReduceOp),
    #[doc(alias("MPI_Iallreduce"))]
    start_all_reduce: AllReduce;

    /// Replaces `buffer` on every rank with the buffer of `root`.
    ///
    /// ```
    /// let weights = ringtree::simulate(4, |comm| {
    ///     let mut weights = [comm.rank() as f64; 2];
    ///     comm.broadcast(&mut weights, 1).map(|()| weights)
    /// });
    /// assert_eq!(weights, vec![Ok([1.0, 1.0]); 4]);
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors).
    #[doc(alias("MPI_Bcast", "ncclBroadcast"))]
    broadcast(root: usize),
    #[doc(alias("MPI_Ibcast"))]
    start_broadcast: Broadcast;

    /// Replaces `buffer` on `root` with the reduction of all ranks' buffers. Afterwards, the
    /// contents of `buffer` are unspecified on all ranks except `root`.
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let sums = ringtree::simulate(4, |comm| {
    ///     let mut number = [1u64 << comm.rank()];
    ///     comm.reduce(&mut number, ReduceOp::Sum, 2).map(|()| number)
    /// });
    /// assert_eq!(sums[2], Ok([15]));
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors).
    #[doc(alias("MPI_Reduce", "ncclReduce"))]
    reduce(op: ReduceOp, root: usize),
    #[doc(alias("MPI_Ireduce"))]
    start_reduce: Reduce;

    /// Replaces this rank's own block of `buffer` with the reduction of that block across all
    /// ranks. Afterwards, the contents of the rest of the buffer are unspecified.
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let blocks = ringtree::simulate(2, |comm| {
    ///     let mut numbers = [1, 2, 3];
    ///     comm.reduce_scatter(&mut numbers, ReduceOp::Sum)?;
    ///     Ok::<_, ringtree::Error>(numbers[comm.block(3)].to_vec())
    /// });
    /// assert_eq!(blocks, [Ok(vec![2, 4]), Ok(vec![6])]);
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors).
    #[doc(alias("MPI_Reduce_scatter", "ncclReduceScatter"))]
    reduce_scatter(op: ReduceOp),
    #[doc(alias("MPI_Ireduce_scatter"))]
    start_reduce_scatter: ReduceScatter;

    /// Replaces `buffer` on every rank with the blocks of all ranks, in rank order. Each rank
    /// contributes only its own block of `buffer`.
    ///
    /// ```
    /// let gathered = ringtree::simulate(3, |comm| {
    ///     let mut ranks = [0u8; 3];
    ///     ranks[comm.rank()] = comm.rank() as u8;
    ///     comm.all_gather(&mut ranks).map(|()| ranks)
    /// });
    /// assert_eq!(gathered, vec![Ok([0, 1, 2]); 3]);
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors).
    #[doc(alias("MPI_Allgather", "ncclAllGather"))]
    all_gather(),
    #[doc(alias("MPI_Iallgather"))]
    start_all_gather: AllGather;

    /// Replaces `buffer` on `root` with the blocks of all ranks, in rank order. Each rank
    /// contributes only its own block of `buffer`. Afterwards, the contents of `buffer` are
    /// unspecified on all ranks except `root`.
    ///
    /// ```
    /// let gathered = ringtree::simulate(3, |comm| {
    ///     let mut ranks = [0u8; 3];
    ///     ranks[comm.rank()] = comm.rank() as u8;
    ///     comm.gather(&mut ranks, 2).map(|()| ranks)
    /// });
    /// assert_eq!(gathered[2], Ok([0, 1, 2]));
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors).
    #[doc(alias("MPI_Gather", "ncclGather"))]
    gather(root: usize),
    #[doc(alias("MPI_Igather"))]
    start_gather: Gather;

    /// Replaces each rank's own block of `buffer` with the corresponding block of the buffer on
    /// `root`. Afterwards, the contents of the rest of the buffer are unspecified, except on
    /// `root`, where the entire buffer remains unchanged.
    ///
    /// ```
    /// let blocks = ringtree::simulate(3, |comm| {
    ///     let mut numbers = [comm.rank() as u8 * 10; 6];
    ///     if comm.rank() == 1 {
    ///         numbers = [1, 2, 3, 4, 5, 6];
    ///     }
    ///     comm.scatter(&mut numbers, 1)?;
    ///     Ok::<_, ringtree::Error>(numbers[comm.block(6)].to_vec())
    /// });
    /// assert_eq!(blocks, [Ok(vec![1, 2]), Ok(vec![3, 4]), Ok(vec![5, 6])]);
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors).
    #[doc(alias("MPI_Scatter", "ncclScatter"))]
    scatter(root: usize),
    #[doc(alias("MPI_Iscatter"))]
    start_scatter: Scatter;

    /// Exchanges blocks between all ranks. Block j of rank i becomes block i of rank j. All blocks
    /// have the same length.
    ///
    /// ```
    /// let transposed = ringtree::simulate(2, |comm| {
    ///     let rank = comm.rank() as u8;
    ///     let mut row = [10 * rank, 10 * rank + 1];
    ///     comm.all_to_all(&mut row).map(|()| row)
    /// });
    /// assert_eq!(transposed, [Ok([0, 10]), Ok([1, 11])]);
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors), such as
    /// [`Usage`](crate::ErrorKind::Usage) if the length is not a multiple of the number of ranks.
    #[doc(alias("MPI_Alltoall", "ncclAlltoAll"))]
    all_to_all(),
    #[doc(alias("MPI_Ialltoall"))]
    start_all_to_all: AllToAll;
}

into! {
    /// Like [`Communicator::all_reduce`], but reads from `input`, which remains unchanged, and
    /// writes the result to `output`.
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let largest = ringtree::simulate(3, |comm| {
    ///     let mut output = [0];
    ///     comm.all_reduce_into(&[comm.rank() as i32], &mut output, ReduceOp::Max).map(|()| output)
    /// });
    /// assert_eq!(largest, vec![Ok([2]); 3]);
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors), such as
    /// [`Usage`](crate::ErrorKind::Usage) if the lengths differ.
    all_reduce_into(op: ReduceOp),
    start_all_reduce_into: AllReduce;

    /// Like [`Communicator::reduce`], but reads from `input`, which remains unchanged, and writes
    /// the result to `output`. The contents of `output` are unspecified on all ranks except `root`.
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let ends = ringtree::simulate(3, |comm| {
    ///     let (own, mut product) = ([comm.rank() as i64 + 2], [0]);
    ///     comm.reduce_into(&own, &mut product, ReduceOp::Prod, 0).map(|()| (own, product))
    /// });
    /// assert_eq!(ends[0], Ok(([2], [24])));
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors), such as
    /// [`Usage`](crate::ErrorKind::Usage) if the lengths differ.
    reduce_into(op: ReduceOp, root: usize),
    start_reduce_into: Reduce;

    /// Like [`Communicator::reduce_scatter`], but reads from `input`, which contains all blocks and
    /// remains unchanged, and writes this rank's own block of the result to `output`.
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let blocks = ringtree::simulate(3, |comm| {
    ///     let mut own = [0u16; 2];
    ///     comm.reduce_scatter_into(&[1u16, 2, 3, 4, 5, 6], &mut own, ReduceOp::Sum).map(|()| own)
    /// });
    /// assert_eq!(blocks, [Ok([3, 6]), Ok([9, 12]), Ok([15, 18])]);
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors), such as
    /// [`Usage`](crate::ErrorKind::Usage) if the length of `output` differs from that of the block,
    /// or if `op` is [`ReduceOp::PreMulSum`].
    #[doc(alias("MPI_Reduce_scatter_block", "reduce_scatter_tensor"))]
    reduce_scatter_into(op: ReduceOp),
    start_reduce_scatter_into: ReduceScatter;

    /// Replaces `output` on every rank with the inputs of all ranks, in rank order.
    ///
    /// ```
    /// let gathered = ringtree::simulate(2, |comm| {
    ///     let mut output = [0.0; 4];
    ///     comm.all_gather_into(&[comm.rank() as f32; 2], &mut output).map(|()| output)
    /// });
    /// assert_eq!(gathered[1], Ok([0.0, 0.0, 1.0, 1.0]));
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors), such as
    /// [`Usage`](crate::ErrorKind::Usage) if `input` and this rank's block of `output` have
    /// different lengths.
    #[doc(alias("MPI_Allgatherv", "all_gather_into_tensor"))]
    all_gather_into(),
    #[doc(alias("MPI_Iallgatherv"))]
    start_all_gather_into: AllGather;

    /// Replaces `output` on `root` with the inputs of all ranks, in rank order.
    ///
    /// Ranks other than `root` can pass an empty `output` because only the `output` on `root` is
    /// used. All inputs must have the same length, unless all ranks pass an `output` that has the
    /// same [counts](crate::Layout::Counts).
    ///
    /// ```
    /// use ringtree::Layout;
    /// let gathered = ringtree::simulate(3, |comm| {
    ///     let (own, mut all) = (vec![comm.rank(); comm.rank() + 1], Vec::new());
    ///     if comm.rank() == 0 {
    ///         all.resize(6, 0);
    ///     }
    ///     let counts = Layout::Counts(&[1, 2, 3]);
    ///     comm.gather_into(&to_i64(&own), &mut counts.of(&mut all), 0).map(|()| all)
    /// });
    /// assert_eq!(gathered[0], Ok(vec![0, 1, 1, 2, 2, 2]));
    /// # fn to_i64(ranks: &[usize]) -> Vec<i64> { ranks.iter().map(|rank| *rank as i64).collect() }
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors), such as
    /// [`Usage`](crate::ErrorKind::Usage) if a length does not match the layout.
    #[doc(alias("MPI_Gatherv"))]
    gather_into(root: usize),
    #[doc(alias("MPI_Igatherv"))]
    start_gather_into: Gather;

    /// Replaces `output` on every rank with that rank's block of the `input` passed by `root`.
    ///
    /// Ranks other than `root` can pass an empty `input` because only the `input` on `root` is
    /// used. All outputs must have the same length, unless all ranks pass an `input` that has the
    /// same [counts](crate::Layout::Counts).
    ///
    /// ```
    /// let dealt = ringtree::simulate(2, |comm| {
    ///     let all = if comm.rank() == 0 { vec![1.0, 2.0, 3.0, 4.0] } else { vec![] };
    ///     let mut own = [0.0f32; 2];
    ///     comm.scatter_into(&all, &mut own, 0).map(|()| own)
    /// });
    /// assert_eq!(dealt, [Ok([1.0, 2.0]), Ok([3.0, 4.0])]);
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors), such as
    /// [`Usage`](crate::ErrorKind::Usage) if a length does not match the layout.
    #[doc(alias("MPI_Scatterv"))]
    scatter_into(root: usize),
    #[doc(alias("MPI_Iscatterv"))]
    start_scatter_into: Scatter;

    /// Like [`Communicator::all_to_all`], but reads from `input`, writes to `output`, and accepts
    /// blocks of any length.
    ///
    /// The block for rank j has `send[j]` elements, and the block from rank i has `receive[i]`
    /// elements. Each rank needs to know only its own counts. If the counts of two ranks do not
    /// match, all ranks get an error that names both ranks, and no block is sent. If both layouts
    /// are [`Layout::Even`](crate::Layout::Even), all blocks have the same length.
    ///
    /// If the layouts have counts, the ranks first compare the counts by performing an all-reduce
    /// of a single integer. This all-reduce is a separate call, and its sequence number comes
    /// before that of the all-to-all. Methods that start the all-to-all asynchronously also wait
    /// for this all-reduce.
    ///
    /// ```
    /// use ringtree::Layout;
    /// // Rank 0 has three elements for rank 1 and keeps none; rank 1 has one for each.
    /// let ends = ringtree::simulate(2, |comm| {
    ///     let (input, send, receive) = match comm.rank() {
    ///         0 => (vec![1, 2, 3], [0, 3], [0, 1]),
    ///         _ => (vec![4, 5], [1, 1], [3, 1]),
    ///     };
    ///     let mut output = vec![0; receive.iter().sum()];
    ///     let (send, receive) = (Layout::Counts(&send), Layout::Counts(&receive));
    ///     comm.all_to_all_into(&send.of(&input), &mut receive.of(&mut output)).map(|()| output)
    /// });
    /// assert_eq!(ends, [Ok(vec![4]), Ok(vec![1, 2, 3, 5])]);
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors), such as:
    ///
    /// - [`Usage`](crate::ErrorKind::Usage) if only one of the layouts has counts, if the counts do
    ///   not match the buffers, or if `send` and `receive` give different lengths for this rank's
    ///   own block.
    /// - [`Mismatch`](crate::ErrorKind::Mismatch) if the counts of two ranks do not match.
    #[doc(alias("MPI_Alltoallv", "all_to_all_single"))]
    all_to_all_into(),
    #[doc(alias("MPI_Ialltoallv"))]
    start_all_to_all_into: AllToAll;
}
