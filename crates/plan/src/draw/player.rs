//! Writes the player, a page that plays either one plan or two plans on a shared clock.
//!
//! The page is a single file that contains its style sheet, its script, and the plans as JSON. The
//! script replays the transfers. The code in this module determines when each message is sent.

use super::{Caption, counts, escaped, title};
use crate::algorithms::own::entry_of;
use crate::cost::{MessageTimes, Schedule};
use crate::error::PlanError;
use crate::export::{Transfer, transfers};
use crate::ir::Plan;
use crate::limits::{DRAWN_RANKS_MAX, PLAYED_TRANSFERS_PER_RANK_MAX};
use crate::parts::Parts;
use crate::spec::{Algorithm, RADIX_DEFAULT};
use crate::units::{Bytes, Seconds};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

const PAGE: &str = include_str!("player/player.html");
const STYLE: &str = include_str!("player/player.css");
const SCRIPT: &str = include_str!("player/player.js");

/// Flags of a kind of message: `REDUCES` if the receiver reduces the message, and `MOVES` if it
/// stores chunks at different indexes.
const REDUCES: u8 = 1;
const MOVES: u8 = 2;

/// The plans of one algorithm for all ranks, in rank order, with their predicted time.
#[derive(Clone, Debug, PartialEq)]
pub struct Played {
    /// The plans.
    pub plans: Vec<Plan>,
    /// The predicted time and the traffic.
    pub caption: Caption,
    /// The times of each message (see [`crate::cost::schedule()`]).
    pub schedule: Schedule,
    /// The components of the predicted time.
    pub parts: Parts,
}

/// Returns a page that plays `played`, which contains either one algorithm or two algorithms for
/// the same ranks. `heading` names the collective and the ranks. `costs` is a text that describes
/// the costs of messages.
///
/// ```
/// use ringtree::tuning::TuningTable;
/// use ringtree::plan::plans;
/// use ringtree::plan::internal::cost::{Traffic, schedule};
/// use ringtree::plan::draw::Caption;
/// use ringtree::plan::internal::player::{Played, html};
/// use ringtree::plan::internal::select::parts;
/// use ringtree::plan::{Algorithm, Collective, Hosts, Request};
///
/// let request = Request {
///     collective: Collective::Broadcast,
///     algorithm: Algorithm::Binomial,
///     world_size: 8,
///     rank: 0,
///     root: 0,
///     pieces: 1,
///     hosts: Hosts::APART,
/// };
/// let schedule = schedule(&request, 1 << 20, 1, &TuningTable::default())?;
/// let caption = Caption {
///     bytes: 1 << 20,
///     time_s: schedule.end_s,
///     traffic: Traffic::of(&request, 1 << 20)?,
/// };
/// let parts = parts(&request, 1 << 20, &TuningTable::default())?;
/// let plans = plans(&request)?;
/// let played = Played { plans, caption, schedule, parts };
/// let page = html("broadcast of 1 MiB over 8 ranks", "Each message costs 3 µs.", &[played])?;
/// assert!(page.starts_with("<!doctype html>"));
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// Returns an error if there is no plan, if there are too many ranks or transfers to play,
/// or if the plans are not consistent with each other.
pub fn html(heading: &str, costs: &str, played: &[Played]) -> Result<String, PlanError> {
    let first = played.first().and_then(|one| one.plans.first());
    let request = &first
        .ok_or_else(|| refused!(Invalid, "there are no plans to play"))?
        .request;
    if request.world_size > DRAWN_RANKS_MAX {
        return Err(refused!(
            Invalid,
            "cannot play {} ranks: the limit is {DRAWN_RANKS_MAX}",
            request.world_size
        ));
    }
    let topology = request.topology();
    let page = Page {
        heading,
        costs,
        collective: request.collective.name(),
        ranks: request.world_size,
        root: request.collective.is_rooted().then_some(request.root),
        hosts: (0..request.world_size)
            .map(|rank| topology.host_of(rank))
            .collect(),
        plans: played.iter().map(Score::of).collect::<Result<_, _>>()?,
    };
    let titles = played.iter().filter_map(|one| title(&one.plans));
    let data = serde_json::to_string(&page).expect("invariant: names and numbers are valid JSON");
    Ok(filled(&[
        (
            "{{title}}",
            &escaped(&titles.collect::<Vec<_>>().join(" | ")),
        ),
        ("{{style}}", STYLE),
        // Escape `<`, so that the data cannot close the `<script>` element that contains it.
        ("{{data}}", &data.replace('<', "\\u003c")),
        ("{{script}}", SCRIPT),
    ]))
}

