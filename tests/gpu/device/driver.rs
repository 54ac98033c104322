//! The library in the driver's place.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// What a program opens, and what a toolkit's stub is called for the linker.
pub(crate) const NAME: &str = "libcuda.so.1";
pub(crate) const TOOLKIT_NAME: &str = "libcuda.so";

/// Compiles it, once a process; the folder that it lies in, for `LD_LIBRARY_PATH`.
pub(crate) fn folder() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(compiled).clone()
}

fn compiled() -> PathBuf {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    // Beside the tests' binaries; another for each, as they may be compiled at once.
    let own = std::env::current_exe().unwrap();
    let folder = own.with_extension("driver");
    std::fs::create_dir_all(&folder).unwrap();
    let mut roots = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let source = roots.find_map(|root| {
        let source = root.join("tests/gpu/device/pretended_driver.cpp");
        source.exists().then_some(source)
    });
    let source = source.expect("the repository has it");
    let status = Command::new(&compiler)
        .args([
            "-std=c++17",
            "-O1",
            "-ffp-contract=off",
            "-w",
            "-shared",
            "-fPIC",
            "-pthread",
        ])
        // What the driver's library calls itself. So does a toolkit's stub.
        .args(["-Wl,-soname,libcuda.so.1", "-o"])
        .args([&folder.join(NAME), &source])
        .status();
    match status {
        Ok(status) => assert!(status.success(), "{compiler} refuses {}", source.display()),
        Err(error) => panic!("no C++ compiler {compiler} ({error}): install g++, or set CXX"),
    }
    // The other name, for cudarc: the library takes what it finds by the first.
    let link = folder.join(TOOLKIT_NAME);
    let _ = std::fs::remove_file(&link);
    symlink(NAME, link).unwrap();
    folder
}
