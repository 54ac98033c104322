//! Tests two writers at the same location, writes that take effect late, and keeping the best
//! checkpoint.

use super::{Memory, checkpoint};
use ringtree::ddp::checkpoint::{Checkpoint, Checkpoints, Directory};
use ringtree::{Error, Result};
use std::fs;

fn assert_rejected(result: Result<()>, words: &[&str]) {
    let Err(error) = result else {
        panic!("the save succeeded");
    };
    let line = error.to_string();
    assert!(!line.contains('\n'), "{line}");
    for word in words {
        assert!(line.contains(word), "{line} lacks {word}");
    }
}

#[test]
fn second_writer_is_rejected_while_the_first_holds_the_lock() {
    let directory = tempfile::tempdir().unwrap();
    let checkpoints = || Checkpoints::new(Directory::new(directory.path()), 2);
    let first = checkpoints();
    first.save(&checkpoint(1, 3)).unwrap();
    // Each `Checkpoints` value holds its own lock, so two values simulate two processes.
    let second = checkpoints();
    assert_eq!(
        second.latest().unwrap().unwrap().checkpoint,
        checkpoint(1, 3)
    );
    let own = format!("process {}", std::process::id());
    let place = directory.path().to_str().unwrap();
    assert_rejected(
        second.save(&checkpoint(2, 3)),
        &["another training", &own, place],
    );
    drop(first);
    second.save(&checkpoint(2, 3)).unwrap();
}

#[test]
fn lock_file_follows_no_link() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("precious");
    fs::write(&target, "precious").unwrap();
    let place = directory.path().join("run");
    fs::create_dir(&place).unwrap();
    std::os::unix::fs::symlink(&target, place.join("checkpoints.lock")).unwrap();
    let checkpoints = Checkpoints::new(Directory::new(&place), 2);
    assert_rejected(checkpoints.save(&checkpoint(1, 3)), &["checkpoints.lock"]);
    assert_eq!(fs::read_to_string(target).unwrap(), "precious");
}

/// Tests a store without locks, such as a bucket.
#[test]
fn save_does_not_overwrite_checkpoints_of_another_writer() {
    let store = Memory::default();
    let first = Checkpoints::new(store.clone(), 3);
    first.save(&checkpoint(1, 3)).unwrap();
    // This writer has not listed the store.
    let blind = Checkpoints::new(store.clone(), 3);
    assert_rejected(
        blind.save(&checkpoint(5, 3)),
        &["step 1", "memory", "resume"],
    );
    // Both writers have seen step 1, and both continue.
    let second = Checkpoints::new(store.clone(), 3);
    second.latest().unwrap();
    second.save(&checkpoint(2, 3)).unwrap();
    assert_rejected(
        first.save(&checkpoint(2, 4)),
        &["step 2", "neither loaded nor wrote"],
    );
    let other_content = |step| Checkpoint {
        state: checkpoint(step, 3).state,
        ..checkpoint(step, 4)
    };
    // The third writer saves the same step with different content.
    let third = Checkpoints::new(store.clone(), 3);
    third.latest().unwrap();
    third.save(&other_content(2)).unwrap();
    assert_rejected(second.save(&checkpoint(3, 3)), &["step 2"]);
    assert_eq!(
        third.latest().unwrap().unwrap().checkpoint,
        other_content(2)
    );
}

/// Simulates a bucket that responds too late: the write is reported as failed but takes effect.
#[test]
fn late_write_is_not_mistaken_for_another_run() {
    // The index of the save before which the write takes effect, and the step that is saved after
    // the failure: the same step or the next one.
    for (arrives, again) in [(0, 2), (1, 2), (2, 2), (0, 3), (1, 3), (2, 3)] {
        let store = Memory::default();
        let checkpoints = Checkpoints::new(store.clone(), 3);
        checkpoints.save(&checkpoint(1, 3)).unwrap();
        store.allow_changes(Some(1)); // the tensors
        assert_rejected(checkpoints.save(&checkpoint(2, 3)), &["the disk is full"]);
        store.allow_changes(None);
        for (number, step) in [again, 4, 5].into_iter().enumerate() {
            if number == arrives {
                store.apply_failed_write();
            }
            checkpoints.save(&checkpoint(step, 3)).unwrap();
        }
        let latest = checkpoints.latest().unwrap().unwrap();
        assert_eq!(latest.checkpoint, checkpoint(5, 3));
        // A checkpoint of another writer is still detected.
        let other = Checkpoints::new(store, 3);
        other.latest().unwrap();
        other.save(&checkpoint(6, 4)).unwrap();
        assert_rejected(checkpoints.save(&checkpoint(6, 3)), &[]);
    }
}

