//! Writes files that readers always find complete, even while the files are being replaced.

use std::fs;
use std::io;
use std::path::Path;

/// Replaces the contents of the file `path`. Creates the file's directory if necessary.
pub(crate) fn replace(path: &Path, content: &str) -> io::Result<()> {
    make_folder_of(path)?;
    if path.metadata().is_ok_and(|there| !there.is_file()) {
        // Do not replace a device, such as /dev/null.
        return fs::write(path, content);
    }
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    fs::write(&partial, content)?;
    fs::rename(&partial, path)
}

/// Checks that the file `path` can be written, without changing its contents.
pub(crate) fn check(path: &Path) -> io::Result<()> {
    make_folder_of(path)?;
    let mut options = fs::OpenOptions::new();
    options.create(true).append(true).open(path).map(drop)
}

/// Creates the directory that contains `path`.
pub(crate) fn make_folder_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) => fs::create_dir_all(folder),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_file_is_replaced_but_device_is_kept() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("new/file");
        for content in ["one", "two"] {
            replace(&path, content).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        replace(Path::new("/dev/null"), "gone").unwrap();
        assert!(!Path::new("/dev/null").metadata().unwrap().is_file());
    }
}
