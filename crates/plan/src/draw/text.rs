//! Draws plans for the terminal.

use super::holdings::{Holdings, State};
use super::{Caption, arrows_of, facts, title};
use crate::error::PlanError;
use crate::export::Transfer;
use crate::ir::Plan;
use std::fmt::Write;

/// Largest number of ranks for which the rows of a grid fit on a screen.
const GRID_RANKS_MAX: usize = 16;
/// Number of terminal columns that a grid may fill before it continues below.
const WIDTH_MAX: usize = 100;
/// Largest number of chunks for which each chunk has its own cell.
const CELLS_MAX: usize = 12;

/// Draws `plans`, which contains one plan per rank in rank order, as text. For up to 16 ranks, a
/// grid of ranks and rounds shows what each rank holds. In addition, a list shows the messages in
/// each round.
///
/// # Errors
/// Returns an error if there are no plans, if there are too many ranks to draw, or if the
/// plans are not consistent with each other.
pub fn text(plans: &[Plan], caption: &Caption) -> Result<String, PlanError> {
    let holdings = Holdings::of(plans)?;
    let collective = plans[0].request.collective;
    let mut out = String::new();
    let title = title(plans).unwrap_or_default();
    let _ = writeln!(out, "{title}\n{}\n", facts(collective, caption));
    if plans.len() <= GRID_RANKS_MAX {
        grid(&mut out, &holdings);
    }
    list(&mut out, &holdings);
    out.push_str("\n→ sends to   ← stores from   ⊕ reduces from   ");
    out.push_str("held: · nothing  ░ ▒ ▓ part  █ complete\n");
    Ok(out)
}

fn pad(text: &str, width: usize) -> String {
    let length = text.chars().count();
    format!("{text}{}", " ".repeat(width.saturating_sub(length)))
}

/// Writes one column per round, with as many columns next to each other as fit.
fn grid(out: &mut String, holdings: &Holdings) {
    let ranks = holdings.states[0].parts.len();
    let columns: Vec<Vec<String>> = holdings
        .rounds
        .iter()
        .enumerate()
        .map(|(index, round)| column(index, round, &holdings.states[index + 1]))
        .collect();
    let mut labels = vec![String::new()];
    labels.extend((0..ranks).map(|rank| format!("rank {rank}")));
    labels.push("complete".to_owned());
    let mut start = vec!["start".to_owned()];
    start.extend((0..ranks).map(|rank| bar(&holdings.states[0].parts[rank])));
    start.push(share(&holdings.states[0]));
    let mut rest = columns.as_slice();
    loop {
        let mut lines = vec![String::new(); labels.len()];
        append(&mut lines, &labels);
        if rest.len() == columns.len() {
            append(&mut lines, &start);
        }
        while let Some((column, others)) = rest.split_first() {
            let filled = width(&lines);
            let is_first = filled <= labels[1].len() + 8;
            if !is_first && filled + width(column) > WIDTH_MAX {
                break;
            }
            append(&mut lines, column);
            rest = others;
        }
        for line in lines {
            let _ = writeln!(out, "{}", line.trim_end());
        }
        out.push('\n');
        if rest.is_empty() {
            break;
        }
    }
}

/// Returns the number of terminal columns that the longest cell fills.
fn width(cells: &[String]) -> usize {
    let widths = cells.iter().map(|cell| cell.chars().count());
    widths.max().unwrap_or(0)
}

fn append(lines: &mut [String], column: &[String]) {
    let width = width(column);
    for (line, cell) in lines.iter_mut().zip(column) {
        line.push_str(&pad(cell, width));
        line.push_str("   ");
    }
}

/// Returns the cells of a round: the heading, one cell per rank (what the rank does and what it
/// holds after the round), and the share of ranks that are done.
fn column(index: usize, round: &[Transfer], after: &State) -> Vec<String> {
    let actions: Vec<String> = (0..after.parts.len())
        .map(|rank| actions(rank, round))
        .collect();
    let width = width(&actions).max(2);
    let mut cells = vec![format!("round {}", index + 1)];
    for (deed, parts) in actions.iter().zip(&after.parts) {
        cells.push(format!("{} {}", pad(deed, width), bar(parts)));
    }
    cells.push(format!("{} {}", pad("", width), share(after)));
    cells
}

