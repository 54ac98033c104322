//! Damaged files are named, passed over, and never loaded.

use super::{Memory, checkpoint};
use proptest::prelude::*;
use ringtree::ErrorKind;
use ringtree::ddp::checkpoint::Checkpoints;

const MANIFEST: &str = "step-00000002.json";
const TENSORS: &str = "step-00000002.safetensors";

/// Steps 1 and 2, whole.
fn two_checkpoints() -> (Memory, Checkpoints) {
    let store = Memory::default();
    let checkpoints = Checkpoints::new(store.clone(), 2);
    for step in [1, 2] {
        checkpoints.save(&checkpoint(step, 6)).unwrap();
    }
    (store, checkpoints)
}

/// With `bytes` for `file`, step 1 is found, and the warning names the file.
fn assert_passed_over(file: &str, bytes: Option<Vec<u8>>, what: &str) {
    let (store, checkpoints) = two_checkpoints();
    match bytes {
        Some(bytes) => store.put(file, bytes),
        None => drop(store.0.lock().unwrap().files.remove(file)),
    }
    let found = checkpoints.latest().unwrap().unwrap();
    assert_eq!(found.checkpoint, checkpoint(1, 6), "{file}: {what}");
    let [warning] = &found.warnings[..] else {
        panic!("{file}: {what}: {:?}", found.warnings);
    };
    assert!(warning.contains(file), "{warning}");
    assert!(warning.contains("memory"), "{warning}");
}

#[test]
fn every_flipped_bit_and_every_cut_is_noticed() {
    let (store, _) = two_checkpoints();
    for file in [MANIFEST, TENSORS] {
        let whole = store.files()[file].clone();
        for length in 0..whole.len() {
            let cut = whole[..length].to_vec();
            assert_passed_over(file, Some(cut), &format!("cut to {length}"));
        }
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_passed_over(file, Some(flipped), &format!("bit {bit}"));
        }
        let longer = [&whole[..], b" "].concat();
        assert_passed_over(file, Some(longer), "longer");
    }
}

#[test]
fn missing_and_exchanged_files_are_noticed() {
    let (store, _) = two_checkpoints();
    let files = store.files();
    assert_passed_over(TENSORS, None, "missing");
    assert_passed_over(MANIFEST, Some(b"{}".to_vec()), "no manifest");
    assert_passed_over(MANIFEST, Some(b"\xff\xfe".to_vec()), "no text");
    let older = |name: &str| files[&name.replace('2', "1")].clone();
    assert_passed_over(MANIFEST, Some(older(MANIFEST)), "of another step");
    assert_passed_over(TENSORS, Some(older(TENSORS)), "of another step");
}

#[test]
fn if_none_is_whole_the_user_decides() {
    let (store, checkpoints) = two_checkpoints();
    store.put(TENSORS, Vec::new());
    store.put("step-00000001.json", b"garbage".to_vec());
    let Err(error) = checkpoints.latest() else {
        panic!("something was found");
    };
    assert!(error.kind() == ErrorKind::System, "{error:?}");
    let message = error.to_string();
    assert!(message.contains(TENSORS), "{message}");
    assert!(message.contains("step-00000001.json"), "{message}");
    assert!(!message.contains('\n'), "{message}");
    // The newest manifest is whole; only reading the tensors shows the damage.
    assert_eq!(checkpoints.newest_step(), Ok(Some(2)));
}

#[test]
fn damaged_ones_do_not_count_among_the_last_k() {
    let (store, checkpoints) = two_checkpoints();
    store.put(MANIFEST, b"garbage".to_vec());
    checkpoints.save(&checkpoint(3, 6)).unwrap();
    store.put("step-00000003.json", Vec::new());
    let found = checkpoints.latest().unwrap().unwrap();
    assert_eq!(found.checkpoint, checkpoint(1, 6));
    assert_eq!(found.warnings.len(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_replaced_range_is_noticed(
        of_manifest: bool,
        start: prop::sample::Index,
        replaced in 0_usize..64,
        bytes in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let (store, _) = two_checkpoints();
        let file = if of_manifest { MANIFEST } else { TENSORS };
        let whole = store.files()[file].clone();
        let start = start.index(whole.len());
        let end = (start + replaced).min(whole.len());
        let damaged = [&whole[..start], &bytes, &whole[end..]].concat();
        prop_assume!(damaged != whole);
        assert_passed_over(file, Some(damaged), "replaced");
    }
}
