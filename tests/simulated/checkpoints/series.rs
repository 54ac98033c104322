//! Tests how a series of checkpoints is saved and loaded, and which checkpoints are kept.

use super::{Memory, checkpoint};
use half::{bf16, f16};
use proptest::prelude::*;
use ringtree::ddp::checkpoint::{Checkpoint, Checkpoints, Directory, State, Tensor};
use ringtree::{Dtype, ErrorKind};
use safetensors::SafeTensors;
use std::fs;

#[test]
fn every_element_type_and_shape_is_restored() {
    let directory = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(Directory::new(directory.path()), 1);
    let mut saved = checkpoint(3, 5);
    saved.insert("i8", &[1], &[i8::MIN]).unwrap();
    saved.insert("u8", &[3], &[1_u8, 2, 255]).unwrap();
    saved.insert("i16", &[1], &[i16::MIN]).unwrap();
    saved.insert("u16", &[1], &[u16::MAX]).unwrap();
    saved.insert("i32", &[1], &[i32::MIN]).unwrap();
    saved.insert("u32", &[1], &[u32::MAX]).unwrap();
    saved.insert("i64", &[1], &[i64::MIN]).unwrap();
    saved.insert("u64", &[1], &[u64::MAX]).unwrap();
    saved.insert("f16", &[1, 1], &[f16::MAX]).unwrap();
    saved.insert("bf16", &[1], &[bf16::MIN_POSITIVE]).unwrap();
    saved.insert("f64", &[1], &[f64::MIN_POSITIVE]).unwrap();
    saved.insert::<f32>("empty", &[2, 0], &[]).unwrap();
    saved.insert("number", &[], &[f32::NEG_INFINITY]).unwrap();
    checkpoints.save(&saved).unwrap();
    let found = checkpoints.latest().unwrap().unwrap();
    assert_eq!(found.checkpoint, saved);
    assert_eq!(found.checkpoint.values("f64"), Ok(vec![f64::MIN_POSITIVE]));
    let dtypes = found.checkpoint.tensors.values().map(Tensor::dtype);
    assert!(
        Dtype::ALL
            .iter()
            .all(|dtype| dtypes.clone().any(|one| one == *dtype))
    );
}