#[test]
fn save_after_skipping_a_damaged_checkpoint_succeeds() {
    let store = Memory::default();
    let first = Checkpoints::new(store.clone(), 3);
    for step in [1, 2] {
        first.save(&checkpoint(step, 3)).unwrap();
    }
    store.put("step-00000002.json", b"damaged".to_vec());
    let second = Checkpoints::new(store.clone(), 3);
    assert_eq!(
        second.latest().unwrap().unwrap().checkpoint,
        checkpoint(1, 3)
    );
    // Save a step before the damaged one, the same step, and a later step.
    for saved in [checkpoint(1, 4), checkpoint(2, 4), checkpoint(3, 4)] {
        second.save(&saved).unwrap();
        assert_eq!(second.latest().unwrap().unwrap().checkpoint, saved);
    }
}

#[test]
fn best_checkpoint_is_kept_and_found() {
    let store = Memory::default();
    let checkpoints = Checkpoints::new(store.clone(), 2).keep_best();
    assert_eq!(checkpoints.best(), Ok(None));
    let losses = [Some(0.9), Some(0.2), None, Some(0.5), Some(0.4), None];
    for (step, loss) in losses.into_iter().enumerate() {
        let mut saved = checkpoint(step as u64, 3);
        saved.state.loss = loss;
        checkpoints.save(&saved).unwrap();
    }
    let steps = |checkpoints: &Checkpoints| {
        let states = checkpoints.list().unwrap();
        states.iter().map(|state| state.step).collect::<Vec<_>>()
    };
    assert_eq!(steps(&checkpoints), [1, 4, 5]);
    assert_eq!(checkpoints.best().unwrap().unwrap().step, 1);
    assert_eq!(store.names().len(), 6);
    let mut better = checkpoint(6, 3);
    better.state.loss = Some(0.1);
    checkpoints.save(&better).unwrap();
    assert_eq!(steps(&checkpoints), [5, 6]);
    assert_eq!(checkpoints.load(6), Ok(better));
    let error: Error = checkpoints.load(1).unwrap_err();
    assert!(
        error.to_string().ends_with("available steps: 5, 6"),
        "{error}"
    );
}

#[test]
fn best_checkpoint_is_kept_if_the_store_fails_to_read_it() {
    let store = Memory::default();
    let checkpoints = Checkpoints::new(store.clone(), 1).keep_best();
    for step in 0..4 {
        let mut saved = checkpoint(step, 3);
        saved.state.loss = Some(step as f64);
        if step == 2 {
            store.fail_reads_of("step-00000000.json");
        }
        checkpoints.save(&saved).unwrap();
        let is_warned = !checkpoints.warnings().is_empty();
        assert_eq!(is_warned, step >= 2, "{:?}", checkpoints.warnings());
    }
    assert!(checkpoints.best().is_err());
    store.fail_reads_of("");
    assert_eq!(checkpoints.best().unwrap().unwrap().step, 0);
}

#[test]
fn polling_for_the_newest_step_does_not_make_it_known() {
    let store = Memory::default();
    let (writer, other) = (
        Checkpoints::new(store.clone(), 2),
        Checkpoints::new(store, 2),
    );
    writer.save(&checkpoint(1, 3)).unwrap();
    assert_eq!(other.newest_step(), Ok(Some(1)));
    assert_rejected(other.save(&checkpoint(2, 3)), &[]);
}
