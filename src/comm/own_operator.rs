//! Implements all-reduce with a custom operator.
//!
//! Contributions are gathered piece by piece. Every rank combines them on the calling thread
//! because the engine never runs functions that the program supplies.

use super::Communicator;
use super::buffer::{BufferMut, writable_on_host};
use crate::dtype::{Dtype, Element};
use crate::error::{Error, Result};
use crate::limits::{OPERATOR_NAME_BYTES_MAX, OPERATOR_SCRATCH_BYTES};
use bytemuck::Zeroable;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Size, in bytes, of the header that ranks compare before they reduce. It contains the number of
/// elements, their type and the name of the operator.
const HEADER_BYTES: usize = 9 + OPERATOR_NAME_BYTES_MAX;

impl Communicator {
    /// Replaces `buffer` on every rank with the reduction of all ranks' buffers, using the function
    /// `combine`.
    ///
    /// Each element is reduced from left to right, in rank order: `combine` is applied to the
    /// elements of ranks 0 and 1, then to the result and the element of rank 2, and so on. All
    /// ranks combine the same elements in the same order, so they get the same bits, provided that
    /// the result of `combine` depends only on its arguments. `combine` should be associative and
    /// commutative because a later version of ringtree may combine elements in a different order.
    ///
    /// `name` identifies the operator. If ranks pass different names, all ranks get an error.
    ///
    /// Every rank receives the complete buffers of all other ranks, in pieces. With n ranks, each
    /// rank receives n − 1 times the size of the buffer, whereas a sum with
    /// [`Communicator::all_reduce`] requires each rank to receive only twice that size. This method
    /// makes several calls, and no other thread may use the communicator between them.
    ///
    /// ```
    /// // The element that is largest in magnitude, with its sign:
    /// let peaks = ringtree::simulate(3, |comm| {
    ///     let mut peak = [[1.0, -5.0, 3.0][comm.rank()], 0.5];
    ///     let larger = |a: f32, b: f32| if b.abs() > a.abs() { b } else { a };
    ///     comm.all_reduce_with(&mut peak, "largest magnitude", larger).map(|()| peak)
    /// });
    /// assert_eq!(peaks, vec![Ok([-5.0, 0.5]); 3]);
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors), such as:
    ///
    /// - [`Mismatch`](crate::ErrorKind::Mismatch) on every rank if ranks pass different names,
    ///   lengths or types. In this case, the communicator remains usable.
    /// - [`Usage`](crate::ErrorKind::Usage) if the buffer is in device memory or the name is longer
    ///   than 64 bytes.
    /// - [`Usage`](crate::ErrorKind::Usage) if `combine` panics. Only the rank on which it panics
    ///   gets this error, and the contents of that rank's buffer are then unspecified.
    #[doc(alias("MPI_Op_create"))]
    pub fn all_reduce_with<B>(
        &self,
        buffer: &mut B,
        name: &str,
        combine: impl Fn(B::Element, B::Element) -> B::Element,
    ) -> Result<()>
    where
        B: BufferMut + ?Sized,
    {
        let buffer = writable_on_host(buffer)?;
        self.compare_operators(name, buffer.len(), B::Element::DTYPE)?;
        let world_size = self.world_size();
        let element_bytes = size_of::<B::Element>() * world_size;
        let mut panicked = false;
        for piece in buffer.chunks_mut((OPERATOR_SCRATCH_BYTES / element_bytes).max(1)) {
            let mut all = vec![B::Element::zeroed(); piece.len() * world_size];
            all[piece.len() * self.rank()..][..piece.len()].copy_from_slice(piece);
            self.all_gather(&mut all)?;
            // After a panic, the other ranks still need this rank's contributions.
            panicked = panicked || !folds(&all, piece, &combine);
        }
        if panicked {
            let rank = self.rank();
            let what = format!("the operator '{name}' panicked on rank {rank}");
            return Err(Error::usage(what));
        }
        Ok(())
    }

    /// Returns an error on every rank unless all ranks pass the same count, type and name.
    fn compare_operators(&self, name: &str, count: usize, dtype: Dtype) -> Result<()> {
        if name.len() > OPERATOR_NAME_BYTES_MAX {
            return Err(Error::usage(format!(
                "the operator name '{name}' has {} bytes, which exceeds the limit of \
                 {OPERATOR_NAME_BYTES_MAX}; use a shorter name",
                name.len()
            )));
        }
        let mut headers = vec![0; HEADER_BYTES * self.world_size()];
        let own = &mut headers[HEADER_BYTES * self.rank()..][..HEADER_BYTES];
        own[..8].copy_from_slice(&(count as u64).to_le_bytes());
        own[8] = dtype.code();
        own[9..][..name.len()].copy_from_slice(name.as_bytes());
        self.all_gather(&mut headers)?;
        let (headers, _) = headers.as_chunks::<HEADER_BYTES>();
        match headers.iter().position(|header| *header != headers[0]) {
            None => Ok(()),
            Some(rank) => Err(Error::mismatch(format!(
                "rank 0 reduces {}, but rank {rank} reduces {}; pass the same length, type and \
                 operator on all ranks",
                describe(&headers[0]),
                describe(&headers[rank])
            ))),
        }
    }
}

/// Reduces the pieces of all ranks, which are stored one after another in `all` and have the same
/// length, into `piece`. Returns `false` if `combine` panicked.
fn folds<T: Element>(all: &[T], piece: &mut [T], combine: &impl Fn(T, T) -> T) -> bool {
    let length = piece.len();
    let fold = || {
        for (index, element) in piece.iter_mut().enumerate() {
            let operands = all[index..].iter().step_by(length).copied();
            *element = operands.reduce(combine).unwrap_or(*element);
        }
    };
    catch_unwind(AssertUnwindSafe(fold)).is_ok()
}

fn describe(header: &[u8; HEADER_BYTES]) -> String {
    let (count, rest) = header.split_at(8);
    let count = u64::from_le_bytes(count.try_into().unwrap_or_default());
    let dtype = Dtype::from_code(rest[0]).map_or("elements", Dtype::name);
    let name = String::from_utf8_lossy(&rest[1..]);
    format!("{count} {dtype} by '{}'", name.trim_end_matches('\0'))
}
