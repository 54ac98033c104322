//! `ringtree doctor`: what this machine has, and what is in the way. So far: shared memory, GPUs.

use crate::gpu;
use crate::{FAILED, FINE, MISUSED};
use ringtree::TransportChoice;
use ringtree::internal::bootstrap::{Findings, TuningSource};
use ringtree::plan::select::TuningTable;
use std::fmt::Display;
use std::io::Write;

/// The arguments of `ringtree doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Also try to reach another process there (not built yet)
    #[arg(long, value_name = "HOST:PORT")]
    peer: Option<String>,
}

/// Answers `ringtree doctor`: 1 if a setting asks for what this machine does not give.
pub(crate) fn execute(arguments: &Arguments) -> u8 {
    if arguments.peer.is_some() {
        eprintln!("ringtree doctor: --peer: not built yet");
        return MISUSED;
    }
    let setting = |name: &str| {
        std::env::var(name)
            .ok()
            .filter(|text| !text.trim().is_empty())
    };
    let asked = setting("RINGTREE_TRANSPORT");
    // Any other name was refused before any command began.
    let choice = asked.as_deref().and_then(|name| name.trim().parse().ok());
    let choice = choice.unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let findings = Findings::here(cores);
    let mut output = report(
        &findings,
        setting("RINGTREE_HOST_ID"),
        asked.is_some(),
        choice,
        &tuning(
            setting("RINGTREE_TUNING").as_deref(),
            setting("RINGTREE_JOB_TUNING").is_some(),
        ),
        &gpu::listed(),
    );
    let site = match setting("RINGTREE_SITE") {
        Some(site) => format!("{} (RINGTREE_SITE)", site.trim()),
        None => "that of all hosts without a name (the default)".to_owned(),
    };
    output += &format!("{:<19}{site}\n", "site");
    let checks = match setting("RINGTREE_CHECK") {
        Some(checks) => format!("{} (RINGTREE_CHECK)", checks.trim()),
        None => "none (the default)".to_owned(),
    };
    output += &format!("{:<19}{checks}\n", "checks");
    // Any other value was refused before any command began.
    let order = match setting("RINGTREE_REPRODUCIBLE").as_deref().map(str::trim) {
        Some("1") => "the same for any length and place (RINGTREE_REPRODUCIBLE)",
        _ => "the chosen algorithm's (the default)",
    };
    output += &format!("{:<19}{order}\n", "order of sums");
    // A reader that has seen enough (`| head`) is no failure.
    let _ = std::io::stdout().lock().write_all(output.as_bytes());
    match (findings.place(), choice) {
        (Err(why), TransportChoice::Shm) => {
            eprintln!(
                "ringtree doctor: RINGTREE_TRANSPORT is shm, but ranks here cannot share memory: \
                 {why}; with auto they use TCP"
            );
            FAILED
        }
        _ => FINE,
    }
}

fn report(
    findings: &Findings,
    host_id: Option<String>,
    is_chosen: bool,
    choice: TransportChoice,
    tuning: &str,
    gpus: &str,
) -> String {
    let origin = if is_chosen {
        "RINGTREE_TRANSPORT"
    } else {
        "the default"
    };
    let host_id = match host_id {
        Some(given) => format!("{given} (RINGTREE_HOST_ID)"),
        None => format!("{} (found)", findings.host_id),
    };
    let memory = match &findings.memory {
        Ok(true) => "can be made and sealed; other ranks can only read it".to_owned(),
        Ok(false) => "can be made and sealed; this kernel lets other ranks write it".to_owned(),
        Err(why) => format!("no: {why}"),
    };
    let socket = match &findings.socket {
        Ok(_) => "can be made".to_owned(),
        Err(why) => format!("no: {why}"),
    };
    let user = match &findings.users {
        Ok(users) => format!("{} in namespace {users}", findings.user),
        Err(why) => format!("{}; {why}", findings.user),
    };
    let lines = [
        ("transport", format!("{} ({origin})", choice.name())),
        ("shared memory", memory),
        ("abstract socket", socket),
        ("host id", host_id),
        ("boot id", either(&findings.boot_id)),
        ("network namespace", either(&findings.network)),
        ("user", user),
    ];
    let last = "Ranks share memory where it can be made and the last four are equal.";
    let mut text = String::new();
    for (name, found) in lines {
        text += &format!("{name:<19}{found}\n");
    }
    format!(
        "{text}{last}\n{:<19}{tuning}\n{:<19}{gpus}\n{:<19}{}\n",
        "tuning",
        "GPU",
        "buffers on GPUs",
        gpu::PATH
    )
}

/// Where the speeds come from that algorithms are chosen by.
fn tuning(setting: Option<&str>, is_handed_on: bool) -> String {
    let Some(setting) = setting else {
        return match is_handed_on {
            true => "handed on by the launcher, from an earlier attempt (RINGTREE_JOB_TUNING)",
            false => "built-in on one machine, measured between hosts (the default)",
        }
        .to_owned();
    };
    let what = match TuningSource::of_setting(setting) {
        Ok(TuningSource::BuiltIn | TuningSource::Measured | TuningSource::HandedOn(_)) => {
            "built-in".to_owned()
        }
        Ok(TuningSource::MeasuredInto(path)) => {
            let path = path.display();
            format!("measured when ranks meet, then written to {path}")
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
        Err(why) => format!("no: {why}"),
    }
}
