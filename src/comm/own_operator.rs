//! All-reduce by an operator of the program's own.
//!
//! The contributions are gathered piece by piece, and every rank folds them itself, on the thread
//! that called: the engine never runs a program's function.

use super::Communicator;
use super::buffer::{BufferMut, written_on_host};
use crate::dtype::{Dtype, Element};
use crate::error::{Error, Result};
use crate::limits::{OPERATOR_NAME_BYTES_MAX, OPERATOR_SCRATCH_BYTES};
use bytemuck::Zeroable;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What ranks compare before they fold, in bytes: a count, a type and a name.
const HEADER_BYTES: usize = 9 + OPERATOR_NAME_BYTES_MAX;

impl Communicator {
    /// Every rank's `buffer` becomes the fold of all of them by `combine`, element by element, in
    /// rank order from the left: combine(combine(rank 0's, rank 1's), rank 2's) and so on.
    ///
    /// `name` tells operators apart: ranks that pass different ones get an error that says so. All
    /// ranks fold the same elements in the same order, so all end with the same bits if `combine`
    /// depends on nothing but its arguments. It should be associative and commutative, for a later
    /// version may fold in another order.
    ///
    /// Every rank receives every other rank's whole buffer, in pieces: n − 1 times the bytes,
    /// where a sum by [`Communicator::all_reduce`] takes twice. This takes several calls, between
    /// which no other thread may call the communicator.
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
    /// Any of [`Error`]. [`Error::mismatch`] on every rank if ranks pass different names, lengths
    /// or types. [`Error::usage`] for a device's buffer, a name longer than 64 bytes, and on a rank
    /// on which `combine` panics: its buffer is unspecified then, and the communicator is fine.
    pub fn all_reduce_with<B>(
        &self,
        buffer: &mut B,
        name: &str,
        combine: impl Fn(B::Element, B::Element) -> B::Element,
    ) -> Result<()>
    where
        B: BufferMut + ?Sized,
    {
        let buffer = written_on_host(buffer)?;
        self.compare_operators(name, buffer.len(), B::Element::DTYPE)?;
        let world_size = self.world_size();
        let element_bytes = size_of::<B::Element>() * world_size;
        let mut panicked = false;
        for piece in buffer.chunks_mut((OPERATOR_SCRATCH_BYTES / element_bytes).max(1)) {
            let mut all = vec![B::Element::zeroed(); piece.len() * world_size];
            all[piece.len() * self.rank()..][..piece.len()].copy_from_slice(piece);
            self.all_gather(&mut all)?;
            // After a panic the others' pieces still have to be served.
            panicked = panicked || !folds(&all, piece, &combine);
        }
        if panicked {
            let rank = self.rank();
            let what = format!("the operator '{name}' panicked on rank {rank}");
            return Err(Error::usage(what));
        }
        Ok(())
    }

    /// An error on every rank unless all reduce so many elements of one type by one operator.
    fn compare_operators(&self, name: &str, count: usize, dtype: Dtype) -> Result<()> {
        if name.len() > OPERATOR_NAME_BYTES_MAX {
            return Err(Error::usage(format!(
                "the operator's name '{name}' has {} bytes; at most {OPERATOR_NAME_BYTES_MAX} are \
                 taken",
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
                "rank 0 reduces {}, rank {rank} {}; all ranks must reduce the same by the same \
                 operator",
                describe(&headers[0]),
                describe(&headers[rank])
            ))),
        }
    }
}

/// Folds the ranks' equally long pieces in `all` into `piece`; whether `combine` did not panic.
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
