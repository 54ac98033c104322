//! Two writers in one place, and a training that goes back.

use super::{Memory, checkpoint};
use ringtree::ddp::checkpoint::{Checkpoint, Checkpoints, Directory};
use ringtree::{Error, Result};
use std::fs;

fn refused(result: Result<()>, words: &[&str]) {
    let Err(error) = result else {
        panic!("it was saved");
    };
    let line = error.to_string();
    assert!(!line.contains('\n'), "{line}");
    for word in words {
        assert!(line.contains(word), "{line} lacks {word}");
    }
}

#[test]
fn a_second_process_is_kept_out_of_a_folder_while_the_first_lives() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = || Checkpoints::new(Directory::new(folder.path()), 2);
    let first = checkpoints();
    first.save(&checkpoint(1, 3)).unwrap();
    // The lock belongs to the value, so two values stand for two processes.
    let second = checkpoints();
    assert_eq!(
        second.latest().unwrap().unwrap().checkpoint,
        checkpoint(1, 3)
    );
    let own = format!("process {}", std::process::id());
    let place = folder.path().to_str().unwrap();
    refused(
        second.save(&checkpoint(2, 3)),
        &["another training", &own, place],
    );
    drop(first);
    second.save(&checkpoint(2, 3)).unwrap();
}

#[test]
fn the_lock_file_is_no_way_to_another_file() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("precious");
    fs::write(&target, "precious").unwrap();
    let place = folder.path().join("run");
    fs::create_dir(&place).unwrap();
    std::os::unix::fs::symlink(&target, place.join("checkpoints.lock")).unwrap();
    let checkpoints = Checkpoints::new(Directory::new(&place), 2);
    refused(checkpoints.save(&checkpoint(1, 3)), &["checkpoints.lock"]);
    assert_eq!(fs::read_to_string(target).unwrap(), "precious");
}

/// Where there is no lock, as in a bucket.
#[test]
fn what_another_writer_saved_meanwhile_is_not_overwritten() {
    let store = Memory::default();
    let first = Checkpoints::new(store.clone(), 3);
    first.save(&checkpoint(1, 3)).unwrap();
    // It never looked.
    let blind = Checkpoints::new(store.clone(), 3);
    refused(
        blind.save(&checkpoint(5, 3)),
        &["step 1", "memory", "resume"],
    );
    // Both have seen step 1, and both go on.
    let second = Checkpoints::new(store.clone(), 3);
    second.latest().unwrap();
    second.save(&checkpoint(2, 3)).unwrap();
    refused(
        first.save(&checkpoint(2, 4)),
        &["step 2", "neither loaded nor wrote"],
    );
    let other_one = |step| Checkpoint {
        state: checkpoint(step, 3).state,
        ..checkpoint(step, 4)
    };
    // The same step, with other content.
    let third = Checkpoints::new(store.clone(), 3);
    third.latest().unwrap();
    third.save(&other_one(2)).unwrap();
    refused(second.save(&checkpoint(3, 3)), &["step 2"]);
    assert_eq!(third.latest().unwrap().unwrap().checkpoint, other_one(2));
}

/// As a bucket whose answer comes too late: the write is reported as failed, and takes place.
#[test]
fn a_write_that_failed_and_took_place_is_not_another_training() {
    // Before which save it takes place, and whether that of the same step is tried again.
    for (arrives, again) in [(0, 2), (1, 2), (2, 2), (0, 3), (1, 3), (2, 3)] {
        let store = Memory::default();
        let checkpoints = Checkpoints::new(store.clone(), 3);
        checkpoints.save(&checkpoint(1, 3)).unwrap();
        store.allow_changes(Some(1)); // the tensors
        refused(checkpoints.save(&checkpoint(2, 3)), &["the disk is full"]);
        store.allow_changes(None);
        for (number, step) in [again, 4, 5].into_iter().enumerate() {
            if number == arrives {
                store.let_failed_arrive();
            }
            checkpoints.save(&checkpoint(step, 3)).unwrap();
        }
        let latest = checkpoints.latest().unwrap().unwrap();
        assert_eq!(latest.checkpoint, checkpoint(5, 3));
        // Another one's is told as before.
        let other = Checkpoints::new(store, 3);
        other.latest().unwrap();
        other.save(&checkpoint(6, 4)).unwrap();
        refused(checkpoints.save(&checkpoint(6, 3)), &[]);
    }
}

#[test]
fn passing_over_a_damaged_one_is_no_reason_to_refuse() {
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
    // An earlier step than the damaged one, the same, and a later one.
    for saved in [checkpoint(1, 4), checkpoint(2, 4), checkpoint(3, 4)] {
        second.save(&saved).unwrap();
        assert_eq!(second.latest().unwrap().unwrap().checkpoint, saved);
    }
}

#[test]
fn the_best_stays_and_is_found() {
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
