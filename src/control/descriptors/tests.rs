use super::*;

#[test]
fn open_files_are_counted_and_reported() {
    let before = DescriptorUsage::here();
    let files: Vec<_> = (0..10).map(|_| fs::File::open("/dev/null")).collect();
    // Concurrent tests in this process open and close files, so the exact numbers are unknown.
    assert!(DescriptorUsage::here().open > 0 && before.open > 0 && files.len() == 10);
    let room = DescriptorUsage {
        open: 12,
        soft: Some(20),
        hard: None,
    };
    assert!(room.holds(8) && !room.holds(9) && !room.holds(u64::MAX));
    let line = room.to_string();
    assert!(
        line.contains("12 files") && line.contains("20 (hard limit unlimited)"),
        "{line}"
    );
    assert!(needed(7, 0) > 14 && needed(0, 1000) == needed(0, 2));
}

#[test]
fn only_file_limit_errors_count_as_exhaustion() {
    let error = |errno: Errno| io::Error::from_raw_os_error(errno.raw_os_error());
    assert!(are_exhausted(&error(Errno::MFILE)) && are_exhausted(&error(Errno::NFILE)));
    assert!(!are_exhausted(&error(Errno::CONNABORTED)));
}