#[test]
fn other_programs_can_open_both_files() {
    let directory = tempfile::tempdir().unwrap();
    let saved = checkpoint(120, 4);
    Checkpoints::new(Directory::new(directory.path()), 1)
        .save(&saved)
        .unwrap();
    let bytes = fs::read(directory.path().join("step-00000120.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let weights = tensors.tensor("model/weights").unwrap();
    assert_eq!(weights.data(), saved.tensors["model/weights"].bytes());
    let manifest = fs::read(directory.path().join("step-00000120.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    assert_eq!(manifest["state"]["step"], 120);
    assert_eq!(manifest["tensors"]["file"], "step-00000120.safetensors");
    assert_eq!(manifest["tensors"]["bytes"], bytes.len());
}

#[test]
fn save_keeps_the_last_k_and_files_of_others() {
    let store = Memory::default();
    store.put("notes.txt", b"mine".to_vec());
    store.put(
        "step-00000001.safetensors",
        b"left by a killed writer".to_vec(),
    );
    let checkpoints = Checkpoints::new(store.clone(), 2);
    for step in [5, 10, 99_999_999, 100_000_000] {
        checkpoints.save(&checkpoint(step, 3)).unwrap();
        let found = checkpoints.latest().unwrap().unwrap();
        assert_eq!(found.checkpoint, checkpoint(step, 3));
        assert_eq!(checkpoints.newest_step(), Ok(Some(step)));
    }
    let names = [
        "notes.txt",
        "step-100000000.json",
        "step-100000000.safetensors",
        "step-99999999.json",
        "step-99999999.safetensors",
    ];
    assert_eq!(store.names(), names);
}

#[test]
fn saving_a_step_again_always_leaves_a_checkpoint() {
    for changes in 0..20 {
        let store = Memory::default();
        let checkpoints = Checkpoints::new(store.clone(), 1);
        checkpoints.save(&checkpoint(7, 3)).unwrap();
        store.allow_changes(Some(changes));
        let ended = checkpoints.save(&checkpoint(7, 4));
        let found = checkpoints.latest().unwrap().unwrap();
        let old_or_new = [checkpoint(7, 3), checkpoint(7, 4)];
        assert!(old_or_new.contains(&found.checkpoint), "{changes} changes");
        if ended.is_ok() && checkpoints.warnings().is_empty() {
            assert_eq!(found.checkpoint, checkpoint(7, 4));
            assert_eq!(store.names().len(), 2);
            assert!(changes > 1);
            return;
        }
    }
    panic!("a save makes more than 20 changes");
}

#[test]
fn save_that_fails_anywhere_keeps_the_previous_checkpoint() {
    for keep in [1, 2] {
        for changes in 0..20 {
            let store = Memory::default();
            let checkpoints = Checkpoints::new(store.clone(), keep);
            for step in [1, 2] {
                checkpoints.save(&checkpoint(step, 3)).unwrap();
            }
            store.allow_changes(Some(changes));
            let ended = checkpoints.save(&checkpoint(3, 3));
            let found = checkpoints.latest().unwrap().unwrap();
            // The tensors are the first change, the manifest the second.
            let step = if changes < 2 { 2 } else { 3 };
            assert_eq!(found.checkpoint, checkpoint(step, 3), "{changes} changes");
            assert_eq!(ended.is_ok(), changes >= 2);
            let is_complete = ended.is_ok() && checkpoints.warnings().is_empty();
            store.allow_changes(None);
            checkpoints.save(&checkpoint(4, 3)).unwrap();
            assert_eq!(store.names().len(), 2 * keep, "after {changes} changes");
            assert!(checkpoints.warnings().is_empty());
            if is_complete {
                break;
            }
            assert!(changes < 19);
        }
    }
}

#[test]
fn save_succeeds_if_the_store_cannot_remove_files() {
    let store = Memory::default();
    store.put(
        "step-00000000.safetensors",
        b"left by a killed writer".to_vec(),
    );
    store.keep_all(true);
    let checkpoints = Checkpoints::new(store.clone(), 1);
    for step in 1..6 {
        checkpoints.save(&checkpoint(step, 3)).unwrap();
        let found = checkpoints.latest().unwrap().unwrap();
        assert_eq!(found.checkpoint, checkpoint(step, 3));
        assert!(found.warnings.is_empty());
        assert_eq!(store.names().len() as u64, 1 + 2 * step);
        let warnings = checkpoints.warnings();
        assert!(warnings.len() <= 4, "{warnings:?}");
        let all = warnings.join("; ");
        for word in ["step-00000000.safetensors", "memory", "access denied"] {
            assert!(all.contains(word), "{all}");
        }
        assert_eq!(step > 1, all.contains("step-00000001.json"), "{all}");
    }
    assert!(checkpoints.warnings().concat().contains("3 more files"));
    // Once removal works, the next save removes the files.
    store.keep_all(false);
    checkpoints.save(&checkpoint(6, 3)).unwrap();
    assert!(checkpoints.warnings().is_empty());
    assert_eq!(store.names().len(), 2);
}

#[test]
fn reader_always_finds_a_checkpoint_during_writes() {
    let directory = tempfile::tempdir().unwrap();
    let checkpoints = || Checkpoints::new(Directory::new(directory.path()), 1);
    checkpoints().save(&checkpoint(0, 50_000)).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let writer = checkpoints();
            writer.latest().unwrap();
            for step in 1..40 {
                writer.save(&checkpoint(step, 50_000)).unwrap();
            }
        });
        let mut last = 0;
        while !writer.is_finished() {
            let found = checkpoints().latest().unwrap().unwrap().checkpoint;
            let step = found.state.step;
            assert!(step >= last, "{step} after {last}");
            assert_eq!(found, checkpoint(step, 50_000));
            last = step;
        }
    });
}

