//! Multiplies matrices in blocks that the compiler can keep in vector registers.

/// Number of rows in a tile of the result.
const TILE_ROWS: usize = 4;
/// Number of columns in a tile of the result.
const TILE_COLUMNS: usize = 8;

/// A matrix whose values are in a slice. Its transpose uses the same values with the two steps
/// swapped.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_step: usize,
    column_step: usize,
}

impl<'a> Matrix<'a> {
    /// Creates a matrix with `columns` columns from `values`, which contains one row after the
    /// other.
    pub(crate) fn new(values: &'a [f32], columns: usize) -> Self {
        assert_eq!(
            values.len() % columns,
            0,
            "the values must form complete rows"
        );
        Matrix {
            values,
            rows: values.len() / columns,
            columns,
            row_step: columns,
            column_step: 1,
        }
    }

    /// Returns the transpose, without moving values.
    pub(crate) fn transposed(self) -> Self {
        Matrix {
            values: self.values,
            rows: self.columns,
            columns: self.rows,
            row_step: self.column_step,
            column_step: self.row_step,
        }
    }

    /// Copies the matrix into strips of `width` rows. Each strip is stored column by column. The
    /// last strip is padded with zeros.
    fn strips(self, width: usize) -> Vec<f32> {
        let strip_count = self.rows.div_ceil(width);
        let mut packed = vec![0.0; strip_count * self.columns * width];
        for (strip, block) in packed.chunks_exact_mut(self.columns * width).enumerate() {
            let first = strip * width;
            let present = width.min(self.rows - first);
            for (column, cell) in block.chunks_exact_mut(width).enumerate() {
                let start = first * self.row_step + column * self.column_step;
                for (row, value) in cell[..present].iter_mut().enumerate() {
                    *value = self.values[start + row * self.row_step];
                }
            }
        }
        packed
    }
}

/// Adds the product of `left` and `right` to `sum`, a matrix that is stored row by row.
pub(crate) fn add_product(sum: &mut [f32], left: Matrix<'_>, right: Matrix<'_>) {
    let inner = left.columns;
    assert_eq!(inner, right.rows, "the inner sizes must match");
    assert_eq!(
        sum.len(),
        left.rows * right.columns,
        "the sum must have the size of the product"
    );
    let left_strips = left.strips(TILE_ROWS);
    let right_strips = right.transposed().strips(TILE_COLUMNS);
    let width = right.columns;
    for (across, right_strip) in right_strips.chunks_exact(inner * TILE_COLUMNS).enumerate() {
        let first_column = across * TILE_COLUMNS;
        let tile_width = TILE_COLUMNS.min(width - first_column);
        for (down, left_strip) in left_strips.chunks_exact(inner * TILE_ROWS).enumerate() {
            let tile = multiply_strips(left_strip, right_strip);
            let rows = sum.chunks_exact_mut(width).skip(down * TILE_ROWS);
            for (row, computed) in rows.zip(&tile) {
                let target = &mut row[first_column..first_column + tile_width];
                for (value, addend) in target.iter_mut().zip(computed) {
                    *value += addend;
                }
            }
        }
    }
}

/// Returns the product of a strip of rows and a strip of columns.
fn multiply_strips(left: &[f32], right: &[f32]) -> [[f32; TILE_COLUMNS]; TILE_ROWS] {
    let mut tile = [[0.0; TILE_COLUMNS]; TILE_ROWS];
    let (left, _) = left.as_chunks::<TILE_ROWS>();
    let (right, _) = right.as_chunks::<TILE_COLUMNS>();
    for (left, right) in left.iter().zip(right) {
        for row in 0..TILE_ROWS {
            for column in 0..TILE_COLUMNS {
                tile[row][column] += left[row] * right[column];
            }
        }
    }
    tile
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Tests all sizes, including those with incomplete tiles, and all combinations of
        /// transposed operands.
        #[test]
        fn product_matches_sum_of_products(
            rows in 1..11usize, inner in 1..11usize, columns in 1..19usize,
            left_is_turned: bool, right_is_turned: bool, seed: u64,
        ) {
            let mut random = super::super::random::Random::new(seed);
            let mut whole = |count| -> Vec<f32> {
                (0..count).map(|_| (random.bits() % 17) as f32 - 8.0).collect()
            };
            let (left, right) = (whole(rows * inner), whole(inner * columns));
            let before = whole(rows * columns);
            let view = |values, columns, turned, turned_columns| match turned {
                true => Matrix::new(values, turned_columns).transposed(),
                false => Matrix::new(values, columns),
            };
            let mut sum = before.clone();
            add_product(
                &mut sum,
                view(&left, inner, left_is_turned, rows),
                view(&right, columns, right_is_turned, inner),
            );
            let at = |values: &[f32], row, column, rows, columns, turned| match turned {
                true => values[column * rows + row],
                false => values[row * columns + column],
            };
            for row in 0..rows {
                for column in 0..columns {
                    let product: f32 = (0..inner).map(|k| {
                        at(&left, row, k, rows, inner, left_is_turned)
                            * at(&right, k, column, inner, columns, right_is_turned)
                    }).sum();
                    let place = row * columns + column;
                    prop_assert_eq!(sum[place], before[place] + product);
                }
            }
        }
    }
}
