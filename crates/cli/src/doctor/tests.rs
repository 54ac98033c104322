use super::{cgroup, machine, network, peer, report, settings};
use serde_json::json;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

/// Recorded on a host with systemd and version 2.
const MOUNTS_V2: &str = "\
24 30 0:22 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw
35 24 0:30 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate
36 30 8:1 /boot /boot rw,relatime - ext4 /dev/sda1 rw,errors=remount-ro";

/// Recorded in a container without a cgroup namespace, on a host with version 1.
const MOUNTS_V1: &str = "\
612 611 0:28 /docker/3f2a /sys/fs/cgroup/systemd ro,nosuid master:11 - cgroup cgroup rw,name=systemd
614 611 0:33 /docker/3f2a /sys/fs/cgroup/cpu,cpuacct ro,nosuid - cgroup cgroup rw,cpu,cpuacct
615 611 0:34 /docker/3f2a /sys/fs/cgroup/memory ro,nosuid master:18 - cgroup cgroup rw,memory";
const GROUPS_V1: &str = "\
11:memory:/docker/3f2a
4:cpu,cpuacct:/docker/3f2a/job
1:name=systemd:/docker/3f2a";

const STATUS: &str = "Name:\tringtree\nUmask:\t0022\nNoNewPrivs:\t0\nSeccomp:\t2\n\
                      Seccomp_filters:\t1\nCpus_allowed:\tff\nCpus_allowed_list:\t0-3,8\n";

const MEMORY: &str = "MemTotal:       24684316 kB\nMemFree:        21000000 kB\n\
                      MemAvailable:   23412396 kB\nHugePages_Total:       0\n";

fn paths(all: &[&str]) -> Vec<PathBuf> {
    all.iter().map(PathBuf::from).collect()
}

#[test]
fn own_control_group_and_its_parents_are_found() {
    let own = "0::/user.slice/user-1000.slice/job.scope";
    let all = [
        "/sys/fs/cgroup/user.slice/user-1000.slice/job.scope",
        "/sys/fs/cgroup/user.slice/user-1000.slice",
        "/sys/fs/cgroup/user.slice",
        "/sys/fs/cgroup",
    ];
    assert_eq!(cgroup::folders(own, MOUNTS_V2, "cpu"), paths(&all));
    let cpu = [
        "/sys/fs/cgroup/cpu,cpuacct/job",
        "/sys/fs/cgroup/cpu,cpuacct",
    ];
    assert_eq!(cgroup::folders(GROUPS_V1, MOUNTS_V1, "cpu"), paths(&cpu));
    let memory = paths(&["/sys/fs/cgroup/memory"]);
    assert_eq!(cgroup::folders(GROUPS_V1, MOUNTS_V1, "memory"), memory);
    // The group is outside the namespace of the process.
    let mounted = paths(&["/sys/fs/cgroup"]);
    for own in ["0::/", "0::/../other", "", "nonsense"] {
        assert_eq!(cgroup::folders(own, MOUNTS_V2, "cpu"), mounted, "{own}");
    }
}

#[test]
fn odd_mount_tables_have_no_control_groups() {
    for mounts in [
        "",
        "\n",
        " - ",
        "1 2 3 - cgroup2",
        "a b c d e - cgroup",
        "-",
    ] {
        assert!(cgroup::folders(GROUPS_V1, mounts, "cpu").is_empty());
    }
}

#[test]
fn quotas_and_limits_are_parsed() {
    assert_eq!(cgroup::cores("150000 100000"), Some(1.5));
    for none in [
        "max 100000",
        "-1 100000",
        "0 0",
        "100000 0",
        "",
        "100000",
        "x y",
    ] {
        assert_eq!(cgroup::cores(none), None, "{none}");
    }
    assert_eq!(cgroup::bytes("1073741824"), Some(1 << 30));
    for none in ["max", "9223372036854771712", "", "-1"] {
        assert_eq!(cgroup::bytes(none), None, "{none}");
    }
}

