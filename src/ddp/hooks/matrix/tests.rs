use super::*;
use proptest::prelude::*;

#[test]
fn only_matrices_that_shrink_to_half_are_compressed() {
    assert_eq!(Shape::new(&[], 2), None);
    assert_eq!(Shape::new(&[1000], 2), None, "a vector");
    assert_eq!(Shape::new(&[0, 8], 2), None);
    assert_eq!(Shape::new(&[8, 8], 3), None, "48 elements instead of 64");
    let shape = Shape::new(&[8, 2, 4], 2);
    let (rows, columns, rank) = (8, 8, 2);
    let expected = Shape {
        rows,
        columns,
        rank,
    };
    assert_eq!(shape, Some(expected), "32 elements instead of 64");
}

proptest! {
    #[test]
    fn columns_become_orthonormal_and_keep_their_span(
        rows in 4usize..60,
        seed in prop::collection::vec(-1.0f32..1.0, 60 * 4),
        scale in prop::sample::select(vec![1e-20f32, 1.0, 1e20]),
        is_dependent: bool,
    ) {
        let mut columns: Vec<f32> = seed[..rows * 4].iter().map(|one| one * scale).collect();
        if is_dependent {
            columns.copy_within(..rows, 2 * rows);
        }
        let before = columns.clone();
        orthonormalize(rows, &mut columns);
        let column = |number: usize| &columns[number * rows..(number + 1) * rows];
        for one in 0..4 {
            for other in 0..=one {
                let product = dot(column(one), column(other));
                let is_unit = one == other && !(is_dependent && one == 2);
                let expected = if is_unit { 1.0 } else { 0.0 };
                prop_assert!((product - expected).abs() < 1e-5, "{one} {other}: {product}");
            }
        }
        // Projecting the old columns onto the new ones does not change them.
        for old in before.chunks_exact(rows) {
            let mut rest = old.to_vec();
            for number in 0..4 {
                add_multiple(&mut rest, -dot(old, column(number)), column(number));
            }
            let largest = rest.iter().fold(0.0f32, |most, one| most.max(one.abs()));
            prop_assert!(largest < 1e-5 * scale, "{largest}");
        }
    }
}
