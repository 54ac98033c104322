//! Tests jobs on several hosts, which are all emulated on this machine.

use super::address::reserved_address;
use super::*;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Settings for the launchers of one job, which connect at an endpoint reserved for this job.
pub(crate) struct Hosts {
    endpoint: String,
    nodes: String,
}

impl Hosts {
    pub(crate) fn new(nodes: usize) -> Self {
        Hosts {
            endpoint: reserved_address(),
            nodes: nodes.to_string(),
        }
    }

    pub(crate) fn launcher(&self, ranks: usize, options: &[&str], script: &str) -> Command {
        let ranks = ranks.to_string();
        let mut all = vec![
            "--nproc-per-node",
            &ranks,
            "--rdzv-endpoint",
            &self.endpoint,
        ];
        if !options.contains(&"--nnodes") {
            all.extend(["--nnodes", &self.nodes]);
        }
        all.extend(options);
        let mut command = launcher(&all, script);
        command.env("RINGTREE_SECRET", SECRET);
        command
    }

    /// Starts the launcher that coordinates the job, and waits until it listens.
    pub(crate) fn coordinator(&self, ranks: usize, options: &[&str], script: &str) -> Child {
        let child = self.launcher(ranks, options, script).spawn().unwrap();
        self.await_coordinator();
        child
    }

    pub(crate) fn await_coordinator(&self) {
        eventually("the coordinator listens", || {
            TcpStream::connect(&self.endpoint).is_ok()
        });
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }
}

#[test]
fn same_command_line_works_on_two_hosts() {
    let hosts = Hosts::new(2);
    let script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE \
                  $GROUP_RANK/$GROUP_WORLD_SIZE $MASTER_PORT";
    let first = hosts.coordinator(2, &[], script);
    let second = wait_in_thread(&mut hosts.launcher(1, &[], script));
    let (first, second) = (wait(first), second.join().unwrap());
    assert_eq!(
        (first.code, second.code),
        (Some(0), Some(0)),
        "{first:?} {second:?}"
    );
    let port = first.stdout.trim().rsplit(' ').next().unwrap();
    let here = [
        format!("[0]: 0/3 0/2 0/2 {port}"),
        format!("[1]: 1/3 1/2 0/2 {port}"),
    ];
    assert_eq!(first.lines(), here.iter().map(String::as_str).collect());
    assert_eq!(second.stdout, format!("[2]: 2/3 0/1 1/2 {port}\n"));
}

#[test]
fn given_node_ranks_do_not_depend_on_arrival_order() {
    let hosts = Hosts::new(3);
    let node = |place| {
        hosts
            .launcher(1, &["--node-rank", place], "echo $RANK")
            .spawn()
            .unwrap()
    };
    let launchers = ["2", "1", "0"].map(node);
    for (launcher, rank) in launchers.into_iter().zip([2, 1, 0]) {
        let end = wait(launcher);
        assert_eq!(end.stdout, format!("[{rank}]: {rank}\n"), "{end:?}");
        assert_eq!(end.code, Some(0));
    }
}

#[test]
fn hosts_of_kubernetes_and_slurm_need_no_options() {
    fn kubeflow(node: &str, host: &str, port: &str) -> Vec<(&'static str, String)> {
        [
            ("PET_NNODES", "2"),
            ("PET_NPROC_PER_NODE", "1"),
            ("PET_NODE_RANK", node),
            ("PET_MASTER_ADDR", host),
            ("PET_MASTER_PORT", port),
        ]
        .map(|(name, value)| (name, value.to_owned()))
        .into()
    }
    fn slurm(node: &str, host: &str, port: &str) -> Vec<(&'static str, String)> {
        [
            ("SLURM_PROCID", node),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
            ("SLURM_NODEID", node),
            ("SLURM_STEP_NODELIST", host),
            ("SLURM_STEP_RESV_PORTS", port),
        ]
        .map(|(name, value)| (name, value.to_owned()))
        .into()
    }
    type System = fn(&str, &str, &str) -> Vec<(&'static str, String)>;
    let systems: [(&[&str], System); 2] = [(&[], kubeflow), (&["-n", "1"], slurm)];
    for (options, system) in systems {
        let endpoint = reserved_address();
        let (host, port) = endpoint.rsplit_once(':').unwrap();
        let node = |node: &'static str| {
            let mut command = launcher(options, "echo $RANK/$WORLD_SIZE");
            command.envs(system(node, host, port));
            command.env("RINGTREE_SECRET", SECRET).spawn().unwrap()
        };
        for (launcher, rank) in ["1", "0"].map(node).into_iter().zip([1, 0]) {
            let end = wait(launcher);
            assert_eq!(end.stdout, format!("[{rank}]: {rank}/2\n"), "{end:?}");
        }
    }
    let mut alone = launcher(&["--standalone", "-n", "2"], "echo $WORLD_SIZE");
    alone.envs(kubeflow("0", "127.0.0.1", "1"));
    let end = wait(alone.spawn().unwrap());
    assert_eq!(end.lines(), ["[0]: 2", "[1]: 2"].into(), "{end:?}");
}

