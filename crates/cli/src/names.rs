//! Names of collectives and algorithms on the command line.
//!
//! The registry is asked first. The names to come only make a refusal say more.

use ringtree::plan::{Algorithm, Collective};

const COLLECTIVES_TO_COME: &[&str] = &["send-recv"];

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

/// The names of all collectives, for the help.
pub(crate) fn collectives() -> String {
    let names: Vec<String> = Collective::ALL.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// The collective called `text`.
///
/// # Errors
/// One line: it is not built yet, or there is none of that name.
pub(crate) fn parse_collective(text: &str) -> Result<Collective, String> {
    text.parse().map_err(|unknown| {
        if COLLECTIVES_TO_COME.contains(&text) {
            format!("the collective {text} is not built yet")
        } else {
            unknown
        }
    })
}

/// `auto`, `all`, or the algorithm called `text`.
///
/// # Errors
/// One line: there is none of that name.
pub(crate) fn parse_selection(text: &str) -> Result<Selection, String> {
    match text {
        "auto" => Ok(Selection::Auto),
        "all" => Ok(Selection::All),
        _ => text.parse().map(Selection::One).map_err(|why: String| {
            let name = text.split('/').next().unwrap_or(text);
            match name.parse::<Algorithm>() {
                Ok(_) => why,
                // It ends with the names that there are.
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
            let why = "a radix is a number from 2 to 64, not 1";
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
