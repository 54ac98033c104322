//! The picture of a plan: who sends what to whom in which round, and who holds what after it.
//!
//! *Purpose.* [`text`] for the terminal, [`svg`] for pages: both draw what [`holdings`] finds by
//! replaying the plan. [`html`] is a page that replays the plan itself, step by step.
//!
//! *Invariants.* Pictures are pure functions of the plans; an SVG or a page is one self-contained
//! file that reads well in light and in dark surroundings.
//!
//! *May import* the plan's own files and `limits`.

pub mod holdings;
mod player;
mod svg;
mod text;

pub use player::{Played, html};
pub use svg::svg;
pub use text::text;

use super::cost::Traffic;
use super::ir::Plan;
use super::spec::Collective;
use super::units::{Bytes, Seconds};

/// What the caption of a picture tells besides the plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Caption {
    /// Bytes of the whole buffer.
    pub bytes: usize,
    /// The predicted time in seconds.
    pub time_s: f64,
    /// What the plan sends.
    pub traffic: Traffic,
}

/// "broadcast by binomial, 8 ranks, root 0".
fn title(plans: &[Plan]) -> Option<String> {
    let request = &plans.first()?.request;
    let root = if request.collective.is_rooted() {
        format!(", root {}", request.root)
    } else {
        String::new()
    };
    Some(format!(
        "{} by {}, {}{root}",
        request.collective,
        request.algorithm,
        count(request.world_size, "rank")
    ))
}

/// "3 rounds · 7 messages · buffer 1 MiB, busiest rank sends 3 MiB · predicted 2.52 ms".
fn facts(collective: Collective, caption: &Caption) -> String {
    let price = Seconds(caption.time_s);
    format!("{} · predicted {price}", counts(collective, caption))
}

/// "3 rounds · 7 messages · buffer 1 MiB, busiest rank sends 3 MiB".
fn counts(collective: Collective, caption: &Caption) -> String {
    let traffic = &caption.traffic;
    let mut facts = vec![count(traffic.rounds, "round")];
    facts.extend(traffic.messages.map(|messages| count(messages, "message")));
    if collective != Collective::Barrier {
        facts.push(format!(
            "buffer {}, busiest rank sends {}",
            Bytes(caption.bytes as f64),
            Bytes(traffic.max_bytes_sent_per_rank as f64)
        ));
    }
    facts.join(" · ")
}

fn count(number: usize, what: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {what}{ending}")
}
