//! Names on the command line, those of what is not built yet among them.

use ringtree::plan::{Algorithm, Collective};

const COLLECTIVES_TO_COME: &[&str] = &["gather", "scatter", "all-to-all", "send-recv"];
const ALGORITHMS_TO_COME: &[&str] = &["chain", "double-tree", "bruck", "pairwise", "hierarchical"];

/// Which algorithms a command is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    /// What the tuning table chooses.
    Auto,
    /// Every one.
    All,
    /// This one.
    One(Algorithm),
}

/// The collective called `text`.
///
/// # Errors
/// One line: it is not built yet, or there is none of that name.
pub(crate) fn parse_collective(text: &str) -> Result<Collective, String> {
    if COLLECTIVES_TO_COME.contains(&text) {
        return Err(format!("the collective {text} is not built yet"));
    }
    text.parse()
}

/// `auto`, `all`, or the algorithm called `text`.
///
/// # Errors
/// One line: it is not built yet, or there is none of that name.
pub(crate) fn parse_selection(text: &str) -> Result<Selection, String> {
    match text {
        "auto" => Ok(Selection::Auto),
        "all" => Ok(Selection::All),
        _ if ALGORITHMS_TO_COME.contains(&text) => {
            Err(format!("the algorithm {text} is not built yet"))
        }
        _ => text
            .parse()
            .map(Selection::One)
            .map_err(|error: String| format!("{error} auto all")),
    }
}
