//! Files that appear whole or not at all, also after a crash of the machine.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The end of a file's name while it is being written.
pub(crate) const PARTIAL_SUFFIX: &str = ".partial";

/// Writes `parts`, one after another, to the file `path`, in place of the one that is there.
///
/// They are written under another name in the same folder, brought to the disk, and renamed, and
/// the folder is brought to the disk too: rename replaces a file in one step, also on NFS. No other
/// user can guess that name, and no link of that name would be followed.
///
/// # Errors
/// The system's; then the file is as it was, or whole and new but perhaps not on the disk.
pub(crate) fn replace(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    // Two writers, though there should be one, must not write into one file.
    let mark = crate::random::number()?;
    let mut partial: OsString = path.into();
    partial.push(format!(".{mark:016x}{PARTIAL_SUFFIX}"));
    let partial = PathBuf::from(partial);
    // Fails if anything has the name, a link included.
    let file = File::create_new(&partial)?;
    let written = write(file, parts).and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&partial);
    }
    written.and_then(|()| sync_folder(parent(path)))
}

/// Makes the folder `path` and those above it that are missing, and brings them to the disk: a
/// file in a folder is lost with the folder's own entry in the one above.
///
/// # Errors
/// The system's.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let above = parent(path);
    make_folder(above)?;
    match fs::create_dir(path) {
        // Another process was faster.
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        Err(error) if !path.is_dir() => Err(error),
        _ => sync_folder(above),
    }
}

fn write(mut file: File, parts: &[&[u8]]) -> io::Result<()> {
    for part in parts {
        file.write_all(part)?;
    }
    file.sync_all()
}

/// The folder that `path` is in.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        None => Path::new("/"),
    }
}

/// Brings a folder's own entries to the disk.
fn sync_folder(path: &Path) -> io::Result<()> {
    match File::open(path)?.sync_all() {
        // Some network file systems know no such call for folders, and need none.
        Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::inotify;
    use std::mem::MaybeUninit;

    #[test]
    fn a_new_folder_is_brought_to_the_disk_with_those_above_it() {
        let scratch = tempfile::tempdir().unwrap();
        let [first, second] = ["a", "a/b"].map(|name| scratch.path().join(name));
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&watch, scratch.path(), inotify::WatchFlags::OPEN).unwrap();
        make_folder(&second).unwrap();
        assert!(first.is_dir() && second.is_dir());
        let mut space = [MaybeUninit::uninit(); 1024];
        let mut events = inotify::Reader::new(&watch, &mut space);
        // Only an open folder can be brought to the disk.
        assert!(events.next().unwrap().file_name().is_none());
        make_folder(&second).unwrap();
        assert!(make_folder(Path::new("/proc/self/stat/folder")).is_err());
    }

    #[test]
    fn a_file_is_replaced_whole_or_stays_as_it_was() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("file");
        replace(&path, &[b"one", b"", b" and two"]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one and two");
        replace(&path, &[b"three"]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"three");
        // A folder is not replaced, and nothing is left.
        let folder = scratch.path().join("folder");
        make_folder(&folder).unwrap();
        replace(&folder, &[b"four"]).unwrap_err();
        let names = fs::read_dir(scratch.path()).unwrap();
        assert_eq!(names.count(), 2);
    }
}
