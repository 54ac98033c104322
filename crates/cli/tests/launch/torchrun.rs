//! Tests command lines written for torchrun and mpirun.

use super::*;

#[test]
fn torchrun_spellings_work() {
    let options = [
        "--nproc_per_node=2",
        "--max_restarts",
        "0",
        "--node_rank=0",
        "--nnodes=1:1",
        "--standalone",
        "--rdzv_backend=c10d",
        "--no_python",
    ];
    let end = run(&options, "echo $LOCAL_RANK");
    assert_eq!((end.code, end.lines().len()), (Some(0), 2), "{end:?}");
    for all in ["auto", "cpu"] {
        let end = run(&["--nproc-per-node", all], "echo $WORLD_SIZE");
        let cores = thread::available_parallelism().unwrap().get();
        assert_eq!((end.code, end.lines().len()), (Some(0), cores), "{end:?}");
    }
}

#[test]
fn master_address_sets_endpoint_of_launchers() {
    let endpoint = address::reserved_address();
    let (host, port) = endpoint.rsplit_once(':').unwrap();
    // With one host, rank 0 listens at this endpoint.
    let options = ["--nproc-per-node=1", "--master_port", port];
    let end = run(&options, "echo $MASTER_ADDR:$MASTER_PORT");
    assert_eq!(end.stdout, format!("[0]: {endpoint}\n"), "{end:?}");

    let node = |place| {
        let options = ["--nproc-per-node=1", "--nnodes=2", "--node-rank", place];
        let meeting = ["--master-addr", host, "--master-port", port];
        let mut command = launcher(&[&options[..], &meeting].concat(), "echo $RANK");
        wait_in_thread(command.env("RINGTREE_SECRET", SECRET))
    };
    let [first, second] = ["0", "1"].map(node).map(|end| end.join().unwrap());
    assert_eq!((&*first.stdout, &*second.stdout), ("[0]: 0\n", "[1]: 1\n"));
}

#[test]
fn unsupported_options_fail_and_name_alternative() {
    let cases = [
        ("--rdzv-conf=timeout=900", "RINGTREE_TIMEOUT_MS"),
        ("--rdzv_backend=etcd", "--rdzv-endpoint"),
        ("--nnodes=1:4", "one number"),
        ("--nproc-per-node=gpu", "number of GPUs"),
        ("--tee=3", "--log-dir"),
        ("-r", "--log-dir"),
        ("--local_ranks_filter=0", "--output rank0"),
        ("--monitor_interval=5", "omit it"),
        ("-m", "python3 -m"),
        ("--local-addr=10.0.0.1", "RINGTREE_INTERFACE"),
        ("--output=all", "prefixed, rank0, inherit"),
        ("--frobnicate", "--frobnicate"),
        (
            "--max-restart=1",
            "the closest match is --max-restarts; see",
        ),
        // Options of mpirun.
        ("--hostfile=hosts", "--rdzv-endpoint"),
        ("-hostfile", "--rdzv-endpoint"),
        ("-machinefile", "--rdzv-endpoint"),
        ("-host", "--rdzv-endpoint"),
        ("-H", "--rdzv-endpoint"),
        ("--nproc=1", "use -n or"),
        ("-x", "inherit"),
        ("--map-by=core", "--bind-to core"),
        ("--timeout=9", "RINGTREE_TIMEOUT_MS"),
    ];
    for (option, instead) in cases {
        let ranks = if option.contains("nproc") {
            option
        } else {
            "--nproc-per-node=1"
        };
        let end = run(&[ranks, option], "true");
        assert_eq!(
            (end.code, end.messages().len()),
            (Some(2), 1),
            "{option}: {end:?}"
        );
        assert!(end.stderr.contains(instead), "{option}: {end:?}");
    }
    let contradictions: [&[&str]; 2] = [
        &["--standalone", "--nnodes=2", "--rdzv-endpoint=127.0.0.1:1"],
        &["--master-addr=127.0.0.1", "--rdzv-endpoint=127.0.0.1:1"],
    ];
    for options in contradictions {
        let end = run(&[&["--nproc-per-node=1"], options].concat(), "true");
        assert_eq!((end.code, end.messages().len()), (Some(2), 1), "{end:?}");
        assert!(
            end.stderr.contains(options[0].split('=').next().unwrap()),
            "{end:?}"
        );
    }
}

#[test]
fn np_option_works_and_program_keeps_its_own() {
    for options in [
        &["-np", "2"][..],
        &["--np", "2"],
        &["--sessions", "-np", "2"],
    ] {
        let mut command = launcher(options, "echo $WORLD_SIZE $0 $1");
        let end = wait(command.args(["-np", "7"]).spawn().unwrap());
        let expected = ["[0]: 2 -np 7", "[1]: 2 -np 7"];
        assert_eq!(end.code, Some(0), "{end:?}");
        assert_eq!(end.lines(), expected.into(), "{end:?}");
    }
    let mut command = launcher(&["-n", "p"], "true");
    let end = wait(command.args(["-np", "7"]).spawn().unwrap());
    assert_eq!((end.code, end.messages().len()), (Some(2), 1), "{end:?}");
}

#[test]
fn misspelled_command_gets_suggestion() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringtree"));
    let output = command.args(["runn", "-n", "2", "true"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1));
    assert!(text.contains("closest match is run; see"), "{text}");
}

#[test]
fn error_suggests_program_in_working_directory() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["grad", "sums.py"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    for (program, hint) in [
        ("grad", "; try ./grad"),
        (
            "sums.py",
            "; to run a Python script, write `python3 sums.py`",
        ),
        (
            "./sums.py",
            "; to run a Python script, write `python3 ./sums.py`",
        ),
        ("nowhere", "(os error 2)"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringtree"));
        command.args(["run", "-n", "2", program]);
        let output = command.current_dir(folder.path()).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.trim_end().ends_with(hint), "{text}");
    }
}