/// Returns what `rank` does in a round, such as "→4", "⊕0,2" or "→1-7".
fn actions(rank: usize, round: &[Transfer]) -> String {
    let mut sends = Vec::new();
    let mut stores = Vec::new();
    let mut folds = Vec::new();
    let mut is_local = false;
    for one in round {
        if one.from == one.to {
            is_local |= one.to == rank;
            continue;
        }
        if one.from == rank {
            sends.push(one.to);
        }
        if one.to == rank && one.reduce {
            folds.push(one.from);
        } else if one.to == rank {
            stores.push(one.from);
        }
    }
    // A reduction without the rank's own chunks stores the first message and reduces the others
    // into it. Show all of them as reduced, because they belong to one receive.
    if !folds.is_empty() {
        folds.append(&mut stores);
    }
    let mut words = Vec::new();
    for (sign, peers) in [("→", sends), ("←", stores), ("⊕", folds)] {
        if !peers.is_empty() {
            words.push(format!("{sign}{}", runs(peers)));
        }
    }
    if is_local {
        words.push("own".to_owned());
    }
    words.join(" ")
}

/// Formats the numbers in ascending order and combines runs: "0-3,6".
fn runs(mut numbers: Vec<usize>) -> String {
    numbers.sort_unstable();
    numbers.dedup();
    let runs = numbers.chunk_by(|one, next| one + 1 == *next);
    let words = runs.map(|run| match run {
        [first, .., last] if run.len() > 2 => format!("{first}-{last}"),
        _ => run
            .iter()
            .map(usize::to_string)
            .collect::<Vec<_>>()
            .join(","),
    });
    words.collect::<Vec<_>>().join(",")
}

/// Returns what a rank holds, one character per chunk or group of chunks.
fn bar(parts: &[f32]) -> String {
    let cells = match parts.len() {
        1 => 4,
        few if few <= CELLS_MAX => few,
        _ => CELLS_MAX,
    };
    (0..cells)
        .map(|cell| {
            let begin = cell * parts.len() / cells;
            let end = ((cell + 1) * parts.len() / cells).max(begin + 1);
            let group = &parts[begin..end];
            shade(group.iter().sum::<f32>() / group.len() as f32)
        })
        .collect()
}

fn shade(part: f32) -> char {
    match part {
        none if none <= 0.0 => '·',
        part if part < 0.4 => '░',
        part if part < 0.7 => '▒',
        part if part < 0.9999 => '▓',
        _ => '█',
    }
}

fn share(state: &State) -> String {
    format!("{}/{}", state.ranks_done, state.ranks_owed)
}

/// Writes the messages of each round, and a bar with one character per rank that shows what the
/// rank holds after the round.
fn list(out: &mut String, holdings: &Holdings) {
    let digits = holdings.rounds.len().to_string().len();
    for (index, round) in holdings.rounds.iter().enumerate() {
        let state = &holdings.states[index + 1];
        let who: String = state.parts.iter().map(|parts| mean_shade(parts)).collect();
        let head = format!("round {:>digits$}  {who}  {:>5}  ", index + 1, share(state));
        // There is no space next to a long bar, so the messages go below it.
        let is_long = state.parts.len() > GRID_RANKS_MAX;
        let indent = " ".repeat(if is_long {
            digits + 8
        } else {
            head.chars().count()
        });
        let mut line = head;
        if is_long {
            let _ = writeln!(out, "{}", line.trim_end());
            line.clone_from(&indent);
        }
        let mut is_fresh = true;
        for word in arrows(round) {
            if !is_fresh && line.chars().count() + word.chars().count() > WIDTH_MAX {
                let _ = writeln!(out, "{}", line.trim_end());
                line.clone_from(&indent);
            }
            line.push_str(&word);
            line.push_str("  ");
            is_fresh = false;
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

fn mean_shade(parts: &[f32]) -> char {
    shade(parts.iter().sum::<f32>() / parts.len() as f32)
}

/// Returns "0→4" for each message and "3 own" for local work.
fn arrows(round: &[Transfer]) -> Vec<String> {
    let word = |one: Transfer| match one.from == one.to {
        true => format!("{} own", one.to),
        false => format!("{}→{}", one.from, one.to),
    };
    arrows_of(round).into_iter().map(word).collect()
}
