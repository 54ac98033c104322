//! Parses the names of collectives, algorithms and the like on the command line.
//!
//! The valid names come from the library.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use ringtree::plan::{Algorithm, PlanError};

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

/// Returns a parser that accepts the names of the values in `all`.
pub(crate) fn one_of<T: Copy + Send + Sync + 'static>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let named = move |text: String| all.iter().copied().find(|one| name(*one) == text);
    PossibleValuesParser::new(all.iter().map(|one| name(*one)))
        .try_map(move |text| named(text).ok_or("unknown name"))
}

/// Returns `help`, followed by the names of the algorithms.
pub(crate) fn algorithms(help: &str) -> String {
    let names: Vec<&str> = Algorithm::ALL.iter().map(|one| one.name()).collect();
    format!("{help} [possible names: {}]", names.join(", "))
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
    fn every_registered_name_is_parsed() {
        for entry in REGISTRY {
            let algorithm = entry.algorithm;
            let selection = parse_selection(algorithm.name());
            assert_eq!(selection, Ok(Selection::One(algorithm)));
            let too_much = format!("{}/1", algorithm.name());
            let why = "radix 1 is out of range: expected 2 to 64";
            assert_eq!(parse_selection(&too_much), Err(why.to_owned()));
        }
    }
}
