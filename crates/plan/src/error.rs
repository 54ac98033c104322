//! Errors returned by functions that operate on plans.

use std::fmt;

/// An error returned by a function that operates on plans. `Display` prints one line that states
/// what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError {
    kind: PlanErrorKind,
    text: String,
}

/// The kinds of [`PlanError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PlanErrorKind {
    /// A name, a number, a topology, a table or a list of plans is invalid. Correct it.
    Invalid,
    /// The algorithm does not implement the collective. Choose a different algorithm.
    Unsupported,
    /// The algorithm does not reduce in rank order, which reproducible sums require. The message
    /// names algorithms that do.
    NotReproducible,
    /// The call would need more memory than allowed, or there are too many ranks to verify.
    TooLarge,
    /// A custom algorithm panicked, or its plans do not produce the result of the collective.
    Faulty,
}

impl PlanError {
    pub(crate) fn new(kind: PlanErrorKind, text: impl Into<String>) -> Self {
        Self {
            kind,
            text: text.into(),
        }
    }

    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> PlanErrorKind {
        self.kind
    }
}

/// Creates a [`PlanError`] of the given kind. The remaining arguments are passed to `format!`.
macro_rules! refused {
    ($kind:ident, $($text:tt)+) => {
        $crate::PlanError::new($crate::PlanErrorKind::$kind, format!($($text)+))
    };
}

impl fmt::Display for PlanError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl std::error::Error for PlanError {}

impl From<PlanError> for String {
    fn from(error: PlanError) -> Self {
        error.text
    }
}

/// Returns the error that reports that `text` is not one of `names`.
#[must_use]
pub fn unknown_name(what: &str, text: &str, names: &[&str]) -> PlanError {
    refused!(
        Invalid,
        "unknown {what} '{text}'; use one of: {}",
        names.join(" ")
    )
}
