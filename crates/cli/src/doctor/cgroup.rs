//! Finds the limits of this process's control group, and the container that it belongs to.

use super::report::{read, variable};
use std::path::{Path, PathBuf};

/// Memory limits of at least this size mean that there is no limit, which version 1 writes as a
/// number.
const UNLIMITED_BYTES: u64 = 1 << 60;

/// Names of container systems, and words in the names of their control groups.
const CONTAINERS: &str = "Kubernetes kubepods Docker docker Podman libpod CRI-O crio LXC lxc";

/// Returns the directories of the process's own control group and of its parents. `groups` is the
/// text of `/proc/self/cgroup`, and `mounts` is that of `/proc/self/mountinfo`. Includes version 2
/// and the hierarchy of `controller` in version 1.
pub(super) fn folders(groups: &str, mounts: &str, controller: &str) -> Vec<PathBuf> {
    let of_mount = |line: &str| {
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, point) = (place.next()?, Path::new(place.next()?));
        let mut kind = kind.split(' ');
        let name = match (kind.next()?, kind.nth(1)) {
            ("cgroup2", _) => "",
            ("cgroup", Some(all)) if all.split(',').any(|one| one == controller) => controller,
            _ => return None,
        };
        let own = groups.lines().find_map(|line| {
            let (names, path) = line.split_once(':')?.1.split_once(':')?;
            names.split(',').any(|one| one == name).then_some(path)
        });
        // A group outside the mounted part of the hierarchy is not visible, only the mounted part.
        let own = own.filter(|path| !path.contains("/.."));
        let below = Path::new(own.unwrap_or(root)).strip_prefix(root);
        let own = point.join(below.unwrap_or(Path::new("")));
        let all = own.ancestors().take_while(|path| path.starts_with(point));
        Some(all.map(Path::to_path_buf).collect::<Vec<_>>())
    };
    mounts.lines().filter_map(of_mount).flatten().collect()
}

fn own_folders(controller: &str) -> Vec<PathBuf> {
    let files = ["/proc/self/cgroup", "/proc/self/mountinfo"];
    let [groups, mounts] = files.map(|path| read(path).unwrap_or_default());
    folders(&groups, &mounts, controller)
}

/// Returns the number of cores in the text of `cpu.max`, which is a quota and a period, or `None`
/// without a quota.
pub(super) fn cores(text: &str) -> Option<f64> {
    let (quota, period) = text.split_once(' ')?;
    let cores = quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?;
    (cores.is_finite() && cores > 0.0).then_some(cores)
}

/// Returns the smallest CPU quota that applies to this process, in cores.
pub(super) fn quota() -> Option<f64> {
    let of_folder = |folder: PathBuf| {
        let [both, quota, period] = ["cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"]
            .map(|name| read(folder.join(name)));
        cores(&both.or_else(|| Some(format!("{} {}", quota?, period?)))?)
    };
    let all = own_folders("cpu").into_iter().filter_map(of_folder);
    all.min_by(f64::total_cmp)
}

/// Returns the number of bytes in the text of a memory limit, or `None` without a limit.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let bytes = text.parse().ok();
    bytes.filter(|bytes| *bytes < UNLIMITED_BYTES)
}

/// Returns the smallest memory limit that applies to this process, in bytes.
pub(super) fn memory() -> Option<u64> {
    let names = ["memory.max", "memory.limit_in_bytes"];
    let folders = own_folders("memory").into_iter();
    let files = folders.flat_map(|folder| names.map(|name| folder.join(name)));
    files.filter_map(|file| bytes(&read(file)?)).min()
}

/// Returns the container system that the name of a control group in `groups` belongs to.
pub(super) fn container_of(groups: &str) -> Option<&'static str> {
    let words: Vec<&str> = CONTAINERS.split(' ').collect();
    let found = words.chunks(2).find(|pair| groups.contains(pair[1]));
    found.map(|pair| pair[0])
}

/// Returns the container system that this process runs in, or `None` if none was detected.
pub(super) fn container() -> Option<String> {
    let exists = |path: &str| Path::new(path).exists();
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let found = match container_of(&groups) {
        _ if variable("KUBERNETES_SERVICE_HOST").is_some() => Some("Kubernetes"),
        Some(name) => Some(name),
        None if exists("/.dockerenv") => Some("Docker"),
        None if exists("/run/.containerenv") => Some("Podman"),
        None => variable("APPTAINER_CONTAINER").map(|_| "Apptainer"),
    };
    found.map(str::to_owned).or_else(|| variable("container"))
}