/// Returns the page with each placeholder replaced. `parts` lists the placeholders in the order in
/// which they appear on the page. Inserted text is not searched for placeholders.
fn filled(parts: &[(&str, &str)]) -> String {
    let (mut out, mut rest) = (String::new(), PAGE);
    for (mark, text) in parts {
        let (before, after) = rest
            .split_once(mark)
            .expect("invariant: the page has every mark once, in this order");
        out.push_str(before);
        out.push_str(text);
        rest = after;
    }
    out + rest
}

/// The data that the page passes to the script.
#[derive(Serialize)]
struct Page<'a> {
    heading: &'a str,
    costs: &'a str,
    collective: &'static str,
    ranks: usize,
    root: Option<usize>,
    /// The host of each rank.
    hosts: Vec<usize>,
    plans: Vec<Score>,
}

/// The data about one plan that the page passes to the script.
#[derive(Serialize)]
struct Score {
    algorithm: String,
    meaning: String,
    pieces: usize,
    chunks: usize,
    scratch: usize,
    facts: String,
    price: String,
    /// Number of bytes that the busiest rank sends, as text.
    sends: String,
    /// Components of the predicted time, in seconds: latency and overhead, bytes, and reductions.
    parts_s: [f64; 3],
    /// Factor by which message times are scaled, so that the last message ends at the predicted
    /// time.
    scale: f64,
    /// End of each round, in seconds. A later round never ends before an earlier one.
    ends_s: Vec<f64>,
    /// Number of bytes, beginning and end (in percent of the round), and flags of each kind of
    /// message.
    kinds: Vec<(usize, u8, u8, u8)>,
    /// Messages of each round: sender, receiver, kind, and runs of chunks. A run consists of the
    /// first chunk and the count or, for a kind that moves chunks, the first chunk read, the first
    /// chunk written and the count.
    rounds: Vec<Vec<Vec<usize>>>,
}

impl Score {
    fn of(played: &Played) -> Result<Self, PlanError> {
        let Played {
            plans,
            caption,
            schedule,
            parts,
        } = played;
        let transfers = transfers(plans)?;
        let most = PLAYED_TRANSFERS_PER_RANK_MAX * plans.len();
        let request = &plans[0].request;
        if transfers.len() > most {
            return Err(refused!(
                Invalid,
                "{} in {} pieces has {} transfers, but --draw html plays at most {most}; pass \
                 fewer pieces with --chunks",
                request.algorithm,
                request.pieces,
                transfers.len()
            ));
        }
        let clock = Clock::of(plans, caption.time_s, schedule);
        let mut kinds = BTreeMap::new();
        let mut rounds = vec![Vec::new(); clock.ends_s.len()];
        let is_one = |one: &Transfer, next: &Transfer| {
            (one.round, one.message, one.from, one.to, one.reduce)
                == (next.round, next.message, next.from, next.to, next.reduce)
        };
        for message in transfers.chunk_by(is_one) {
            let kind = clock.kind(message);
            let count = kinds.len();
            let number = *kinds.entry(kind).or_insert(count);
            rounds[message[0].round].push(entry(message, number, kind.3));
        }
        let mut numbered: Vec<_> = kinds.into_iter().collect();
        numbered.sort_by_key(|(_, number)| *number);
        Ok(Self {
            algorithm: request.algorithm.to_string(),
            meaning: meaning(request.algorithm),
            pieces: request.pieces,
            chunks: plans[0].chunks,
            scratch: plans.iter().map(|plan| plan.scratch).max().unwrap_or(0),
            facts: counts(request.collective, caption),
            price: Seconds(caption.time_s).to_string(),
            sends: Bytes(caption.traffic.max_bytes_sent_per_rank as f64).to_string(),
            parts_s: [parts.way_s + parts.messages_s, parts.bytes_s, parts.folds_s],
            scale: clock.scale,
            ends_s: clock.ends_s,
            kinds: numbered.into_iter().map(|(kind, _)| kind).collect(),
            rounds,
        })
    }
}

