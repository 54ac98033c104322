use super::*;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

fn directory(mode: u32) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
    directory
}

fn get(store: &LauncherDirectory, key: &str) -> Option<Vec<u8>> {
    store.get(key, Duration::ZERO).unwrap()
}

#[test]
fn jobs_of_one_launcher_do_not_see_each_others_values() {
    let directory = directory(0o700);
    let open = |job| LauncherDirectory::open(directory.path(), job).unwrap();
    let (one, again, other) = (open("job@1"), open("job@1"), open("job@2"));
    assert_eq!(get(&one, "ringtree/id"), None);
    one.set("ringtree/id", b"first").unwrap();
    one.set("ringtree/id", b"second").unwrap();
    assert_eq!(get(&again, "ringtree/id").as_deref(), Some(&b"second"[..]));
    assert_eq!(get(&other, "ringtree/id"), None);
    assert_eq!(one.add("ringtree/came/x", 0).unwrap(), 0);
    assert_eq!(one.add("ringtree/came/x", 1).unwrap(), 1);
    assert_eq!(again.add("ringtree/came/x", 2).unwrap(), 3);
    let modes = fs::read_dir(directory.path()).unwrap();
    let modes = modes.map(|entry| entry.unwrap().metadata().unwrap().permissions().mode());
    assert!(modes.into_iter().all(|mode| mode & OTHERS == 0));
}

#[test]
fn directory_that_others_can_access_is_refused() {
    for mode in [0o755, 0o770, 0o701] {
        let directory = directory(mode);
        assert!(LauncherDirectory::open(directory.path(), "job").is_err());
    }
    let (private, other) = (directory(0o700), directory(0o700));
    let link = other.path().join("link");
    symlink(private.path(), &link).unwrap();
    assert!(LauncherDirectory::open(&link, "job").is_err());
    // A directory that is replaced after it was opened is still the one that was checked.
    let store = LauncherDirectory::open(private.path(), "job").unwrap();
    store.set("key", b"value").unwrap();
    let moved = other.path().join("moved");
    fs::rename(private.path(), &moved).unwrap();
    fs::create_dir(private.path()).unwrap();
    assert_eq!(get(&store, "key").as_deref(), Some(&b"value"[..]));
}
