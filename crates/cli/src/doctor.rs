//! Implements `ringtree doctor`, which checks shared memory and GPUs and shows the settings that
//! are in effect.

use crate::gpu;
use crate::{EXIT_OK, EXIT_USAGE, FAILED};
use ringtree::internal::bootstrap::{Findings, TuningSource, launchers};
use ringtree::plan::TuningTable;
use ringtree::start::TransportChoice;
use std::fmt::Display;
use std::io::Write;

/// The arguments of `ringtree doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Also test the connection to a process at this address (not implemented yet)
    #[arg(long, value_name = "HOST:PORT")]
    peer: Option<String>,
}

/// Runs `ringtree doctor` and returns its exit code, which is 1 if this machine cannot satisfy
/// `RINGTREE_TRANSPORT`.
pub(crate) fn execute(arguments: &Arguments) -> u8 {
    if arguments.peer.is_some() {
        eprintln!("ringtree doctor: --peer is not implemented yet; omit it");
        return EXIT_USAGE;
    }
    // Unknown names were rejected before any command ran.
    let choice = setting("RINGTREE_TRANSPORT").and_then(|name| name.trim().parse().ok());
    let choice = choice.unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let findings = Findings::here(cores);
    let output = report(&findings);
    // A reader that has closed standard output (`| head`) is not an error.
    let _ = std::io::stdout().lock().write_all(output.as_bytes());
    match (findings.place(), choice) {
        (Err(why), TransportChoice::Shm) => {
            eprintln!(
                "ringtree doctor: RINGTREE_TRANSPORT=shm, but ranks on this host cannot share \
                 memory: {why}; with RINGTREE_TRANSPORT=auto, they use TCP"
            );
            FAILED
        }
        _ => EXIT_OK,
    }
}

/// Returns the value of an environment variable, unless it is blank.
fn setting(name: &str) -> Option<String> {
    let text = std::env::var(name).ok();
    text.filter(|text| !text.trim().is_empty())
}

/// Returns the value of a setting and where it comes from. `default` includes its origin.
fn set_or(name: &str, default: &str) -> String {
    match setting(name) {
        Some(value) => format!("{} ({name})", value.trim()),
        None => default.to_owned(),
    }
}

fn report(findings: &Findings) -> String {
    let host_id = match setting("RINGTREE_HOST_ID") {
        Some(given) => format!("{given} (RINGTREE_HOST_ID)"),
        None => format!("{} (the default)", findings.host_id),
    };
    let memory = match &findings.memory {
        Ok(true) => "can be created and sealed; other ranks can only read it".to_owned(),
        Ok(false) => "can be created and sealed; this kernel lets other ranks write to \
                      it"
        .to_owned(),
        Err(why) => format!("unavailable: {why}"),
    };
    let socket = match &findings.socket {
        Ok(_) => "can be created".to_owned(),
        Err(why) => format!("unavailable: {why}"),
    };
    let user = match &findings.users {
        Ok(users) => format!("{} in namespace {users}", findings.user),
        Err(why) => format!("{}; {why}", findings.user),
    };
    // Other values were rejected before any command ran.
    let order = match setting("RINGTREE_REPRODUCIBLE").as_deref().map(str::trim) {
        Some("1") => "rank order (RINGTREE_REPRODUCIBLE)",
        _ => "depends on the algorithm (the default)",
    };
    let site = "the default site, which all hosts without a site name share";
    let sharing = [
        (
            "transport",
            set_or("RINGTREE_TRANSPORT", "auto (the default)"),
        ),
        ("shared memory", memory),
        ("abstract socket", socket),
        ("host id", host_id),
        ("boot id", either(&findings.boot_id)),
        ("network namespace", either(&findings.network)),
        ("user", user),
    ];
    let others = [
        ("tuning", tuning()),
        ("GPU", gpu::listed()),
        ("GPU buffers", gpu::PATH.to_owned()),
        ("site", set_or("RINGTREE_SITE", site)),
        ("checks", set_or("RINGTREE_CHECK", "none (the default)")),
        ("summation order", order.to_owned()),
    ];
    let line = |(name, found): (&str, String)| format!("{name:<19}{found}\n");
    let (sharing, others) = (sharing.map(line), others.map(line));
    let (launcher, unused) = launchers(setting);
    let unused = unused
        .iter()
        .map(|why| format!("                   not {why}\n"));
    format!(
        "{}Ranks on a host share memory if it can be created and if their host id, boot id, \
         network namespace and user match.\n{}{}{}",
        sharing.concat(),
        others.concat(),
        line(("launcher", launcher)),
        unused.collect::<String>()
    )
}

/// Returns the source of the link speed table.
fn tuning() -> String {
    let Some(setting) = setting("RINGTREE_TUNING") else {
        return match setting("RINGTREE_JOB_TUNING") {
            Some(_) => {
                "measured by an earlier attempt and passed on by the launcher (RINGTREE_JOB_TUNING)"
            }
            None => {
                "built-in if all ranks are on one host, otherwise measured at startup (the default)"
            }
        }
        .to_owned();
    };
    let what = match TuningSource::of_setting(&setting) {
        Ok(TuningSource::BuiltIn | TuningSource::Measured | TuningSource::HandedOn(_)) => {
            "built-in".to_owned()
        }
        Ok(TuningSource::MeasuredInto(path)) => {
            let path = path.display();
            format!("measured at startup, then written to {path}")
        }
        Ok(TuningSource::Text { origin, text }) => match TuningTable::parse(&text) {
            Ok(_) => format!("read from {origin}"),
            Err(why) => format!("{origin}: {why}"),
        },
        Err(error) => error.to_string(),
    };
    format!("{what} (RINGTREE_TUNING)")
}

fn either<T: Display>(found: &Result<T, String>) -> String {
    match found {
        Ok(found) => found.to_string(),
        Err(why) => format!("unknown: {why}"),
    }
}
