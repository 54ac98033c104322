//! Tests plans for ranks at several sites: the traffic on uplinks, and the choice of `auto`.

use super::{over_tcp, plans};
use ringtree::plan::internal::topology::{in_sites_of, of_sizes};
use ringtree::plan::{
    Algorithm, Collective, Hosts, LinkCost, Plan, Request, Step, Topology, TuningTable, UplinkCost,
    choose,
};

/// Returns the numbers of chunks that the plans send from each site and to each site.
fn across(plans: &[Plan]) -> (Vec<usize>, Vec<usize>) {
    let topology = plans[0].request.topology();
    let site_of = |rank| topology.site_of(topology.host_of(rank));
    let mut counts = (
        vec![0; topology.site_count()],
        vec![0; topology.site_count()],
    );
    for (rank, plan) in plans.iter().enumerate() {
        for step in plan.rounds.iter().flatten() {
            let Step::Send { peers, ranges } = step else {
                continue;
            };
            let chunks: usize = ranges.iter().map(|range| range.count).sum();
            for peer in peers.iter().filter(|peer| site_of(**peer) != site_of(rank)) {
                counts.0[site_of(rank)] += chunks;
                counts.1[site_of(*peer)] += chunks;
            }
        }
    }
    counts
}

#[test]
fn uplinks_carry_no_more_chunks_than_necessary() {
    let hosts = [
        in_sites_of(Hosts::APART, &[4, 4]),
        in_sites_of(Hosts::APART, &[5, 2, 1]),
        in_sites_of(of_sizes(&[3, 1, 2, 2]), &[3, 1]),
        of_sizes(&[3, 1, 2, 2]).in_sites(&[0, 1, 2, 1]),
        Hosts::each(2).in_sites(&[0, 1, 0, 1]),
    ];
    for hosts in hosts {
        for collective in [
            Collective::AllReduce,
            Collective::Broadcast,
            Collective::Reduce,
        ] {
            for root in 0..if collective.is_rooted() { 8 } else { 1 } {
                let request = Request {
                    collective,
                    algorithm: Algorithm::Hierarchical,
                    world_size: 8,
                    rank: 0,
                    root,
                    pieces: 3,
                    hosts: hosts.clone(),
                };
                let plans = plans(&request);
                let (out, into) = across(&plans);
                let (chunks, sites) = (plans[0].chunks, out.len());
                match collective {
                    // Each site reduces one share, sends the result to the other sites, and
                    // receives their shares.
                    Collective::AllReduce => {
                        let least = 2 * (sites - 1) * chunks / sites;
                        assert_eq!((out, into), (vec![least; sites], vec![least; sites]));
                    }
                    _ => assert!(
                        out.iter().chain(&into).all(|count| *count <= chunks),
                        "{request:?}"
                    ),
                }
            }
        }
    }
}

/// Returns a table with 1 Gbit/s and 0.25 ms between hosts, and a tenth of that bandwidth between
/// sites.
fn slow_uplink() -> TuningTable {
    let mut table = over_tcp(LinkCost {
        alpha_s: 0.25e-3,
        overhead_s: 10e-6,
        beta_s_per_byte: 8e-9,
        gamma_s_per_byte: 0.1e-9,
    });
    table.uplink = Some(UplinkCost {
        alpha_s: 0.5e-3,
        beta_s_per_byte: 80e-9,
    });
    table
}

#[test]
fn auto_minimizes_traffic_on_a_slow_uplink() {
    let at_sites = |hosts: &[usize]| Topology {
        world_size: 8,
        hosts: in_sites_of(Hosts::APART, hosts),
    };
    let eight = at_sites(&[4, 4]);
    let by = |collective, bytes, forced| {
        choose(collective, &eight, bytes, 4, &slow_uplink(), forced).unwrap()
    };
    let seconds = |algorithm| by(Collective::AllReduce, 25 << 20, Some(algorithm)).predicted_s;
    let auto = by(Collective::AllReduce, 25 << 20, None);
    let hierarchical_s = seconds(Algorithm::Hierarchical);
    assert!(auto.predicted_s <= hierarchical_s, "{}", auto);
    for (other, share) in [
        (Algorithm::Circulant, 0.4),
        (Algorithm::TwoShot, 0.4),
        (Algorithm::Ring, 0.68),
    ] {
        let most = share * seconds(other);
        assert!(hierarchical_s <= most, "{hierarchical_s} {other}");
    }
    // No other plan sends so little over the uplink in few messages, however many hosts each site
    // has.
    let (uneven, table) = (at_sites(&[5, 3]), slow_uplink());
    let few = choose(Collective::AllReduce, &uneven, 64 << 10, 4, &table, None).unwrap();
    assert_eq!(few.algorithm, Algorithm::Hierarchical, "{}", few);
    // The buffer crosses the uplink once.
    let least = f64::from(25 << 20) * 80e-9;
    let broadcast = by(Collective::Broadcast, 25 << 20, None);
    assert!(broadcast.predicted_s < 1.15 * least, "{}", broadcast);
    // Without sites, `auto` does not know of the uplink. With sites but without measured costs, it
    // assumes that an uplink is ten times slower.
    let apart = Topology::apart(8);
    let unaware = choose(
        Collective::AllReduce,
        &apart,
        25 << 20,
        4,
        &slow_uplink(),
        None,
    );
    assert_ne!(unaware.unwrap().algorithm, Algorithm::Hierarchical);
    let mut table = slow_uplink();
    table.uplink = None;
    let forced = Some(Algorithm::Hierarchical);
    let assumed = choose(Collective::AllReduce, &eight, 25 << 20, 4, &table, forced).unwrap();
    assert!((assumed.predicted_s / hierarchical_s - 1.0).abs() < 0.01);
}

/// With more ranks than `auto` counts message by message, every collective still has a predicted
/// cost. If uplinks are slow, `auto` chooses the hierarchical plan.
#[test]
fn cost_is_predicted_for_many_ranks_at_sites() {
    for hosts in [
        in_sites_of(Hosts::APART, &[60_000, 40_000]),
        in_sites_of(Hosts::each(8), &[5000, 5000, 2500]),
    ] {
        let topology = Topology {
            world_size: 100_000,
            hosts,
        };
        for &collective in Collective::ALL {
            choose(collective, &topology, 1 << 20, 4, &slow_uplink(), None).unwrap();
        }
        let large = choose(
            Collective::AllReduce,
            &topology,
            25 << 20,
            4,
            &slow_uplink(),
            None,
        );
        assert_eq!(large.unwrap().algorithm, Algorithm::Hierarchical);
    }
}
