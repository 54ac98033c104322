//! Tests `ringtree doctor`.

use serde_json::Value;
use std::fs::File;
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

/// Returns the command without the environment of this process.
fn doctor(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringtree"));
    command.env_clear().arg("doctor").args(arguments);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the JSON object that the command printed.
fn object(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the only line of standard error.
fn only_line(output: &Output) -> String {
    let line = text(&output.stderr);
    assert_eq!(line.lines().count(), 1, "{line}");
    line
}

#[test]
fn text_has_all_groups() {
    let output = doctor(&[]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed = text(&output.stdout);
    let headings = [
        "Version\n  ringtree ",
        "\n\nNetwork\n",
        "\n\nProcessor\n",
        "\n\nMemory and limits\n",
        "\n\nShared memory\n",
        "\n\nGPU\n",
        "\n\nSettings\n",
    ];
    for heading in headings {
        assert!(printed.contains(heading), "{heading}: {printed}");
    }
    assert!(!printed.contains("\nPeer\n"));
    assert!(printed.contains("\nProblems\n") || printed.ends_with("\nno problems found\n"));
}

#[test]
fn json_is_one_object_with_all_groups() {
    let output = doctor(&["--json"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let found = object(&output);
    for (group, fact) in [
        ("version", "wire_version"),
        ("network", "interface"),
        ("processor", "cores_usable"),
        ("memory_and_limits", "open_files"),
        ("shared_memory", "boot_id"),
        ("gpu", "gpu_buffers"),
        ("settings", "ringtree_timeout_ms"),
    ] {
        assert!(found[group].get(fact).is_some(), "{group} {fact}: {found}");
    }
    assert!(found["version"]["wire_version"].is_u64());
    assert!(found["problems"].is_array());
    assert_eq!(
        found["settings"]["ringtree_timeout_ms"]["origin"],
        "default"
    );
}

#[test]
fn peer_that_listens_has_a_round_trip_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let output = doctor(&["--json", "--peer", &address]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let peer = &object(&output)["peer"];
    assert_eq!(peer["is_reachable"], true);
    assert_eq!(peer["connected_to"], address.as_str());
    let time = |name: &str| peer[name].as_f64().unwrap();
    let (median, least) = (time("round_trip_median_us"), time("round_trip_minimum_us"));
    assert!(0.0 < least && least <= median, "{peer}");
    let output = doctor(&["--peer", &address]).output().unwrap();
    assert!(text(&output.stdout).contains("\n  round trip median us "));
}

#[test]
fn peer_that_does_not_listen_fails() {
    // A socket that is bound but does not listen keeps other processes from using the port.
    let bound = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    );
    let bound = bound.unwrap();
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    rustix::net::bind(&bound, &any).unwrap();
    let own = rustix::net::getsockname(&bound).unwrap();
    let port = std::net::SocketAddrV4::try_from(own).unwrap().port();
    for arguments in [&["--json"][..], &[]] {
        let peer = format!("127.0.0.1:{port}");
        let output = doctor(arguments).args(["--peer", &peer]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let line = only_line(&output);
        let why = format!("ms, but nothing listens on port {port}; start the process");
        let start = "ringtree doctor: the host 127.0.0.1 answers in ";
        assert!(line.starts_with(start) && line.contains(&why), "{line}");
        assert!(text(&output.stdout).contains(&why), "{output:?}");
    }
}

#[test]
fn malformed_peer_is_a_usage_error() {
    for peer in [
        "node0",
        "node0:",
        ":1",
        "node0:0",
        "node0:65536",
        "::1",
        "-1",
    ] {
        let output = doctor(&["--peer", peer]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{peer}: {output:?}");
        let line = only_line(&output);
        assert!(line.contains("use HOST:PORT"), "{line}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn secret_is_never_printed() {
    // The last one is malformed.
    for secret in ["5eca7".repeat(13)[..64].to_owned(), "5eca7x".to_owned()] {
        for arguments in [&["--json"][..], &[]] {
            let output = doctor(arguments).env("RINGTREE_SECRET", &secret).output();
            let output = output.unwrap();
            assert!(output.status.success(), "{output:?}");
            let printed = text(&output.stdout) + &text(&output.stderr);
            assert!(printed.contains("set, not shown"), "{printed}");
            assert!(!printed.contains("5eca7"), "{printed}");
        }
    }
}

#[test]
fn malformed_settings_are_problems() {
    let settings = [
        ("RINGTREE_TIMEOUT_MS", "soon"),
        ("RINGTREE_INTERFACE", "nonexistent0"),
        ("RINGTREE_SECRET", "short"),
    ];
    for (name, value) in settings {
        let output = doctor(&["--json"]).env(name, value).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let problems = object(&output)["problems"].to_string();
        assert!(problems.contains(name), "{name}: {problems}");
    }
}

#[test]
fn route_leads_to_the_rendezvous() {
    let mut doctor = doctor(&["--json"]);
    let output = doctor.env("MASTER_ADDR", "127.0.0.1").output().unwrap();
    let network = &object(&output)["network"];
    assert_eq!(network["route_to"], "127.0.0.1");
    assert_eq!(network["route_address"], "127.0.0.1");
}

#[test]
fn closed_standard_output_is_not_an_error() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = doctor(&[]).stdout(Stdio::from(full)).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let script = "exec \"$0\" doctor --json >&- 2>&-";
    let program = env!("CARGO_BIN_EXE_ringtree");
    let status = Command::new("/bin/sh")
        .args(["-c", script, program])
        .status();
    assert!(status.unwrap().success());
}
