//! Compiles the fake driver.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// File names of the driver: the name that programs usually open, and the name of a toolkit's
/// linker stub.
pub(crate) const NAME: &str = "libcuda.so.1";
pub(crate) const TOOLKIT_NAME: &str = "libcuda.so";

/// Compiles the library once per process and returns its directory, for `LD_LIBRARY_PATH`.
pub(crate) fn folder() -> PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(compile).clone()
}

fn compile() -> PathBuf {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    // The library is stored next to the test binary. Each binary has its own copy, because several
    // may compile it simultaneously.
    let own = std::env::current_exe().unwrap();
    let folder = own.with_extension("driver");
    std::fs::create_dir_all(&folder).unwrap();
    let mut roots = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let source = roots.find_map(|root| {
        let source = root.join("tests/gpu/device/fake_driver.cpp");
        source.exists().then_some(source)
    });
    let source = source.expect("the repository must contain the fake driver");
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
        // The soname of the real driver and of a toolkit's stub.
        .args(["-Wl,-soname,libcuda.so.1", "-o"])
        .args([&folder.join(NAME), &source])
        .status();
    match status {
        Ok(status) => assert!(
            status.success(),
            "{compiler} cannot compile {}",
            source.display()
        ),
        Err(error) => panic!("no C++ compiler {compiler} ({error}): install g++, or set CXX"),
    }
    // cudarc opens the library by this name.
    let link = folder.join(TOOLKIT_NAME);
    let _ = std::fs::remove_file(&link);
    symlink(NAME, link).unwrap();
    folder
}