#[test]
fn containers_are_recognized_by_their_control_group() {
    assert_eq!(cgroup::container_of(GROUPS_V1), Some("Docker"));
    let pod = "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-1.scope";
    assert_eq!(cgroup::container_of(pod), Some("Kubernetes"));
    assert_eq!(cgroup::container_of("0::/user.slice"), None);
}

#[test]
fn fields_of_proc_are_parsed() {
    assert_eq!(report::field(STATUS, "Cpus_allowed_list"), Some("0-3,8"));
    assert_eq!(machine::seccomp(STATUS), Some("filter"));
    assert_eq!(machine::seccomp("Seccomp:\t0"), Some("off"));
    for odd in ["", "Seccomp:", "Seccomp:\t9", "Seccomp:\t-1"] {
        assert_eq!(machine::seccomp(odd), None, "{odd}");
    }
    let bytes = |name| machine::memory_bytes(MEMORY, name);
    assert_eq!(bytes("MemTotal"), Some(24_684_316 * 1024));
    assert_eq!(bytes("MemAvailable"), Some(23_412_396 * 1024));
    assert_eq!(bytes("HugePages_Total"), None);
    let overflow = "MemTotal: 18446744073709551615 kB";
    assert_eq!(machine::memory_bytes(overflow, "MemTotal"), None);
}

