//! Tests regions, loans and claims.

use super::*;

#[test]
fn owned_vector_is_returned_or_freed() {
    let mut region = Region::own(Vec::from([1u16, 2, 3]));
    region.bytes_mut()[2..4].copy_from_slice(&7u16.to_ne_bytes());
    assert_eq!(region.into_vector::<u16>(), Some(vec![1, 7, 3]));
    assert_eq!(Region::own(vec![1.0f32]).into_vector::<u32>(), None);
    assert_eq!(
        Region::own(Vec::<f64>::new()).into_vector(),
        Some(Vec::<f64>::new())
    );
    let region = Region::own(vec![1u8; 100]);
    let bytes = std::thread::spawn(move || region.bytes().len());
    assert_eq!(bytes.join().unwrap(), 100);
}

#[test]
fn lent_slices_are_reusable_and_inputs_read_only() {
    let (input, mut output) = ([1u8, 2, 3], [0u8; 3]);
    for _ in 0..2 {
        lend_both(&input, &mut output, |mut from, mut into| {
            assert!(from.bytes_mut().is_empty());
            into.bytes_mut().copy_from_slice(from.bytes());
            into.bytes_mut()[0] += 1;
            (Some(from), Some(into), ())
        });
        assert_eq!((input, output), ([1, 2, 3], [2, 2, 3]));
        output = [0; 3];
    }
}

/// Lends the same memory a second time before the first loan has ended.
#[test]
fn nested_loan_of_same_memory_is_distinct() {
    let mut numbers = [1u8; 8];
    lend(&mut numbers, |mut outer| {
        let first = outer.owner_of_loan();
        lend(outer.bytes_mut(), |inner| {
            assert_ne!(inner.owner_of_loan(), first);
            (Some(inner), ())
        });
        (Some(outer), ())
    });
}

#[test]
fn concurrent_loans_return_from_another_thread() {
    let (mut one, mut other) = ([1u32; 4], [2u32; 4]);
    lending(|lender| {
        let lend = |buffer| lender.lend(buffer, |all: &mut [u32; 4]| Ok::<_, ()>(&mut all[..]));
        let (one, loan) = lend(&mut one).unwrap();
        let (other, _) = lend(&mut other).unwrap();
        let double = |mut region: Region| {
            region.bytes_mut().iter_mut().for_each(|byte| *byte *= 2);
            region
        };
        let thread = std::thread::spawn(move || [one, other].map(double));
        let [one, other] = thread.join().unwrap();
        // The first buffer can be used while the second is still lent.
        let one = lender.settle(Some(one), loan).unwrap();
        assert_eq!(std::mem::take(&mut one[0]), 2);
        lender.take_back(Some(other));
    });
    assert_eq!((one, other), ([0, 2, 2, 2], [4; 4]));
}

#[test]
fn settle_rejects_region_of_another_loan() {
    let (mut one, other) = ([1u8; 2], [2u8; 2]);
    lending(|lender| {
        let (region, loan) = lender
            .lend(&mut one, |all| Ok::<_, ()>(&mut all[..]))
            .unwrap();
        let (wrong, shared) = lender
            .lend_shared(&other, |all| Ok::<_, ()>(&all[..]))
            .unwrap();
        assert!(lender.settle(Some(wrong), loan).is_none());
        assert!(lender.settle(Some(region), shared).is_none());
    });
    assert_eq!((one, other), ([1; 2], [2; 2]));
}

/// A buffer type that returns a different slice each time.
struct Fickle {
    parts: [Vec<u16>; 2],
    asked: usize,
}

impl Fickle {
    fn slice(&mut self) -> Result<&mut [u16], String> {
        self.asked += 1;
        match self.asked {
            1 | 2 => Ok(&mut self.parts[self.asked - 1]),
            _ => Err("no more".into()),
        }
    }
}

#[test]
fn held_buffer_is_released_or_dropped() {
    let fickle = Fickle {
        parts: [vec![1, 2], vec![3]],
        asked: 0,
    };
    let mut region = Region::hold(fickle, Fickle::slice).ok().unwrap().0;
    region.bytes_mut()[..2].copy_from_slice(&9u16.to_ne_bytes());
    let thread = std::thread::spawn(move || region.release::<Fickle>());
    let fickle = thread.join().unwrap().unwrap();
    assert_eq!((&fickle.parts[0], fickle.asked), (&vec![9, 2], 1));
    drop(Region::hold(fickle, Fickle::slice).ok().unwrap());
    let fickle = Fickle {
        parts: [vec![], vec![]],
        asked: 2,
    };
    let (error, fickle) = Region::hold(fickle, Fickle::slice).err().unwrap();
    assert_eq!((error.as_str(), fickle.asked), ("no more", 3));
    // Also hold a buffer that contains its elements itself.
    let held = Region::hold([1u8; 3], |all| Ok::<_, ()>(&mut all[..])).ok();
    let (region, claim) = held.unwrap();
    assert_eq!(region.release(), Some([1u8; 3]));
    assert_eq!(claim.take(), None, "this is not a forked child");
    // A joined claim returns both buffers. A claim without a buffer drops the buffer.
    let input = Region::hold_shared(vec![5u32], |one| Ok::<_, ()>(&one[..]));
    let output = Region::hold([6u16; 2], |one| Ok::<_, ()>(&mut one[..]));
    let ((input, claim), (output, other)) = (input.ok().unwrap(), output.ok().unwrap());
    let both = claim.and(other).release(Some(input), Some(output));
    assert_eq!(both, Some((vec![5], [6; 2])));
    let dropped: Arc<[u8]> = Arc::from([1]);
    let held = Region::hold_shared(Arc::clone(&dropped), |one| Ok::<_, ()>(&one[..]));
    let (region, claim) = held.ok().unwrap();
    assert_eq!(claim.without_buffer().release(Some(region), None), Some(()));
    assert_eq!(Arc::strong_count(&dropped), 1);
    // A buffer that is only read may be shared.
    let shared: Arc<[u32]> = Arc::from([7, 8]);
    let (mut region, _) = Region::hold_shared(Arc::clone(&shared), |all| Ok::<_, ()>(&all[..]))
        .ok()
        .unwrap();
    assert!(region.bytes_mut().is_empty() && region.bytes().len() == 8);
    drop(region);
    assert_eq!(Arc::strong_count(&shared), 1);
}
