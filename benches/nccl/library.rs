//! Finds NCCL and a GPU. Each is examined in a separate process, because loading a broken library
//! can end the process, and opening a GPU leaves a context behind.

use crate::arrangement::Version;
use crate::rank::say;
use crate::world::Players;
use ringtree::ErrorKind;
use ringtree::cuda::Device;
use ringtree::internal::cuda::description;
use std::collections::HashSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// The environment variable with which the user can specify NCCL's file or the directory that
/// contains it.
pub(crate) const SETTING: &str = "RINGTREE_NCCL_LIBRARY";

const FILE: &str = "libnccl.so.2";
/// Maximum time that it may take to examine NCCL or a GPU. A sleeping GPU takes seconds to wake up.
const PATIENCE: Duration = Duration::from_secs(60);

/// A Python program that prints where Python packages would keep NCCL, one path per line. It does
/// not import the packages.
const PYTHON: &str = "
import importlib.util, os
for package, place in ('nvidia.nccl', 'lib'), ('torch', 'lib'):
    try:
        found = importlib.util.find_spec(package)
    except ImportError:
        continue
    for folder in (found and found.submodule_search_locations) or []:
        print(os.path.join(folder, place, 'libnccl.so.2'))
";

/// An NCCL library that can be loaded.
pub(crate) struct Library {
    pub(crate) version: Version,
    pub(crate) file: PathBuf,
    /// Contains one link to the library, with the name under which cudarc searches for it.
    folder: TempDir,
}

impl Library {
    /// Returns the environment variable that makes a process load this NCCL library and no other.
    pub(crate) fn setting(&self) -> (String, String) {
        let theirs = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
        let own = self.folder.path().display();
        let value = match theirs.as_str() {
            "" => own.to_string(),
            _ => format!("{own}:{theirs}"),
        };
        ("LD_LIBRARY_PATH".into(), value)
    }

    fn open(file: &Path) -> Result<Self, String> {
        let file = file
            .canonicalize()
            .map_err(|error| format!("{} cannot be opened: {error}", file.display()))?;
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        symlink(&file, folder.path().join("libnccl.so")).map_err(|error| error.to_string())?;
        let mut library = Self {
            version: Version::from_code(0),
            file,
            folder,
        };
        let no_nccl = |_| {
            format!(
                "{} is not an NCCL library that can be loaded",
                library.file.display()
            )
        };
        let quiet = |command: &mut Command| {
            command.envs([library.setting()]).stderr(Stdio::null());
        };
        let mut look = Players::one("version", "NCCL", quiet)?;
        let said = look.hear(1, PATIENCE).map_err(no_nccl)?.remove(0);
        let code = said.parse().map_err(|_| said.clone())?;
        library.version = Version::from_code(code);
        Ok(library)
    }
}

/// Reports NCCL's version. This runs in the process that examines NCCL.
pub(crate) fn describe_nccl() -> Result<(), String> {
    let version = cudarc::nccl::result::get_nccl_version();
    let version = version.map_err(|error| format!("NCCL: {:?}", error.0))?;
    say(&version.to_string());
    Ok(())
}

/// Reports the GPUs. This runs in the process that examines them.
pub(crate) fn describe_gpu() -> Result<(), String> {
    let gpu = match Device::open(0) {
        Ok(gpu) => gpu,
        Err(error) if error.kind() == ErrorKind::NoDevice => {
            say(&format!("none {error}"));
            return Ok(());
        }
        Err(error) => return Err(error.to_string()),
    };
    let facts = description(&gpu);
    let count = ringtree::cuda::count().map_err(|error| error.to_string())?;
    say(&format!("{count} {} {}", facts.multiprocessors, facts.name));
    Ok(())
}

/// The GPUs that were found.
pub(crate) struct Found {
    pub(crate) count: usize,
    /// Number of multiprocessors on GPU 0.
    pub(crate) multiprocessors: usize,
    pub(crate) name: String,
}

/// Returns the GPUs, or the reason why there are none.
///
/// # Errors
/// Returns a message if there is a GPU but it cannot be used.
pub(crate) fn find_gpu() -> Result<Result<Found, String>, String> {
    let mut look = Players::one("gpu", "GPU 0", |_| {})?;
    let said = look.hear(1, PATIENCE)?.remove(0);
    if let Some(why) = said.strip_prefix("none ") {
        return Ok(Err(why.to_owned()));
    }
    let mut words = said.splitn(3, ' ');
    let mut number = || words.next().and_then(|word| word.parse().ok());
    let numbers = number().zip(number());
    let (count, multiprocessors) = numbers.ok_or_else(|| said.clone())?;
    Ok(Ok(Found {
        count,
        multiprocessors,
        name: words.next().unwrap_or_default().to_owned(),
    }))
}

/// Returns the NCCL library that the user specified, if any.
pub(crate) fn named() -> Option<Result<Library, String>> {
    let path = PathBuf::from(std::env::var_os(SETTING)?);
    let file = if path.is_dir() { path.join(FILE) } else { path };
    Some(Library::open(&file).map_err(|why| format!("{SETTING}: {why}")))
}

/// Returns the newest NCCL library that is found on this machine.
pub(crate) fn newest() -> Option<Library> {
    let mut files: Vec<PathBuf> = in_loaders_path().chain(in_python()).collect();
    files.retain(|file| file.is_file());
    // A file that was found in several ways counts only once.
    let mut seen = HashSet::new();
    files.retain(|file| file.canonicalize().is_ok_and(|file| seen.insert(file)));
    let libraries = files.iter().filter_map(|file| match Library::open(file) {
        Ok(library) => Some(library),
        Err(why) => {
            println!("nccl: skipped a library: {why}");
            None
        }
    });
    libraries.max_by_key(|library| library.version)
}

/// Returns the NCCL files that the system's loader would find.
fn in_loaders_path() -> impl Iterator<Item = PathBuf> {
    let theirs = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let named: Vec<_> = std::env::split_paths(&theirs)
        .filter(|folder| !folder.as_os_str().is_empty())
        .map(|folder| folder.join(FILE))
        .collect();
    let cached = ["ldconfig", "/sbin/ldconfig"]
        .iter()
        .find_map(|program| answer(Command::new(program).arg("-p")))
        .unwrap_or_default();
    named.into_iter().chain(cached_files(&cached))
}

/// Returns the NCCL files in a listing of the loader's cache.
fn cached_files(listing: &str) -> Vec<PathBuf> {
    let lines = listing.lines().filter(|line| line.trim().starts_with(FILE));
    lines
        .filter_map(|line| Some(line.split_once(" => ")?.1.into()))
        .collect()
}

/// Returns the NCCL files that Python packages would use.
fn in_python() -> Vec<PathBuf> {
    let said = |python| answer(Command::new(python).args(["-c", PYTHON])).unwrap_or_default();
    let said = ["python3", "python"].map(said).concat();
    said.lines().map(PathBuf::from).collect()
}

/// Returns the output of a program, or `None` if the program fails.
fn answer(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output();
    let output = output.ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()
}