#[test]
fn save_is_rejected_if_another_run_has_later_checkpoints() {
    let store = Memory::default();
    let checkpoints = Checkpoints::new(store.clone(), 3);
    checkpoints.save(&checkpoint(50, 3)).unwrap();
    let mut other = checkpoint(10, 3);
    other.state.run_id = "second".to_owned();
    let Err(error) = checkpoints.save(&other) else {
        panic!("the save succeeded");
    };
    assert!(error.kind() == ErrorKind::Usage, "{error:?}");
    let message = error.to_string();
    assert!(message.contains("test-run") && message.contains("second"));
    assert!(message.contains("step 50"), "{message}");
    assert_eq!(store.names().len(), 2);
    // The same run may continue from an older checkpoint. Another run may save a later step.
    checkpoints.save(&checkpoint(40, 3)).unwrap();
    other.state.step = 60;
    checkpoints.save(&other).unwrap();
    assert_eq!(checkpoints.latest().unwrap().unwrap().checkpoint, other);
}

#[test]
fn state_that_cannot_be_restored_is_not_saved() {
    let checkpoints = Checkpoints::new(Memory::default(), 1);
    let mut nested = serde_json::json!(1);
    for _ in 0..200 {
        nested = serde_json::json!([nested]);
    }
    let user = State {
        user: nested,
        ..State::default()
    };
    let deep = checkpoints.save(&Checkpoint::new(user));
    assert!(
        matches!(&deep, Err(error) if error.kind() == ErrorKind::Usage),
        "{deep:?}"
    );
    let mut reserved = Checkpoint::default();
    reserved.insert("__metadata__", &[1], &[0_u8]).unwrap();
    let reserved = checkpoints.save(&reserved);
    assert!(
        matches!(&reserved, Err(error) if error.kind() == ErrorKind::Usage),
        "{reserved:?}"
    );
    assert!(checkpoints.latest().unwrap().is_none());

    let mut misshapen = Checkpoint::default();
    let ended = misshapen.insert("w", &[2, 3], &[0.0_f32; 5]);
    assert!(ended.is_err_and(|error| error.to_string().contains("'w'")));
    let huge = misshapen.insert("w", &[usize::MAX, 2], &[0.0_f32; 5]);
    assert!(huge.is_err());
    let absent = checkpoint(1, 3).values::<f32>("model/bias");
    assert!(absent.is_err_and(|error| error.to_string().contains("model/bias")));
    let other_type = checkpoint(1, 3).values::<f64>("model/weights");
    assert!(other_type.is_err_and(|error| error.to_string().contains("f32")));
}

#[test]
fn path_that_is_not_a_directory_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, "not a directory").unwrap();
    let checkpoints = Checkpoints::new(Directory::new(&path), 1);
    for error in [
        checkpoints.save(&checkpoint(1, 3)).unwrap_err(),
        checkpoints.latest().unwrap_err(),
    ] {
        let text = error.to_string();
        assert!(text.contains(path.to_str().unwrap()), "{text}");
        assert!(text.contains("is not a directory"), "{text}");
        assert!(!text.contains('\n'), "{text}");
    }
    let nowhere = Checkpoints::new(Directory::new(directory.path().join("a/b")), 1);
    assert_eq!(nowhere.latest(), Ok(None));
    nowhere.save(&checkpoint(1, 3)).unwrap();
    assert_eq!(nowhere.newest_step(), Ok(Some(1)));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Numbers are restored with identical bits, because a resumed training run must not differ in
    /// the last digit of its learning rate.
    #[test]
    fn user_numbers_are_restored_exactly(bits: [u64; 8], names: [String; 3]) {
        let numbers: Vec<f64> = bits.iter().map(|bits| f64::from_bits(*bits)).collect();
        let finite = numbers.iter().filter(|number| number.is_finite());
        let user = serde_json::json!({ "f": finite.collect::<Vec<_>>(), "u": bits });
        let mut saved = Checkpoint::new(State { user, seed: bits[0], ..State::default() });
        for (number, name) in names.iter().enumerate() {
            saved.insert(name, &[2, 4], &numbers).unwrap();
            saved.insert(format!("{number}"), &[8], &bits).unwrap();
        }
        let checkpoints = Checkpoints::new(Memory::default(), 1);
        checkpoints.save(&saved).unwrap();
        let found = checkpoints.latest().unwrap().unwrap().checkpoint;
        // Compare as text, because −0 = 0 as numbers.
        prop_assert_eq!(found.state.user.to_string(), saved.state.user.to_string());
        prop_assert_eq!(found, saved);
    }
}