#[test]
fn small_quotas_and_limits_are_problems() {
    let text = machine::overload(Some(8), Some(1.5)).unwrap();
    for part in [
        "1.50 cores",
        "8 cores",
        "at most 1 ranks",
        "raise the quota",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(machine::overload(Some(1), Some(1.5)), None);
    assert_eq!(machine::overload(None, Some(1.5)), None);
    assert_eq!(machine::overload(Some(8), None), None);
    assert_eq!(machine::few_files(Some(1024), 1), None);
    assert_eq!(machine::few_files(None, u64::MAX), None);
    assert!(machine::few_files(Some(256), 1).unwrap().contains("1024"));
    assert!(
        machine::few_files(Some(1024), 1000)
            .unwrap()
            .contains("2064")
    );
}

#[test]
fn numbers_of_the_network_are_parsed() {
    assert_eq!(network::positive("10000"), Some(10_000));
    for unknown in ["-1", "0", "", "Invalid argument"] {
        assert_eq!(network::positive(unknown), None);
    }
    let sizes = network::numbers_in("4096\t131072\t6291456");
    assert_eq!(sizes, [4096, 131_072, 6_291_456]);
    assert!(network::numbers_in("").is_empty());
}

#[test]
fn host_names_that_other_hosts_cannot_use_are_problems() {
    let debian = Ok(vec![IpAddr::from([127, 0, 1, 1])]);
    let text = network::host_problem("node0", &debian).unwrap();
    assert!(text.contains("node0 resolves only to loopback") && text.contains("MASTER_ADDR"));
    let both = Ok(vec![
        IpAddr::from([127, 0, 0, 1]),
        IpAddr::from([10, 0, 0, 1]),
    ]);
    assert_eq!(network::host_problem("node0", &both), None);
    let text = network::host_problem("node0", &Err("no answer within 3 s".to_owned()));
    assert!(text.unwrap().contains("does not resolve: no answer"));
}

#[test]
fn interface_must_exist() {
    let address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    let all = [("eth0".to_owned(), vec![address])].into();
    for known in ["eth0", "10.0.0.1"] {
        assert_eq!(network::unknown_interface(known, &all), None);
    }
    let text = network::unknown_interface("eth1", &all).unwrap();
    assert!(text.contains("RINGTREE_INTERFACE=eth1") && text.ends_with("use one of eth0"));
}

#[test]
fn rendezvous_has_precedence_over_master() {
    let host = |rendezvous: &str, master: &str| {
        let set = |name: &str| match name {
            "RINGTREE_RENDEZVOUS" => Some(rendezvous.to_owned()),
            "MASTER_ADDR" => Some(master.to_owned()),
            _ => None,
        };
        network::rendezvous(|name| set(name).filter(|value| !value.is_empty()))
    };
    assert_eq!(host("a:1", "b").as_deref(), Some("a"));
    assert_eq!(host("[fd00::1]:1", "").as_deref(), Some("fd00::1"));
    assert_eq!(host("", "b").as_deref(), Some("b"));
    assert_eq!(host("", ""), None);
}

#[test]
fn peers_are_parsed() {
    let parsed = |text| peer::parse(text).map(|peer::Address { host, port }| (host, port));
    assert_eq!(parsed("node0:29500"), Ok(("node0".to_owned(), 29500)));
    assert_eq!(parsed("[::1]:1"), Ok(("::1".to_owned(), 1)));
    let wrong = [
        "",
        ":",
        "node0",
        "node0:",
        ":1",
        "node0:0",
        "node0:65536",
        "node0:x",
        "::1",
        "[::1]",
        "[::1:1",
        "::1]:1",
        "[]:1",
    ];
    for text in wrong {
        assert!(parsed(text).is_err(), "{text}");
    }
}

#[test]
fn failed_connections_are_explained() {
    let peer = "10.0.0.1:29500".parse().unwrap();
    let why = |error: io::ErrorKind| {
        peer::obstacle(peer, &io::Error::from(error), Duration::from_micros(1500))
    };
    let refused = why(io::ErrorKind::ConnectionRefused);
    assert!(refused.contains("10.0.0.1 answers in 1.500 ms, but nothing listens on port 29500"));
    assert!(why(io::ErrorKind::TimedOut).contains("firewall"));
    assert!(why(io::ErrorKind::HostUnreachable).contains("cannot connect to 10.0.0.1:29500"));
}

#[test]
fn smaller_mtu_of_peer_is_a_problem() {
    let problem = peer::small_segments;
    assert!(problem(1448, "eth0", 9000).unwrap().contains("same MTU"));
    assert_eq!(problem(8948, "eth0", 9000), None);
    assert_eq!(problem(1428, "eth0", 1500), None);
    assert_eq!(problem(32741, "lo", 65536), None);
}

#[test]
fn secret_is_not_shown() {
    let shown = |name, set: Option<&str>| settings::shown(name, "7", set.map(str::to_owned));
    assert_eq!(shown("RINGTREE_SECRET", Some("5eca")).0, "set, not shown");
    let other = ("9".to_owned(), "environment");
    assert_eq!(shown("RINGTREE_TIMEOUT_MS", Some("9")), other);
    assert_eq!(
        shown("RINGTREE_TIMEOUT_MS", None),
        ("7".to_owned(), "default")
    );
}

#[test]
fn facts_and_problems_are_rendered() {
    let group = || {
        let mut group = report::Group::new("First group");
        group.add("CPU count", 3);
        group.add("kernel", None::<u64>);
        group.setting("site", "a\u{1b}b", "RINGTREE_SITE");
        group.setting("checks", "", "default");
        group.add("limits", json!({ "hard_limit": 2, "soft": [1, 2] }));
        group
    };
    let text = report::text(&[group()], &["it is slow".to_owned()]);
    let expected = "\
First group
  CPU count  3
  kernel     unknown
  site       a?b (RINGTREE_SITE)
  checks     not set
  limits     hard limit: 2; soft: 1, 2

Problems
  it is slow
";
    assert_eq!(text, expected);
    assert!(report::text(&[], &[]).ends_with("no problems found\n"));
    let text = report::json(vec![group()], Vec::new());
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let site = json!({ "value": "a\u{1b}b", "origin": "RINGTREE_SITE" });
    assert_eq!(value["first_group"]["site"], site);
    assert_eq!(value["first_group"]["cpu_count"], 3);
    assert_eq!(value["problems"], json!([]));
}
