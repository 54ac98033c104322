//! Examines the software, the processor, the memory and the limits of this process.

use super::cgroup;
use super::report::{Group, count, field, read};
use crate::run::binding::parse_list;
use ringtree::internal::protocol::handshake::WIRE_VERSION;
use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};
use std::env::consts::ARCH;

/// The smallest number of open files that is not reported as a problem.
const OPEN_FILES_MIN: u64 = 1024;
/// Open files of a rank, in addition to those for its peers.
const OPEN_FILES_OWN: u64 = 64;

/// The limits to show.
const LIMITS: [(&str, Resource); 5] = [
    ("open files", Resource::Nofile),
    ("processes", Resource::Nproc),
    ("locked memory bytes", Resource::Memlock),
    ("address space bytes", Resource::As),
    ("file size bytes", Resource::Fsize),
];

/// Returns the versions of ringtree and the kernel.
pub(super) fn versions() -> Group {
    let mut group = Group::new("Version");
    group.add("ringtree", env!("CARGO_PKG_VERSION"));
    group.add("wire version", WIRE_VERSION);
    group.add("kernel", read("/proc/sys/kernel/osrelease"));
    group.add("architecture", ARCH);
    group
}

/// Examines the cores that this process may use.
pub(super) fn processor(problems: &mut Vec<String>) -> Group {
    let mut group = Group::new("Processor");
    let cores = |list: &str| parse_list(list).len();
    let online = read("/sys/devices/system/cpu/online").map(|list| cores(&list));
    group.add("cores online", online);
    let status = read("/proc/self/status").unwrap_or_default();
    let list = field(&status, "Cpus_allowed_list");
    let usable = list.map(cores);
    group.add("cores usable", usable);
    group.add("list of usable cores", list);
    let quota = cgroup::quota();
    let text = quota.map_or("none".to_owned(), |quota| format!("{quota:.2}"));
    group.show("CPU quota cores", text, quota);
    let nodes = read("/sys/devices/system/node/online").unwrap_or_default();
    let cpus = |node| read(format!("/sys/devices/system/node/node{node}/cpulist"));
    let nodes = parse_list(&nodes).into_iter();
    let nodes = nodes.map(|node| (node.to_string(), cpus(node).into()));
    group.each("NUMA node", nodes.collect());
    problems.extend(overload(usable, quota));
    group
}

/// Returns the problem of a CPU quota that is smaller than the number of usable cores.
pub(super) fn overload(usable: Option<usize>, quota: Option<f64>) -> Option<String> {
    let (usable, quota) = (usable?, quota?);
    (quota < usable as f64).then(|| {
        format!(
            "the cgroup's CPU quota is {quota:.2} cores, but this process may use {usable} cores, \
             so the kernel pauses ranks that exceed the quota; start at most {:.0} ranks on this \
             host, or raise the quota",
            quota.floor().max(1.0)
        )
    })
}

/// Returns the number of bytes in a line of `/proc/meminfo`.
pub(super) fn memory_bytes(text: &str, name: &str) -> Option<u64> {
    let kib: u64 = field(text, name)?.strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Describes the `Seccomp` mode in the text of `/proc/self/status`.
pub(super) fn seccomp(status: &str) -> Option<&'static str> {
    let mode = field(status, "Seccomp")?.parse::<usize>().ok()?;
    ["off", "strict", "filter"].get(mode).copied()
}

/// Examines the memory and the limits of this process.
pub(super) fn memory(problems: &mut Vec<String>) -> Group {
    let mut group = Group::new("Memory and limits");
    let text = read("/proc/meminfo").unwrap_or_default();
    group.bytes("total", memory_bytes(&text, "MemTotal"), "unknown");
    group.bytes("available", memory_bytes(&text, "MemAvailable"), "unknown");
    group.bytes("cgroup limit", cgroup::memory(), "none");
    for (name, resource) in LIMITS {
        let found = getrlimit(resource);
        let [soft, hard] = [found.current, found.maximum]
            .map(|limit| limit.map_or(Value::from("unlimited"), Value::from));
        group.add(name, json!({ "soft": soft, "hard": hard }));
    }
    let hard = getrlimit(Resource::Nofile).maximum;
    problems.extend(few_files(hard, count("WORLD_SIZE").unwrap_or(1)));
    let container = cgroup::container();
    let text = container.clone().unwrap_or("none detected".to_owned());
    group.show("container", text, container);
    group.add(
        "seccomp",
        seccomp(&read("/proc/self/status").unwrap_or_default()),
    );
    group
}

/// Returns the problem of a limit on open files that is too low for a job of `ranks` ranks. Only
/// the hard limit matters, because ranks raise their soft limit to it.
pub(super) fn few_files(hard: Option<u64>, ranks: u64) -> Option<String> {
    let least = OPEN_FILES_MIN.max(ranks.saturating_mul(2).saturating_add(OPEN_FILES_OWN));
    let hard = hard.filter(|hard| *hard < least)?;
    Some(format!(
        "this process can open only {hard} files; raise the hard limit on open files to at least \
         {least} (`ulimit -Hn`, or LimitNOFILE of the service)"
    ))
}