/// Returns a text that explains the algorithm's name and, unless it is the default, its radix.
fn meaning(algorithm: Algorithm) -> String {
    let meaning = entry_of(algorithm).map_or("", |entry| entry.meaning);
    match algorithm.radix() {
        radix if radix == usize::from(RADIX_DEFAULT) => meaning.to_owned(),
        radix => {
            let messages = radix - 1;
            format!(
                "{meaning} With radix {radix}, a rank sends up to {messages} messages per round."
            )
        }
    }
}

/// Returns a message as the list of numbers that is described at [`Score::rounds`].
fn entry(message: &[Transfer], kind: usize, flags: u8) -> Vec<usize> {
    let mut entry = vec![message[0].from, message[0].to, kind];
    for one in message {
        entry.push(one.from_chunk);
        if flags & MOVES != 0 {
            entry.push(one.to_chunk);
        }
        entry.push(one.chunks);
    }
    entry
}

/// The end of each round and the times of each message.
struct Clock<'a> {
    scale: f64,
    ends_s: Vec<f64>,
    /// Messages, indexed by round of the transfers, sender and receiver.
    messages: HashMap<(usize, usize, usize), &'a MessageTimes>,
}

impl<'a> Clock<'a> {
    fn of(plans: &[Plan], time_s: f64, schedule: &'a Schedule) -> Self {
        let scale = match schedule.end_s > 0.0 {
            true => time_s / schedule.end_s,
            false => 1.0,
        };
        // The numbers of the rounds in the transfers do not count rounds in which no rank has a
        // step.
        let mut numbers = HashMap::new();
        for round in 0..plans[0].rounds.len() {
            let has_steps = |plan: &Plan| plan.rounds.get(round).is_some_and(|one| !one.is_empty());
            if plans.iter().any(has_steps) {
                numbers.insert(round, numbers.len());
            }
        }
        let mut ends_s = vec![0.0_f64; numbers.len()];
        let mut messages = HashMap::new();
        for message in &schedule.messages {
            let round = numbers[&message.round];
            ends_s[round] = ends_s[round].max(message.receives_s[1] * scale);
            messages.insert((round, message.from, message.to), message);
        }
        let mut latest_s = 0.0_f64;
        for end_s in &mut ends_s {
            latest_s = latest_s.max(*end_s);
            *end_s = latest_s;
        }
        if let Some(last_s) = ends_s.last_mut() {
            *last_s = time_s;
        }
        Self {
            scale,
            ends_s,
            messages,
        }
    }

    /// Returns the kind of a message: its number of bytes, its beginning and end in percent of its
    /// round, and its flags.
    fn kind(&self, message: &[Transfer]) -> (usize, u8, u8, u8) {
        let Transfer {
            round, from, to, ..
        } = message[0];
        let mut flags = if message[0].reduce { REDUCES } else { 0 };
        if message.iter().any(|one| one.from_chunk != one.to_chunk) {
            flags |= MOVES;
        }
        let Some(times) = self.messages.get(&(round, from, to)) else {
            return (0, 0, 100, flags);
        };
        let begin_s = round
            .checked_sub(1)
            .map_or(0.0, |before| self.ends_s[before]);
        let length_s = self.ends_s[round] - begin_s;
        let percent = |at_s: f64| match length_s > 0.0 {
            true => (100.0 * (at_s * self.scale - begin_s) / length_s)
                .clamp(0.0, 100.0)
                .round() as u8,
            false => 100,
        };
        let ends = percent(times.receives_s[1]).max(1);
        let begins = percent(times.sends_s[0]).min(ends - 1);
        (times.bytes, begins, ends, flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_text_closes_no_tag_and_placeholders_are_unique() {
        assert_eq!(SCRIPT.matches("</").count(), 0);
        assert_eq!(STYLE.matches("</").count(), 0);
        for mark in ["{{title}}", "{{style}}", "{{data}}", "{{script}}"] {
            assert_eq!(PAGE.matches(mark).count(), 1, "{mark}");
        }
    }

    #[test]
    fn inserted_placeholders_are_not_replaced_and_markup_is_escaped() {
        let page = filled(&[("{{title}}", "{{style}}"), ("{{style}}", "{{data}}")]);
        assert!(page.contains("<title>{{style}}</title>") && page.contains("{{data}}"));
        assert_eq!(escaped("</title><b>&"), "&lt;/title&gt;&lt;b&gt;&amp;");
    }
}
