//! Tests that damaged files are named in warnings, skipped, and never loaded.

use super::{Memory, checkpoint};
use proptest::prelude::*;
use ringtree::ErrorKind;
use ringtree::ddp::checkpoint::Checkpoints;

const MANIFEST: &str = "step-00000002.json";
const TENSORS: &str = "step-00000002.safetensors";

/// Returns a store with intact checkpoints of steps 1 and 2.
fn two_checkpoints() -> (Memory, Checkpoints) {
    let store = Memory::default();
    let checkpoints = Checkpoints::new(store.clone(), 2);
    for step in [1, 2] {
        checkpoints.save(&checkpoint(step, 6)).unwrap();
    }
    (store, checkpoints)
}

/// Replaces `file` with `bytes`, or removes it. Asserts that step 1 is loaded and that the warning
/// names the file.
fn assert_skipped(file: &str, bytes: Option<Vec<u8>>, what: &str) {
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
fn every_flipped_bit_and_every_truncation_is_detected() {
    let (store, _) = two_checkpoints();
    for file in [MANIFEST, TENSORS] {
        let intact = store.files()[file].clone();
        for length in 0..intact.len() {
            let cut = intact[..length].to_vec();
            assert_skipped(file, Some(cut), &format!("truncated to {length} bytes"));
        }
        for bit in 0..intact.len() * 8 {
            let mut flipped = intact.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_skipped(file, Some(flipped), &format!("bit {bit}"));
        }
        let longer = [&intact[..], b" "].concat();
        assert_skipped(file, Some(longer), "longer");
    }
}

#[test]
fn missing_and_exchanged_files_are_detected() {
    let (store, _) = two_checkpoints();
    let files = store.files();
    assert_skipped(TENSORS, None, "missing");
    assert_skipped(MANIFEST, Some(b"{}".to_vec()), "not a manifest");
    assert_skipped(MANIFEST, Some(b"\xff\xfe".to_vec()), "not UTF-8");
    let older = |name: &str| files[&name.replace('2', "1")].clone();
    assert_skipped(MANIFEST, Some(older(MANIFEST)), "file of another step");
    assert_skipped(TENSORS, Some(older(TENSORS)), "file of another step");
}

#[test]
fn load_fails_if_all_checkpoints_are_damaged() {
    let (store, checkpoints) = two_checkpoints();
    store.put(TENSORS, Vec::new());
    store.put("step-00000001.json", b"garbage".to_vec());
    let Err(error) = checkpoints.latest() else {
        panic!("a damaged checkpoint was loaded");
    };
    assert!(error.kind() == ErrorKind::System, "{error:?}");
    let message = error.to_string();
    assert!(message.contains(TENSORS), "{message}");
    assert!(message.contains("step-00000001.json"), "{message}");
    assert!(!message.contains('\n'), "{message}");
    // The newest manifest is intact. The damage is detected only when the tensors are read.
    assert_eq!(checkpoints.newest_step(), Ok(Some(2)));
}

#[test]
fn damaged_checkpoints_do_not_count_as_kept() {
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
    fn any_replaced_range_is_detected(
        of_manifest: bool,
        start: prop::sample::Index,
        replaced in 0_usize..64,
        bytes in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let (store, _) = two_checkpoints();
        let file = if of_manifest { MANIFEST } else { TENSORS };
        let intact = store.files()[file].clone();
        let start = start.index(intact.len());
        let end = (start + replaced).min(intact.len());
        let damaged = [&intact[..start], &bytes, &intact[end..]].concat();
        prop_assume!(damaged != intact);
        assert_skipped(file, Some(damaged), "replaced");
    }
}
