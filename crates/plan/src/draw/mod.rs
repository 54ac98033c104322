//! Draws plans: the messages of each round, and what each rank holds after the round.
//!
//! [`text`] draws plans for the terminal, and [`svg`] draws them for web pages.

// For contributors.
//
// *Purpose.* `text` draws plans for the terminal, and `svg` draws them for web pages. Both draw the
// states that `holdings` determines by replaying the plan. `player` writes a page that itself
// replays the plan, step by step.
//
// *Invariants.* Drawings are pure functions of the plans. An SVG or a page is a single
// self-contained file that is legible on both light and dark backgrounds.
//
// *May import* the plan's own files and `limits`.

pub(crate) mod holdings;
pub(crate) mod player;
mod svg;
mod text;

pub use svg::svg;
pub use text::text;

use super::cost::Traffic;
use super::export::Transfer;
use super::ir::Plan;
use super::spec::Collective;
use super::units::{Bytes, Seconds};

/// Facts that are shown in the caption of a drawing, in addition to the plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Caption {
    /// Size of the complete buffer, in bytes.
    pub bytes: usize,
    /// The predicted time, in seconds.
    pub time_s: f64,
    /// The traffic that the plan generates.
    pub traffic: Traffic,
}

/// Returns a title such as "broadcast by binomial, 8 ranks, root 0".
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

/// Returns "3 rounds · 7 messages · buffer 1 MiB, busiest rank sends 3 MiB · predicted 2.52 ms".
fn facts(collective: Collective, caption: &Caption) -> String {
    let price = Seconds(caption.time_s);
    format!("{} · predicted {price}", counts(collective, caption))
}

/// Returns "3 rounds · 7 messages · buffer 1 MiB, busiest rank sends 3 MiB".
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

/// Returns one transfer for each rank with local steps, followed by the first transfer of each
/// message in message order.
fn arrows_of(round: &[Transfer]) -> Vec<Transfer> {
    let mut arrows = round.to_vec();
    arrows.sort_by_key(|one| one.message);
    arrows.dedup_by_key(|one| (one.message, one.from, one.to));
    arrows
}

/// Escapes the characters in `text` that have a special meaning in HTML and SVG.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn count(number: usize, what: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {what}{ending}")
}
