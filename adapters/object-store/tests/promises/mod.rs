//! Tests what a bucket guarantees on any server. The test binary that includes this module provides
//! the buckets through its function `in_each_place`.

mod killed;

use crate::in_each_place;
use ringtree::ddp::checkpoint::{Checkpoint, Checkpoints, Directory, State, Store};
use ringtree::simulate;
use ringtree_object_store::Bucket;

/// Number of weights that fit into a single request.
pub(crate) const FEW: usize = 1000;
/// Number of weights that require several requests.
const MANY: usize = 5_000_000;

/// The URL of a bucket and the settings to open it, for this process and the processes that it
/// starts.
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) settings: Vec<(String, String)>,
}

impl Place {
    pub(crate) fn bucket(&self) -> Bucket {
        self.bucket_at(&self.url)
    }

    fn bucket_at(&self, url: &str) -> Bucket {
        Bucket::open_with(url, self.settings.clone()).unwrap()
    }
}

pub(crate) fn checkpoint(step: u64, count: usize) -> Checkpoint {
    let mut checkpoint = Checkpoint::new(State {
        run_id: "test-run".to_owned(),
        world_size: 2,
        step,
        ..State::default()
    });
    let weights: Vec<f32> = (0..count)
        .map(|index| (index as u64 ^ step) as f32)
        .collect();
    checkpoint
        .insert("model/weights", &[count], &weights)
        .unwrap();
    checkpoint
}

#[test]
fn checkpoint_of_any_size_loads_on_another_machine() {
    in_each_place("found", |place| {
        for count in [0, FEW, MANY] {
            let saved = checkpoint(count as u64, count);
            let checkpoints = Checkpoints::new(place.bucket(), 1);
            // A writer must look up the newest checkpoint before it saves.
            checkpoints.latest().unwrap();
            checkpoints.save(&saved).unwrap();
            // A URL with a trailing slash refers to the same location.
            let elsewhere = place.bucket_at(&format!("{}/", place.url));
            let found = Checkpoints::new(elsewhere, 1).latest().unwrap().unwrap();
            assert_eq!(found.checkpoint, saved);
            assert!(found.warnings.is_empty());
        }
        let (above, _) = place.url.rsplit_once('/').unwrap();
        let above = Checkpoints::new(place.bucket_at(above), 1);
        assert_eq!(above.latest(), Ok(None));
    });
}

#[test]
fn save_keeps_newest_checkpoints_and_other_objects() {
    in_each_place("kept", |place| {
        let store = place.bucket();
        store
            .write_atomically("notes.txt", &[b"mi", b"ne"])
            .unwrap();
        assert_eq!(store.read("notes.txt"), Ok(Some(b"mine".to_vec())));
        assert_eq!(store.read("nothing.txt"), Ok(None));
        store.remove("nothing.txt").unwrap();
        store
            .write_atomically("step-00000001.safetensors", &[b"left by a killed writer"])
            .unwrap();
        let checkpoints = Checkpoints::new(place.bucket(), 2);
        for step in [5, 10, 15, 15] {
            checkpoints.save(&checkpoint(step, FEW)).unwrap();
        }
        assert_eq!(checkpoints.newest_step(), Ok(Some(15)));
        let mut names = store.list().unwrap();
        names.sort();
        let kept = [
            "notes.txt",
            "step-00000010.json",
            "step-00000010.safetensors",
            "step-00000015.2.safetensors",
            "step-00000015.json",
        ];
        assert_eq!(names, kept);
    });
}

#[test]
fn writer_that_missed_a_checkpoint_cannot_save() {
    in_each_place("writers", |place| {
        let writers = [(); 3].map(|()| Checkpoints::new(place.bucket(), 3));
        let [first, second, blind] = &writers;
        first.save(&checkpoint(1, FEW)).unwrap();
        second.latest().unwrap();
        second.save(&checkpoint(2, FEW)).unwrap();
        for outdated in [first, blind] {
            let error = outdated.save(&checkpoint(3, FEW)).unwrap_err().to_string();
            assert!(error.contains(&place.url), "{error}");
            let explained =
                error.contains("step 2 that this training run neither loaded nor wrote");
            assert!(explained, "{error}");
        }
        assert_eq!(first.newest_step(), Ok(Some(2)));
    });
}

#[test]
fn damaged_object_is_named_and_older_checkpoint_loads() {
    in_each_place("damaged", |place| {
        let store = place.bucket();
        let checkpoints = Checkpoints::new(place.bucket(), 3);
        for name in ["step-00000002.json", "step-00000002.safetensors"] {
            for step in [1, 2] {
                checkpoints.save(&checkpoint(step, FEW)).unwrap();
            }
            // The second round saves step 2 again, in a new object next to the old one.
            let name = newest(&store, name);
            let intact = store.read(&name).unwrap().unwrap();
            let mut flipped = intact.clone();
            flipped[intact.len() / 2] ^= 4;
            for damaged in [&intact[..intact.len() - 1], &flipped, &[]] {
                store.write_atomically(&name, &[damaged]).unwrap();
                let found = checkpoints.latest().unwrap().unwrap();
                assert_eq!(found.checkpoint, checkpoint(1, FEW));
                let [warning] = &found.warnings[..] else {
                    panic!("{:?}", found.warnings);
                };
                let named = warning.contains(&name) && warning.contains(&place.url);
                assert!(named, "{warning}");
            }
        }
    });
}

/// Returns `name` if it is a manifest, and otherwise the tensor file that the manifest of step 2
/// names.
fn newest(store: &Bucket, name: &str) -> String {
    if name.ends_with(".json") {
        return name.to_owned();
    }
    let manifest = store.read("step-00000002.json").unwrap().unwrap();
    let text = String::from_utf8(manifest).unwrap();
    let (_, after) = text.split_once("\"file\": \"").unwrap();
    after.split('"').next().unwrap().to_owned()
}

#[test]
fn ranks_share_checkpoint_that_rank_0_loads() {
    in_each_place("shared", |place| {
        let nothing = tempfile::tempdir().unwrap();
        let ends = simulate(3, |comm| {
            let store: Box<dyn Store> = match comm.rank() {
                0 => Box::new(place.bucket()),
                _ => Box::new(Directory::new(nothing.path())),
            };
            let checkpoints = Checkpoints::new(store, 1);
            let mut own = checkpoint(7, FEW);
            let name = format!("rank-{0}/error", comm.rank());
            own.insert(&name, &[comm.rank()], &vec![0.5_f32; comm.rank()])?;
            checkpoints.save_from(comm, &own)?;
            let found = checkpoints.load_and_broadcast(comm)?.unwrap().checkpoint;
            assert_eq!(found.tensors["model/weights"], own.tensors["model/weights"]);
            found.values::<f32>(&name)
        });
        for (rank, end) in ends.into_iter().enumerate() {
            assert_eq!(end, Ok(vec![0.5; rank]));
        }
    });
}
