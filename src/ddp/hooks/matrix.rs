//! Implements the linear algebra for a low-rank approximation M ≈ P·Qᵀ.
//!
//! M is stored row by row. P and Q are stored column by column, so that every inner loop reads
//! memory in order. The code uses no fused multiplication, and the square root is the only library
//! function. Ranks therefore compute the same bits from the same operands on every CPU.

/// Minimum compression factor. A lower factor is not worth the error.
const GAIN_MIN: usize = 2;
/// If less than this fraction of a column's length remains after projection, the column counts as
/// dependent on the previous columns.
const DEPENDENT: f64 = 1e-10;
/// Number of partial sums in a dot product. They are independent so that the compiler can use
/// vector instructions.
const LANES: usize = 16;

/// Extents of a matrix and of its approximation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) rank: usize,
}

impl Shape {
    /// Creates the shape of a matrix whose number of rows is the first extent and whose number of
    /// columns is the product of the other extents. The rank of its approximation is at most
    /// `rank`. Returns `None` if the approximation does not compress enough.
    pub(super) fn new(extents: &[usize], rank: usize) -> Option<Self> {
        let [rows, others @ ..] = extents else {
            return None;
        };
        let columns: usize = others.iter().product();
        let rank = rank.min(*rows).min(columns);
        let shape = Self {
            rows: *rows,
            columns,
            rank,
        };
        let sent = shape.left_count() + shape.right_count();
        (sent > 0 && sent * GAIN_MIN <= rows * columns).then_some(shape)
    }

    /// Returns the number of elements in P.
    pub(super) fn left_count(&self) -> usize {
        self.rank * self.rows
    }

    /// Returns the number of elements in Q.
    pub(super) fn right_count(&self) -> usize {
        self.rank * self.columns
    }
}

/// Computes P = M·Q.
pub(super) fn left_of(shape: Shape, matrix: &[f32], right: &[f32], left: &mut [f32]) {
    for (at, row) in matrix.chunks_exact(shape.columns).enumerate() {
        for (number, column) in right.chunks_exact(shape.columns).enumerate() {
            left[number * shape.rows + at] = dot(row, column);
        }
    }
}

/// Computes Q = Mᵀ·P.
pub(super) fn right_of(shape: Shape, matrix: &[f32], left: &[f32], right: &mut [f32]) {
    right.fill(0.0);
    for (at, row) in matrix.chunks_exact(shape.columns).enumerate() {
        for (number, column) in right.chunks_exact_mut(shape.columns).enumerate() {
            add_multiple(column, left[number * shape.rows + at], row);
        }
    }
}

/// Computes row `at` of P·Qᵀ.
pub(super) fn product_row(shape: Shape, at: usize, left: &[f32], right: &[f32], row: &mut [f32]) {
    row.fill(0.0);
    for (number, column) in right.chunks_exact(shape.columns).enumerate() {
        add_multiple(row, left[number * shape.rows + at], column);
    }
}

fn add_multiple(to: &mut [f32], factor: f32, from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += factor * from;
    }
}

fn dot(one: &[f32], other: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (ones, others) = (one.chunks_exact(LANES), other.chunks_exact(LANES));
    let rest = ones.remainder().iter().zip(others.remainder());
    let rest: f32 = rest.map(|(one, other)| one * other).sum();
    for (one, other) in ones.zip(others) {
        for (sum, (one, other)) in sums.iter_mut().zip(one.iter().zip(other)) {
            *sum += one * other;
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// Makes columns of `rows` elements orthonormal, in order, with the Gram-Schmidt process in f64. A
/// column that depends on previous columns becomes zero.
///
/// Projecting twice is enough: Giraud, Langou, Rozložník, "The loss of orthogonality in the
/// Gram-Schmidt orthogonalization process" (2005).
pub(super) fn orthonormalize(rows: usize, columns: &mut [f32]) {
    let mut done: Vec<Vec<f64>> = Vec::new();
    for column in columns.chunks_exact_mut(rows) {
        let mut wide: Vec<_> = column.iter().copied().map(f64::from).collect();
        let before = length(&wide);
        for earlier in done.iter().chain(&done) {
            let part = dot_wide(&wide, earlier);
            for (wide, earlier) in wide.iter_mut().zip(earlier) {
                *wide -= part * earlier;
            }
        }
        let after = length(&wide);
        let is_new = after > before * DEPENDENT;
        for (narrow, wide) in column.iter_mut().zip(&mut wide) {
            *wide = if is_new { *wide / after } else { 0.0 };
            *narrow = *wide as f32;
        }
        done.push(wide);
    }
}

fn dot_wide(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

fn length(vector: &[f64]) -> f64 {
    dot_wide(vector, vector).sqrt()
}

#[cfg(test)]
mod tests;
