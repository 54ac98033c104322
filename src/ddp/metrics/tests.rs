use super::*;

fn write(path: &Path, run: &str, from: u64, steps: &[u64]) -> File {
    let mut file = open(path, run, from).unwrap();
    for &step in steps {
        let run = run.to_owned();
        let line = Line {
            run,
            step,
            ..Line::default()
        };
        writeln!(file, "{}", serde_json::to_string(&line).unwrap()).unwrap();
    }
    file
}

#[test]
fn resumed_run_continues_after_checkpoint_step() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("new/metrics.jsonl");
    let mut first = write(&path, "a", 0, &[1, 2, 3, 4, 5]);
    // Simulate a process that is killed while it is writing a line.
    write!(first, "{{\"run\":\"a\",\"st").unwrap();
    write(&path, "a", 3, &[4]);
    let steps = |run| {
        let lines = Metrics::read(&path, run).unwrap();
        lines.iter().map(|line| line.step).collect::<Vec<_>>()
    };
    assert_eq!(steps("a"), [1, 2, 3, 4]);
    // Another run that uses the same file adds its lines and keeps the lines of the first run.
    write(&path, "b", 0, &[1]);
    write(&path, "a", 2, &[]);
    assert_eq!((steps("a"), steps("b")), (vec![1, 2], vec![1]));
}

#[test]
fn file_that_is_not_utf8_is_not_overwritten() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("metrics.jsonl");
    fs::write(&path, [0xFF, 0xFE]).unwrap();
    let message = open(&path, "a", 0).unwrap_err().to_string();
    assert!(message.starts_with("cannot read the metrics "), "{message}");
    assert_eq!(fs::read(&path).unwrap(), [0xFF, 0xFE]);
}
