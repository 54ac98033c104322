//! The suite once more, with a library in the driver's place that does in host memory what the
//! driver's manual says: so the calls of CUDA are made, in this order and with these arguments, on
//! machines without a GPU. What a GPU really does with them it cannot tell.

use std::path::Path;
use std::process::Command;

/// Set where the suite must find a device of CUDA.
pub(crate) const REQUIRED: &str = "RINGTREE_TEST_CUDA_REQUIRED";

#[test]
fn the_suite_passes_on_a_pretended_driver() {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pretended_driver");
    std::fs::create_dir_all(&folder).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/device/pretended_driver.cpp");
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
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--skip", "pretended::"])
        .env("LD_LIBRARY_PATH", &folder)
        .env(REQUIRED, "1")
        .output()
        .unwrap();
    let (said, complained) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{said}\n{complained}");
}
