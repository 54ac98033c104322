//! Folds and casts, checked when they are made, so that devices need not ask again.

use super::memory::{PinnedSpan, Span};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::limits::{DEVICE_DESTINATIONS_MAX, DEVICE_SOURCES_MAX, WORLD_SIZE_MAX};
use crate::op::ReduceOp;

/// Destinations' elements i = the left fold of the operands' elements i, in order, rounded once.
#[derive(Clone, Copy, Debug)]
pub struct Fold<'a> {
    dtype: Dtype,
    op: ReduceOp,
    operands: &'a [Span],
    destinations: &'a [Span],
    divisor: Option<usize>,
}

impl<'a> Fold<'a> {
    /// A fold of 1 to [`DEVICE_SOURCES_MAX`] operands into 1 to [`DEVICE_DESTINATIONS_MAX`]
    /// destinations, which get the same. A destination may be one of the operands; otherwise they
    /// do not overlap. `divisor` = `Some(n)` divides the result, for a mean's last fold.
    ///
    /// # Errors
    /// [`Error::Usage`]: any of that does not hold; lengths that are different or not of whole
    /// elements; an operator that is not defined for the type; a divisor of zero, too large, or for
    /// another operator than `Avg` and `Sum`.
    pub fn new(
        dtype: Dtype,
        op: ReduceOp,
        operands: &'a [Span],
        destinations: &'a [Span],
        divisor: Option<usize>,
    ) -> Result<Self> {
        check_count(operands, DEVICE_SOURCES_MAX, "operands")?;
        check_count(destinations, DEVICE_DESTINATIONS_MAX, "destinations")?;
        if !op.supports(dtype) {
            return refuse(format!("{op} is not defined for {dtype}"));
        }
        let bytes = operands[0].bytes();
        let mut spans = operands.iter().chain(destinations);
        if let Some(other) = spans.find(|span| span.bytes() != bytes) {
            let other = other.bytes();
            return refuse(format!("a fold of {bytes} bytes with {other}"));
        }
        if !bytes.is_multiple_of(dtype.size()) {
            return refuse(format!("{bytes} bytes are not whole elements of {dtype}"));
        }
        if let Some(divisor) = divisor
            && !((1..=WORLD_SIZE_MAX).contains(&divisor)
                && matches!(op, ReduceOp::Avg | ReduceOp::Sum))
        {
            return refuse(format!("a fold by {op} is not divided by {divisor}"));
        }
        for (index, to) in destinations.iter().enumerate() {
            let mut crossed = operands
                .iter()
                .filter(|from| !from.is_same(to))
                .chain(&destinations[..index]);
            if crossed.any(|other| other.overlaps(to)) {
                return refuse(format!(
                    "destination {index} of a fold overlaps another span"
                ));
            }
        }
        Ok(Self {
            dtype,
            op,
            operands,
            destinations,
            divisor,
        })
    }

    /// The type of the elements.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// How they are combined.
    #[must_use]
    pub fn op(&self) -> ReduceOp {
        self.op
    }

    /// How many elements an operand has.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.operands[0].bytes() / self.dtype.size()
    }

    /// What is folded, in this order.
    #[must_use]
    pub fn operands(&self) -> &'a [Span] {
        self.operands
    }

    /// Where the result goes.
    #[must_use]
    pub fn destinations(&self) -> &'a [Span] {
        self.destinations
    }

    /// What the result is divided by.
    #[must_use]
    pub fn divisor(&self) -> Option<usize> {
        self.divisor
    }
}

/// Destination's element i = source's element i times `scale`, in f32, rounded to nearest even.
#[derive(Clone, Copy, Debug)]
pub struct Cast<'a> {
    from: &'a Span,
    from_dtype: Dtype,
    to: &'a Span,
    to_dtype: Dtype,
    scale: f32,
}

impl<'a> Cast<'a> {
    /// A conversion from `f32` to `f16` or `bf16`, or back, of spans that do not overlap.
    ///
    /// # Errors
    /// [`Error::Usage`]: other types, overlapping spans, or different numbers of elements.
    pub fn new(
        from: &'a Span,
        from_dtype: Dtype,
        to: &'a Span,
        to_dtype: Dtype,
        scale: f32,
    ) -> Result<Self> {
        let is_half = |dtype| matches!(dtype, Dtype::F16 | Dtype::Bf16);
        let known = match (from_dtype, to_dtype) {
            (Dtype::F32, to) => is_half(to),
            (from, Dtype::F32) => is_half(from),
            _ => false,
        };
        if !known {
            return refuse(format!("there is no cast from {from_dtype} to {to_dtype}"));
        }
        let elements = from.bytes() / from_dtype.size();
        if from.bytes() != elements * from_dtype.size() || to.bytes() != elements * to_dtype.size()
        {
            let (from, to) = (from.bytes(), to.bytes());
            return refuse(format!(
                "a cast from {from} bytes of {from_dtype} to {to} of {to_dtype}"
            ));
        }
        if from.overlaps(to) {
            return refuse("source and destination of a cast overlap".into());
        }
        Ok(Self {
            from,
            from_dtype,
            to,
            to_dtype,
            scale,
        })
    }

    /// What is converted, and its type.
    #[must_use]
    pub fn from(&self) -> (&'a Span, Dtype) {
        (self.from, self.from_dtype)
    }

    /// Where the result goes, and its type.
    #[must_use]
    pub fn to(&self) -> (&'a Span, Dtype) {
        (self.to, self.to_dtype)
    }

    /// What elements are multiplied by.
    #[must_use]
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// How many elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.from.bytes() / self.from_dtype.size()
    }
}

/// A copy is between equally many bytes that do not overlap.
pub(super) fn check_copy(from: &Span, to: &Span) -> Result<()> {
    check_lengths(from.bytes(), to.bytes())?;
    if from.overlaps(to) {
        return refuse("source and destination of a copy overlap".into());
    }
    Ok(())
}

/// A copy between host and device is of equally many bytes.
pub(super) fn check_host_copy(host: &PinnedSpan, device: &Span) -> Result<()> {
    check_lengths(host.bytes(), device.bytes())
}

fn check_lengths(one: usize, other: usize) -> Result<()> {
    if one != other {
        return refuse(format!("a copy between {one} bytes and {other}"));
    }
    Ok(())
}

fn check_count(spans: &[Span], most: usize, what: &str) -> Result<()> {
    if !(1..=most).contains(&spans.len()) {
        let count = spans.len();
        return refuse(format!("a fold has 1 to {most} {what}, not {count}"));
    }
    Ok(())
}

fn refuse<T>(why: String) -> Result<T> {
    Err(Error::Usage(why))
}
