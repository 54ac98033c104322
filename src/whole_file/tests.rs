use super::*;
use rustix::fs::inotify;
use std::mem::MaybeUninit;

#[test]
fn create_directory_creates_missing_parents_and_syncs_existing_parent() {
    let scratch = tempfile::tempdir().unwrap();
    let [first, second] = ["a", "a/b"].map(|name| scratch.path().join(name));
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&watch, scratch.path(), inotify::WatchFlags::OPEN).unwrap();
    create_directory(&second).unwrap();
    assert!(first.is_dir() && second.is_dir());
    let mut space = [MaybeUninit::uninit(); 1024];
    let mut events = inotify::Reader::new(&watch, &mut space);
    // A directory must be opened to be synced, so this event shows that the parent was synced.
    assert!(events.next().unwrap().file_name().is_none());
    create_directory(&second).unwrap();
    assert!(create_directory(Path::new("/proc/self/stat/directory")).is_err());
}

#[test]
fn replace_writes_complete_file_and_leaves_no_partial_file() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("file");
    replace(&path, &[b"one", b"", b" and two"]).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"one and two");
    replace(&path, &[b"three"]).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"three");
    // A directory is not replaced, and no temporary file remains.
    let directory = scratch.path().join("directory");
    create_directory(&directory).unwrap();
    replace(&directory, &[b"four"]).unwrap_err();
    let names = fs::read_dir(scratch.path()).unwrap();
    assert_eq!(names.count(), 2);
}
