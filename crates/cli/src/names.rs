//! Parses the names of collectives and algorithms on the command line.
//!
//! The valid names come from the registry. Names that are planned for the future get a more helpful
//! error message.

use ringtree::plan::{Algorithm, Collective, PlanError, UnknownName};

const COLLECTIVES_TO_COME: &[&str] = &["send-recv"];

/// The algorithms that a command uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    /// The algorithm that `auto` chooses.
    Auto,
    /// All algorithms.
    All,
    /// One algorithm.
    One(Algorithm),
}

/// Returns the help text for the argument that names the collective.
pub(crate) fn collectives() -> String {
    let names: Vec<String> = Collective::ALL.iter().map(ToString::to_string).collect();
    format!("Name of the collective: {}", names.join(", "))
}

/// Returns the collective called `text`.
///
/// # Errors
/// Returns a message if the collective is unknown or not implemented yet.
pub(crate) fn parse_collective(text: &str) -> Result<Collective, String> {
    text.parse().map_err(|unknown: UnknownName| {
        if COLLECTIVES_TO_COME.contains(&text) {
            format!("the collective {text} is not implemented yet")
        } else {
            unknown.to_string()
        }
    })
}

/// Parses `auto`, `all`, or the name of an algorithm.
///
/// # Errors
/// Returns a message if the name is unknown or the radix is out of range.
pub(crate) fn parse_selection(text: &str) -> Result<Selection, String> {
    match text {
        "auto" => Ok(Selection::Auto),
        "all" => Ok(Selection::All),
        _ => text.parse().map(Selection::One).map_err(|why: PlanError| {
            let name = text.split('/').next().unwrap_or(text);
            match name.parse::<Algorithm>() {
                Ok(_) => why.into(),
                // The message ends with the valid names.
                Err(_) => format!("{why} auto all"),
            }
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringtree::plan::REGISTRY;

    #[test]
    fn every_registered_name_is_understood() {
        for entry in REGISTRY {
            let algorithm = entry.algorithm;
            let selection = parse_selection(algorithm.name());
            assert_eq!(selection, Ok(Selection::One(algorithm)));
            let too_much = format!("{}/1", algorithm.name());
            let why = "radix 1 is out of range: expected 2 to 64";
            assert_eq!(parse_selection(&too_much), Err(why.to_owned()));
            for collective in entry.collectives {
                assert_eq!(parse_collective(collective.name()), Ok(*collective));
            }
        }
    }

    #[test]
    fn what_is_to_come_is_not_there_already() {
        for name in COLLECTIVES_TO_COME {
            assert!(name.parse::<Collective>().is_err(), "{name} is built");
        }
    }
}