/// The message lets a user distinguish a firewall from a slow start.
#[test]
fn waiting_launcher_reports_missing_peers_and_endpoint() {
    let hosts = Hosts::new(2);
    let alone = |place: &str| {
        let mut command = hosts.launcher(1, &["--node-rank", place], "true");
        // This timeout ends the launcher if it never prints the message.
        command.env("RINGTREE_TIMEOUT_MS", "20000").spawn().unwrap()
    };
    let at = hosts.endpoint();
    let expected = [
        format!("1 of 2 launchers have connected to {at} after 5 s"),
        format!("cannot reach the launcher of node 0 at {at} after 5 s"),
    ];
    for (place, expected) in ["0", "1"].into_iter().zip(expected) {
        let mut launcher = alone(place);
        let mut lines = BufReader::new(launcher.stderr.take().unwrap()).lines();
        let message = lines.find_map(|line| line.ok().filter(|line| line.contains(&expected)));
        launcher.kill().unwrap();
        launcher.wait().unwrap();
        assert!(message.is_some(), "{expected}");
    }
}

#[test]
fn several_hosts_need_a_secret() {
    let hosts = Hosts::new(2);
    let end = wait(
        hosts
            .launcher(1, &[], "true")
            .env_remove("RINGTREE_SECRET")
            .spawn()
            .unwrap(),
    );
    assert_eq!((end.code, end.messages().len()), (Some(2), 1), "{end:?}");
    for word in [
        "openssl rand -hex 32",
        "RINGTREE_SECRET",
        "RINGTREE_SECRET_FILE",
    ] {
        assert!(end.stderr.contains(word), "{end:?}");
    }
}

#[test]
fn wrong_secret_and_garbage_are_rejected() {
    let hosts = Hosts::new(2);
    let first = hosts.coordinator(1, &[], "echo $RANK");
    let mut stranger = TcpStream::connect(&hosts.endpoint).unwrap();
    stranger.write_all(&[b'G'; 400]).unwrap();
    let wrong = SECRET.replace('0', "1");
    let end = wait(
        hosts
            .launcher(1, &[], "true")
            .env("RINGTREE_SECRET", wrong)
            .env("RINGTREE_TIMEOUT_MS", "3000")
            .spawn()
            .unwrap(),
    );
    assert_eq!((end.code, end.messages().len()), (Some(1), 2), "{end:?}");
    assert!(end.messages()[0].ends_with("; retrying"), "{end:?}");
    assert!(end.stderr.contains("different secret") && end.stderr.contains(&hosts.endpoint));
    let second = wait_in_thread(&mut hosts.launcher(1, &[], "echo $RANK"));
    let (first, second) = (wait(first), second.join().unwrap());
    assert_eq!(
        (first.code, second.code),
        (Some(0), Some(0)),
        "{first:?} {second:?}"
    );
    assert!(
        first.stderr.contains("it uses a different secret"),
        "{first:?}"
    );
}

#[test]
fn unauthenticated_connections_do_not_block_launchers() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let hosts = Hosts::new(2);
    let first = hosts.coordinator(1, &[], "echo $RANK");
    let is_over = Arc::new(AtomicBool::new(false));
    let (endpoint, ends) = (hosts.endpoint.clone(), Arc::clone(&is_over));
    // Open 1,500 connections that begin a handshake, and then 1,000 more per second.
    let strangers = thread::spawn(move || {
        let mut held = VecDeque::new();
        while !ends.load(Ordering::Relaxed) {
            if let Ok(mut stream) = TcpStream::connect(&endpoint) {
                let _ = stream.write_all(b"ringtree");
                held.push_back(stream);
            }
            if held.len() > 1500 {
                held.pop_front();
                thread::sleep(Duration::from_millis(1));
            }
        }
    });
    thread::sleep(Duration::from_secs(1));
    let mut second = hosts.launcher(1, &[], "echo $RANK");
    let second = wait(second.env("RINGTREE_TIMEOUT_MS", "30000").spawn().unwrap());
    is_over.store(true, Ordering::Relaxed);
    assert_eq!(second.code, Some(0), "{second:?}");
    assert_eq!(wait(first).code, Some(0));
    strangers.join().unwrap();
}

#[test]
fn impostor_at_endpoint_does_not_fail_job() {
    let hosts = Hosts::new(2);
    let impostor = TcpListener::bind(&hosts.endpoint).unwrap();
    let impostor = thread::spawn(move || {
        for stream in impostor.incoming().take(4) {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 64]);
            // An acceptor's frame that specifies wire version 999.
            let mut frame = [0; 48];
            frame[..8].copy_from_slice(b"rtok\xe7\x03\x01\x00");
            let _ = stream.write_all(&frame);
        }
    });
    let launchers = [0, 1].map(|_| wait_in_thread(&mut hosts.launcher(1, &[], "echo $RANK")));
    impostor.join().unwrap();
    for end in launchers.map(|one| one.join().unwrap()) {
        assert_eq!(end.code, Some(0), "{end:?}");
    }
}

