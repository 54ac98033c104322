//! Parses the ranks, hosts and links for `ringtree plan`.

use super::Arguments;
use ringtree::internal::bootstrap::TuningSource;
use ringtree::internal::limits::WORLD_SIZE_MAX;
use ringtree::plan::internal::spec::reduces;
use ringtree::plan::internal::topology::{
    Hosts, Sharing, Topology, in_sites_of, of_sizes, sharing,
};
use ringtree::plan::internal::tuning::between_sites;
use ringtree::plan::{Collective, LinkCost, Seconds, TuningTable};

/// Returns the number of ranks and their placement on hosts and sites.
pub(super) fn topology(arguments: &Arguments) -> Result<Topology, String> {
    let per_host = &*arguments.ranks_per_host;
    let listed = Some(per_host.iter().sum()).filter(|_| per_host.len() > 1);
    let world_size = arguments.ranks.or(listed);
    let world_size = world_size.ok_or("missing number of ranks; pass --ranks N")?;
    if listed.unwrap_or(world_size).max(world_size) > WORLD_SIZE_MAX {
        return Err(format!(
            "--ranks-per-host: more than {WORLD_SIZE_MAX} ranks in total"
        ));
    }
    let hosts = match per_host {
        [] => Hosts::APART,
        [each] => Hosts::each(*each),
        sizes => of_sizes(sizes),
    };
    let topology = Topology { world_size, hosts };
    topology
        .check()
        .map_err(|why| format!("--ranks-per-host: {why}"))?;
    at_sites(topology, &arguments.sites)
}

/// Assigns the hosts to sites. `hosts` contains the number of hosts at each site.
fn at_sites(topology: Topology, hosts: &[usize]) -> Result<Topology, String> {
    let (named, there) = (hosts.iter().sum::<usize>(), topology.host_count());
    match named == there {
        _ if hosts.is_empty() => Ok(topology),
        true => Ok(Topology {
            hosts: in_sites_of(topology.hosts, hosts),
            ..topology
        }),
        false => Err(format!(
            "--sites: the sites have {named} hosts in total, expected {there}"
        )),
    }
}

/// Returns the table that RINGTREE_TUNING names, or the built-in one. Nothing is measured.
fn tuning() -> Result<TuningTable, String> {
    let setting = std::env::var("RINGTREE_TUNING").unwrap_or_default();
    if setting.trim().is_empty() {
        return Ok(TuningTable::default());
    }
    let source = TuningSource::of_setting(&setting).map_err(|error| error.to_string())?;
    match source {
        TuningSource::Measured | TuningSource::BuiltIn | TuningSource::HandedOn(_) => {
            Ok(TuningTable::default())
        }
        TuningSource::MeasuredInto(path) => Err(format!(
            "RINGTREE_TUNING={}: the file does not exist; run a job with this setting to write it",
            path.display()
        )),
        TuningSource::Text { origin, text } => {
            TuningTable::parse(&text).map_err(|error| format!("RINGTREE_TUNING={origin}: {error}"))
        }
    }
}

/// Returns the table of link costs: the one from RINGTREE_TUNING or the built-in one, as modified
/// by the options. The options apply to shared memory if all ranks are on one host, and to TCP
/// otherwise. Without options, `auto` makes the same choice as a call.
pub(super) fn links(arguments: &Arguments, topology: &Topology) -> Result<TuningTable, String> {
    let mut table = tuning()?;
    let link = match sharing(topology) {
        Sharing::All => &mut table.shm,
        _ => &mut table.tcp,
    };
    let beta = |bits_per_s: f64| 8.0 / bits_per_s;
    link.alpha_s = arguments.latency.unwrap_or(link.alpha_s);
    link.overhead_s = arguments.overhead.unwrap_or(link.overhead_s);
    link.beta_s_per_byte = arguments.bandwidth.map_or(link.beta_s_per_byte, beta);
    let (latency, bandwidth) = (arguments.uplink_latency, arguments.uplink_bandwidth);
    if latency.or(bandwidth).is_some() {
        let mut link = between_sites(&table);
        link.alpha_s = latency.unwrap_or(link.alpha_s);
        link.beta_s_per_byte = bandwidth.map_or(link.beta_s_per_byte, beta);
        table.uplink = Some(link);
    }
    Ok(table)
}

/// Returns sentences about message costs, such as "Each message takes 3 µs to send, 6 µs to arrive
/// and 3 µs to receive; each KiB adds 380 ns."
pub(super) fn costs(collective: Collective, topology: &Topology, table: &TuningTable) -> String {
    let kib = |s_per_byte: f64| Seconds(1024.0 * s_per_byte);
    let cost = |link: &LinkCost| {
        let (end, way) = (Seconds(link.overhead_s), Seconds(link.alpha_s));
        let fold = match reduces(collective) {
            true => format!(", plus {} if it is reduced", kib(link.gamma_s_per_byte)),
            false => String::new(),
        };
        let bytes = match collective {
            Collective::Barrier => String::new(),
            _ => format!("; each KiB adds {}{fold}", kib(link.beta_s_per_byte)),
        };
        format!("message takes {end} to send, {way} to arrive and {end} to receive{bytes}.")
    };
    let (tcp, shm) = (cost(&table.tcp), cost(&table.shm));
    let mut sentences = match sharing(topology) {
        Sharing::None => format!("Each {tcp}"),
        Sharing::Some => format!("Between hosts, each {tcp} Within a host, each {shm}"),
        Sharing::All => format!("All ranks are on one host. Each {shm}"),
    };
    if topology.site_count() > 1 {
        let uplink = between_sites(table);
        let (way, bytes) = (Seconds(uplink.alpha_s), kib(uplink.beta_s_per_byte));
        sentences += &format!(
            " Between sites, a message takes {way} to arrive, and each KiB adds {bytes} at the \
             uplink, which all ranks at a site share."
        );
    }
    sentences + " All times here are predicted from these costs."
}
