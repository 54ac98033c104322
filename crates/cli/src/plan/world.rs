//! Parses the ranks, hosts and links for `ringtree plan`.

use super::{Arguments, parse_count};
use crate::quantity::{parse_rate, parse_time};
use ringtree::internal::bootstrap::TuningSource;
use ringtree::internal::limits::{RANKS_PER_HOST_MAX, WORLD_SIZE_MAX};
use ringtree::plan::internal::price::LinkCost;
use ringtree::plan::internal::topology::{Hosts, Sharing, Topology};
use ringtree::plan::internal::units::Seconds;
use ringtree::plan::{Collective, TuningTable};

/// Returns the number of ranks and their placement on hosts and sites.
pub(super) fn topology(arguments: &Arguments) -> Result<Topology, String> {
    let topology = at_hosts(arguments.ranks.as_deref(), &arguments.ranks_per_host)?;
    at_sites(topology, arguments.sites.as_deref())
}

fn at_hosts(ranks: Option<&str>, per_host: &str) -> Result<Topology, String> {
    let (name, sizes) = ("--ranks-per-host", per_host.split(','));
    let of_host = |text| parse_count(name, text, 1, RANKS_PER_HOST_MAX);
    let sizes: Option<Vec<usize>> = match per_host.contains(',') {
        true => Some(sizes.map(of_host).collect::<Result<_, _>>()?),
        false => None,
    };
    let all: Option<usize> = sizes.as_ref().map(|sizes| sizes.iter().sum());
    let ranks = ranks.map(str::to_owned).or(all.map(|all| all.to_string()));
    let ranks = ranks.ok_or("missing number of ranks; pass --ranks N")?;
    let world_size = parse_count("--ranks", &ranks, 1, WORLD_SIZE_MAX)?;
    let hosts = match sizes {
        Some(sizes) => Hosts::of_sizes(&sizes),
        None => Hosts::each(parse_count(name, per_host, 1, world_size)?),
    };
    let topology = Topology { world_size, hosts };
    let refusal = |why| format!("{name} {per_host}: {why}");
    topology.check().map_err(refusal).map(|()| topology)
}

/// Distributes the hosts over sites.
fn at_sites(topology: Topology, sites: Option<&str>) -> Result<Topology, String> {
    let Some(sites) = sites else {
        return Ok(topology);
    };
    let of_site = |text| parse_count("--sites", text, 1, topology.host_count());
    let hosts: Vec<usize> = sites.split(',').map(of_site).collect::<Result<_, _>>()?;
    let topology = Topology {
        hosts: topology.hosts.in_sites_of(&hosts),
        ..topology
    };
    let (named, there) = (hosts.iter().sum::<usize>(), topology.host_count());
    match named == there {
        true => Ok(topology),
        false => Err(format!(
            "--sites {sites}: the sites have {named} hosts in total, expected {there}"
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
    let link = match topology.sharing() {
        Sharing::All => &mut table.shm,
        _ => &mut table.tcp,
    };
    if let Some(text) = &arguments.alpha {
        link.alpha_s = parse_time(text).map_err(|error| format!("--alpha: {error}"))?;
    }
    if let Some(text) = &arguments.overhead {
        link.overhead_s = parse_time(text).map_err(|error| format!("--overhead: {error}"))?;
    }
    if let Some(text) = &arguments.bandwidth {
        let rate = parse_rate(text).map_err(|error| format!("--bandwidth: {error}"))?;
        link.beta_s_per_byte = 8.0 / rate;
    }
    uplink(arguments, &mut table)?;
    Ok(table)
}

/// Applies the options for links between sites.
fn uplink(arguments: &Arguments, table: &mut TuningTable) -> Result<(), String> {
    let mut link = table.between_sites();
    if let Some(text) = &arguments.uplink_alpha {
        link.alpha_s = parse_time(text).map_err(|error| format!("--uplink-alpha: {error}"))?;
        table.uplink = Some(link);
    }
    if let Some(text) = &arguments.uplink_bandwidth {
        let rate = parse_rate(text).map_err(|error| format!("--uplink-bandwidth: {error}"))?;
        link.beta_s_per_byte = 8.0 / rate;
        table.uplink = Some(link);
    }
    Ok(())
}

/// Returns sentences about message costs, such as "Each message takes 3 µs to send, 6 µs to arrive
/// and 3 µs to receive; each KiB adds 380 ns."
pub(super) fn costs(collective: Collective, topology: &Topology, table: &TuningTable) -> String {
    let kib = |s_per_byte: f64| Seconds(1024.0 * s_per_byte);
    let cost = |link: &LinkCost| {
        let (end, way) = (Seconds(link.overhead_s), Seconds(link.alpha_s));
        let fold = match collective.reduces() {
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
    let mut sentences = match topology.sharing() {
        Sharing::None => format!("Each {tcp}"),
        Sharing::Some => format!("Between hosts, each {tcp} Within a host, each {shm}"),
        Sharing::All => format!("All ranks are on one host. Each {shm}"),
    };
    if topology.site_count() > 1 {
        let uplink = table.between_sites();
        let (way, bytes) = (Seconds(uplink.alpha_s), kib(uplink.beta_s_per_byte));
        sentences += &format!(
            " Between sites, a message takes {way} to arrive, and each KiB adds {bytes} at the \
             uplink, which all ranks at a site share."
        );
    }
    sentences + " All times here are predicted from these costs."
}
