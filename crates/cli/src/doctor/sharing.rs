//! Shows whether ranks on this host can share memory.

use super::report::{Group, variable};
use ringtree::internal::bootstrap::Findings;
use std::fmt::Display;

/// Describes `findings`.
pub(super) fn describe(findings: &Findings) -> Group {
    let mut group = Group::new("Shared memory");
    group.variable("transport", "RINGTREE_TRANSPORT", "auto");
    let memory = findings
        .memory
        .as_ref()
        .map(|is_protected| match is_protected {
            true => "can be created and sealed; other ranks can only read it",
            false => "can be created and sealed; this kernel lets other ranks write to it",
        });
    group.add("shared memory", either("unavailable", memory));
    let socket = findings.socket.as_ref().map(|_| "can be created");
    group.add("abstract socket", either("unavailable", socket));
    group.variable("host id", "RINGTREE_HOST_ID", &findings.host_id);
    group.add("boot id", either("unknown", findings.boot_id.as_ref()));
    group.add(
        "network namespace",
        either("unknown", findings.network.as_ref()),
    );
    group.add("user", findings.user);
    group.add("user namespace", either("unknown", findings.users.as_ref()));
    group.line(
        "",
        "Ranks on a host share memory if it can be created and if their host id, boot id, network \
         namespace and user match.",
    );
    group
}

/// Returns the problem if `findings` show that memory cannot be shared, unless all ranks use TCP.
pub(super) fn problem(findings: Findings) -> Option<String> {
    let why = findings.place().err()?;
    match variable("RINGTREE_TRANSPORT").as_deref() {
        Some("tcp") => None,
        Some("shm") => Some(format!(
            "RINGTREE_TRANSPORT=shm, but ranks on this host cannot share memory: {why}; with \
             RINGTREE_TRANSPORT=auto, they use TCP"
        )),
        _ => Some(format!(
            "ranks on this host cannot share memory, so they use TCP, which is slower: {why}"
        )),
    }
}

fn either<T: Display>(otherwise: &str, found: Result<T, &String>) -> String {
    match found {
        Ok(found) => found.to_string(),
        Err(why) => format!("{otherwise}: {why}"),
    }
}
