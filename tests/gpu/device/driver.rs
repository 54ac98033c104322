//! The library in the driver's place.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

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
        .arg("-o")
        // The first name that is looked for, before that of a driver that may be there.
        .args([&folder.join("libcuda.so"), &source])
        .status();
    match status {
        Ok(status) => assert!(status.success(), "{compiler} refuses {}", source.display()),
        Err(error) => panic!("no C++ compiler {compiler} ({error}): install g++, or set CXX"),
    }
    folder
}
