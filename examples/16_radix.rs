//! Predicts how the time of an all-reduce grows with the number of ranks, up to 100,000: with ring,
//! with one message per round (radix 2), with all messages in one round (radix n), and with the
//! algorithm and radix that `auto` chooses.
//!
//! ```console
//! $ cargo run --release --example 16_radix
//! $ cargo run --release --example 16_radix -- docs/scale.svg
//! ```
//!
//! Nothing is sent: the times are the predictions by which `auto` chooses. Ring has 2 (n − 1)
//! rounds, so its latency grows with n. The other plans have ⌈log n⌉ rounds, so their latency grows
//! with the logarithm. Each round costs a latency, and each message occupies its two ranks for some
//! time. On a long, slow link, the latency dominates, and plans with few rounds of many messages
//! are best. On a short, fast link, the messages dominate. The best radix is between 2 and the
//! number of ranks. For a large buffer, the bytes determine the time of every plan, until the
//! number of ranks makes latency matter.

#[path = "drawing/mod.rs"]
mod drawing;

use drawing::chart::{Chart, Curve, Scale, charts};
use ringtree::plan::{
    Algorithm, Choice, Collective, LinkCost, PlanError, Seconds, Topology, TuningTable, choose,
};

const SIZES: [(&str, usize); 2] = [("64 KiB", 64 << 10), ("25 MiB", 25 << 20)];
const RANKS: [usize; 9] = [2, 8, 32, 128, 512, 2048, 8192, 32_768, 100_000];
/// A local network, and a network that spans several hundred kilometers.
const LINKS: [(&str, LinkCost); 2] = [
    (
        "1 Gbit/s, 0.25 ms latency, 10 µs per message",
        LinkCost {
            alpha_s: 0.25e-3,
            overhead_s: 10e-6,
            beta_s_per_byte: 8e-9,
            gamma_s_per_byte: 0.06e-9,
        },
    ),
    (
        "200 Mbit/s, 5 ms latency, 10 µs per message",
        LinkCost {
            alpha_s: 5e-3,
            overhead_s: 10e-6,
            beta_s_per_byte: 40e-9,
            gamma_s_per_byte: 0.06e-9,
        },
    ),
];
/// The algorithms to compare. `None` stands for the choice of `auto`.
const WAYS: [(&str, Option<Algorithm>); 4] = [
    ("ring", Some(Algorithm::Ring)),
    ("radix n", Some(Algorithm::TwoShot)),
    ("radix 2", Some(Algorithm::Circulant)),
    ("chosen", None),
];

fn choice(
    bytes: usize,
    ranks: usize,
    link: LinkCost,
    way: Option<Algorithm>,
) -> Result<Choice, PlanError> {
    let table = TuningTable {
        tcp: link,
        ..TuningTable::default()
    };
    let apart = Topology::apart(ranks);
    choose(Collective::AllReduce, &apart, bytes, 4, &table, way)
}

/// Draws the curves for one size on one network, and prints their times.
fn chart((size, bytes): (&str, usize), (network, link): (&str, LinkCost)) -> Result<Chart, String> {
    println!("all-reduce of {size}; {network}");
    let mut curves = WAYS.map(|(name, _)| Curve {
        name: name.into(),
        continued: Vec::new(),
        points: Vec::new(),
        measured: Vec::new(),
    });
    for ranks in RANKS {
        let mut line = format!("{ranks:>7} ranks");
        for ((name, way), curve) in WAYS.iter().zip(&mut curves) {
            let choice = choice(bytes, ranks, link, *way)?;
            curve.points.push((ranks as f64, choice.predicted_s));
            let time = Seconds(choice.predicted_s).to_string();
            line += &format!("  {name} {time:>7}");
            if way.is_none() {
                line += &format!(" ({})", choice.algorithm);
            }
        }
        println!("{line}");
    }
    println!();
    Ok(Chart {
        name: format!("All-reduce of {size}"),
        note: network.into(),
        scale: Scale::Logarithmic,
        curves: curves.into(),
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pairs = SIZES
        .into_iter()
        .flat_map(|size| LINKS.map(|link| (size, link)));
    let drawn: Vec<Chart> = pairs
        .map(|(size, link)| chart(size, link))
        .collect::<Result<_, _>>()?;
    if let Some(path) = std::env::args().nth(1) {
        let label = |ranks: usize| match ranks {
            10_000.. => format!("{}k", ranks / 1000),
            few => few.to_string(),
        };
        let ticks = RANKS.map(|ranks| (ranks as f64, label(ranks)));
        let title = "From 2 to 100,000 ranks: logarithmic rounds, and the radix chosen";
        let note = "Predicted by the LogGP model by which auto chooses; one rank per host";
        std::fs::write(path, charts(title, &[note], "ranks", &ticks, &drawn))?;
    }
    Ok(())
}
