//! The suite once more, with a library in the driver's place that does in host memory what the
//! driver's manual says: so the calls of CUDA are made, in this order and with these arguments, on
//! machines without a GPU. What a GPU really does with them it cannot tell.

#[path = "driver.rs"]
mod driver;

use std::process::Command;

/// Set where the suite must find a device of CUDA.
pub(crate) const REQUIRED: &str = "RINGTREE_TEST_CUDA_REQUIRED";

#[test]
fn the_suite_passes_on_a_pretended_driver() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--skip", "pretended::"])
        .env("LD_LIBRARY_PATH", driver::folder())
        .env(REQUIRED, "1")
        .output()
        .unwrap();
    let (said, complained) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{said}\n{complained}");
}