#[test]
fn contradictory_options_stop_job_and_name_both_launchers() {
    type Options = &'static [&'static str];
    let first: Options = &["--node-rank", "0"];
    let second: Options = &["--node-rank", "1"];
    let cases: [(Options, &[Options], &str); 4] = [
        (first, &[second, second], "--node-rank 1"),
        (first, &[&[]], "--node-rank 0"),
        (&[], &[&["--nnodes", "4"]], "--nnodes"),
        (&[], &[&["--max-restarts", "2"]], "--max-restarts"),
    ];
    for (own, others, named) in cases {
        let hosts = Hosts::new(3);
        let first = hosts.coordinator(1, own, "true");
        let mut ends = vec![thread::spawn(move || wait(first))];
        ends.extend(
            others
                .iter()
                .map(|own| wait_in_thread(&mut hosts.launcher(1, own, "true"))),
        );
        for end in ends.into_iter().map(|end| end.join().unwrap()) {
            assert_eq!((end.code, end.messages().len()), (Some(1), 1), "{end:?}");
            assert_eq!(
                end.messages()[0].matches("the launcher on").count(),
                2,
                "{end:?}"
            );
            assert!(end.stderr.contains(named), "{end:?}");
        }
    }
}

#[test]
fn missing_launchers_are_reported_after_timeout() {
    let hosts = Hosts::new(2);
    for (place, named) in [
        ("0", "only 1 of 2 launchers connected"),
        ("1", "cannot reach"),
    ] {
        let mut command = hosts.launcher(1, &["--node-rank", place], "true");
        let end = wait(command.env("RINGTREE_TIMEOUT_MS", "300").spawn().unwrap());
        assert_eq!((end.code, end.messages().len()), (Some(1), 1), "{end:?}");
        assert!(
            end.stderr.contains(named) && end.stderr.contains(&hosts.endpoint),
            "{end:?}"
        );
    }
}

#[test]
fn failing_rank_stops_job_on_every_host() {
    for failing in 0..2 {
        let hosts = Hosts::new(2);
        let mark = mark();
        let script = format!(
            "if [ $RANK = {failing} ]; then echo out of memory >&2; exit 7; fi; sleep {mark}"
        );
        let first = hosts.coordinator(1, &[], &script);
        let second = wait_in_thread(&mut hosts.launcher(1, &[], &script));
        for end in [wait(first), second.join().unwrap()] {
            assert_eq!((end.code, end.messages().len()), (Some(1), 1), "{end:?}");
            let named = format!("ringtree: rank {failing} (node {failing}, host ");
            assert!(end.messages()[0].starts_with(&named), "{end:?}");
            let what = match end.stderr.contains("]: out of memory\n") {
                true => format!("exited with code 7; its last output is above, after [{failing}]"),
                false => "exited with code 7; its last output: out of memory".to_owned(),
            };
            assert!(end.messages()[0].ends_with(&what), "{end:?}");
            assert_eq!(end.stderr.matches("out of memory").count(), 1, "{end:?}");
            assert!(end.took < STOP_LIMIT, "{:?}", end.took);
        }
        assert_eq!(sleepers(&mark), NO_PROCESSES);
    }
}

#[test]
fn killed_launcher_stops_job_on_every_host() {
    for killed in 0..2 {
        let hosts = Hosts::new(2);
        let mark = mark();
        let script = format!("sleep {mark} & sleep {mark}");
        let first = hosts.coordinator(1, &[], &script);
        let second = hosts.launcher(1, &[], &script).spawn().unwrap();
        eventually("all processes sleep", || sleepers(&mark).len() == 4);
        let mut both = [first, second];
        both[killed].kill().unwrap();
        let [first, second] = both;
        let ends = [wait(first), wait(second)];
        let end = &ends[1 - killed];
        assert_eq!((end.code, end.messages().len()), (Some(1), 1), "{end:?}");
        assert!(
            end.stderr
                .contains(&format!("the launcher of node {killed}")),
            "{end:?}"
        );
        assert!(killed == 0 || end.stderr.contains("rank 1"), "{end:?}");
        assert!(end.took < STOP_LIMIT, "{:?}", end.took);
        eventually("no process is left", || running(&mark).is_empty());
    }
}

#[test]
fn program_missing_on_one_host_stops_job() {
    let hosts = Hosts::new(2);
    let mark = mark();
    let first = hosts.coordinator(1, &[], &format!("sleep {mark}"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringtree"));
    command.args([
        "run",
        "--nproc-per-node=1",
        "--nnodes=2",
        "--rdzv-endpoint",
        &hosts.endpoint,
    ]);
    command
        .args(["--", "/no/such/program"])
        .env("RINGTREE_SECRET", SECRET);
    let second = wait_in_thread(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let (first, second) = (wait(first), second.join().unwrap());
    assert_eq!(
        (first.code, second.code),
        (Some(1), Some(2)),
        "{first:?} {second:?}"
    );
    assert!(first.stderr.contains("node 1") && first.stderr.contains("/no/such/program"));
    assert_eq!(sleepers(&mark), NO_PROCESSES);
}
