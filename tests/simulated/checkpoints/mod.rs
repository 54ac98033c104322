//! Tests checkpoints: saved state is restored, and damaged files are named and skipped. A writer
//! that is killed loses no checkpoint, and a training run resumes with the same bits.

mod damage;
mod killed;
mod ranks;
mod resume;
mod series;
mod writers;

use ringtree::ddp::checkpoint::{Checkpoint, State, Store};
use ringtree::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// An in-memory store that tests can inspect, damage, and make fail.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Contents>>);

#[derive(Clone, Default)]
struct Contents {
    files: BTreeMap<String, Vec<u8>>,
    /// Number of changes that will still succeed, or `None` if all succeed.
    changes_left: Option<usize>,
    /// The last write that failed.
    failed: Option<(String, Vec<u8>)>,
    /// If `true`, no file can be removed.
    keeps_all: bool,
    /// The message of the error that every access returns.
    broken: Option<String>,
    /// The name of a file that cannot be read.
    unreadable: Option<String>,
}

impl Memory {
    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        self.0.lock().unwrap().files.clone()
    }

    fn names(&self) -> Vec<String> {
        self.files().into_keys().collect()
    }

    fn put(&self, name: &str, bytes: Vec<u8>) {
        self.0.lock().unwrap().files.insert(name.to_owned(), bytes);
    }

    fn allow_changes(&self, count: Option<usize>) {
        self.0.lock().unwrap().changes_left = count;
    }

    /// Lets the last failed write take effect.
    fn apply_failed_write(&self) {
        let mut contents = self.0.lock().unwrap();
        let failed = contents.failed.take();
        contents.files.extend(failed);
    }

    fn keep_all(&self, keeps_all: bool) {
        self.0.lock().unwrap().keeps_all = keeps_all;
    }

    fn may_remove(&self) -> Result<()> {
        match self.0.lock().unwrap().keeps_all {
            true => Err(Error::new(ErrorKind::System, "access denied")),
            false => Ok(()),
        }
    }

    fn break_with(&self, message: &str) {
        self.0.lock().unwrap().broken = Some(message.to_owned());
    }

    fn fail_reads_of(&self, name: &str) {
        self.0.lock().unwrap().unreadable = Some(name.to_owned());
    }

    fn access<T>(&self, get: impl FnOnce(&Contents) -> T) -> Result<T> {
        let contents = self.0.lock().unwrap();
        match &contents.broken {
            Some(message) => Err(Error::new(ErrorKind::System, message.clone())),
            None => Ok(get(&contents)),
        }
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Vec<u8>>)) -> Result<()> {
        let mut contents = self.0.lock().unwrap();
        match contents.changes_left.as_mut() {
            Some(0) => return Err(Error::new(ErrorKind::System, "the disk is full")),
            Some(left) => *left -= 1,
            None => {}
        }
        change(&mut contents.files);
        Ok(())
    }
}

impl Store for Memory {
    fn location(&self) -> String {
        "memory".to_owned()
    }

    fn list(&self) -> Result<Vec<String>> {
        self.access(|contents| contents.files.keys().cloned().collect())
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.access(
            |contents| match contents.unreadable.as_deref() == Some(name) {
                true => Err(Error::new(ErrorKind::System, "connection reset")),
                false => Ok(contents.files.get(name).cloned()),
            },
        )?
    }

    fn write_atomically(&self, name: &str, parts: &[&[u8]]) -> Result<()> {
        let file = (name.to_owned(), parts.concat());
        let written = self.change(|files| files.extend([file.clone()]));
        if written.is_err() {
            self.0.lock().unwrap().failed = Some(file);
        }
        written
    }

    fn clear_leftovers(&self) -> Result<()> {
        self.may_remove()
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.may_remove()?;
        self.change(|files| {
            files.remove(name);
        })
    }
}

/// Returns a checkpoint with `count` weights, whose entire content depends only on the step.
fn checkpoint(step: u64, count: usize) -> Checkpoint {
    let mut checkpoint = Checkpoint::new(State {
        run_id: "test-run".to_owned(),
        world_size: 2,
        step,
        epoch: step / 10,
        samples: Some(1000),
        sampler_position: step * 8,
        seed: u64::MAX - step,
        order: Some((vec![3, 2, 0, 1], 1)),
        tuning: Some("{\n}".to_owned()),
        loss: Some(1.0 / (step as f64 + 1.0)),
        user: serde_json::json!({ "learning_rate": 1.0 / (step as f64 + 3.0), "name": "é\"\\" }),
    });
    let weight = |index| (index as f32).mul_add(0.5, step as f32);
    let weights: Vec<f32> = (0..count).map(weight).collect();
    checkpoint
        .insert("model/weights", &[count], &weights)
        .unwrap();
    checkpoint
        .insert("optimizer/step", &[], &[step as i64])
        .unwrap();
    checkpoint
}
