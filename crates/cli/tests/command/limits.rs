//! Tests the command under tight resource limits.

use std::process::Command;

/// Runs an all-reduce of two ranks under `ulimit LIMIT`. Returns the exit code and standard error.
fn limited(limit: &str, transport: &str) -> (Option<i32>, String) {
    let script = format!(
        "ulimit {limit}; exec \"$0\" bench all-reduce --ranks 2 --sizes 8 --iters 3 --format csv \
         --transport {transport}"
    );
    let output = Command::new("/bin/sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_ringtree")])
        .output()
        .unwrap();
    let used = String::from_utf8_lossy(&output.stdout).contains(",tcp,");
    assert_eq!(used, output.status.code() == Some(0), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), text)
}

#[test]
fn file_size_limit_makes_auto_use_tcp_and_shm_fail() {
    // Depending on the shell, `-f` counts blocks of 512 or 1,024 bytes. Either way, the limit is
    // too small for the memory that two ranks share.
    let (code, text) = limited("-f 512", "auto");
    assert_eq!(code, Some(0), "{text}");
    for rank in 0..2 {
        let line = format!("ringtree: rank {rank} uses TCP within its host: ");
        let lines: Vec<_> = text.lines().filter(|one| one.contains(&line)).collect();
        assert!(
            lines.len() == 1 && lines[0].contains("`ulimit -f`"),
            "{text}"
        );
    }
    let (code, text) = limited("-f 512", "shm");
    assert_eq!(code, Some(1), "{text}");
    for part in ["RINGTREE_TRANSPORT=shm, but rank 0", "`ulimit -f`"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn low_soft_descriptor_limit_is_raised() {
    let script = "ulimit -Sn 20; exec \"$0\" run --nproc-per-node 8 -- /bin/sh -c \"$1\"";
    let output = Command::new("/bin/sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_ringtree")])
        .arg("ulimit -Sn; ulimit -Hn")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let limits: Vec<_> = text.lines().map(|line| &line["[0]: ".len()..]).collect();
    assert_eq!(limits.len(), 16, "{output:?}");
    assert!(limits.iter().all(|limit| *limit == limits[0]), "{text}");
    assert_ne!(limits[0], "20");
}
