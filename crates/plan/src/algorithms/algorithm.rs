//! Converts algorithms to and from their names, for both built-in and custom algorithms.

use super::own;
use crate::error::{PlanError, unknown_name};
use crate::limits::RADIX_MAX;
use crate::spec::{Algorithm, RADIX_DEFAULT, checked_radix};
use std::fmt;
use std::str::FromStr;

impl Algorithm {
    /// Returns the name without the radix.
    #[must_use]
    pub fn name(self) -> &'static str {
        own::entry_of(self).map_or("an unregistered algorithm", |entry| entry.name)
    }

    /// Returns this algorithm with the given radix.
    ///
    /// # Errors
    /// Returns an error if the radix is out of range or if the algorithm does not have a
    /// radix.
    pub fn with_radix(self, radix: usize) -> Result<Self, PlanError> {
        let number = self.number() as u8;
        let wanted = Self::with(number, checked_radix(radix)?);
        let has_radix = own::entry_of(self).is_some_and(super::has_any_radix);
        if !has_radix && wanted != Self::numbered(number) {
            return Err(refused!(Unsupported, "{} has no radix", self.name()));
        }
        Ok(wanted)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())?;
        match self.radix() as u8 {
            RADIX_DEFAULT => Ok(()),
            radix => write!(formatter, "/{radix}"),
        }
    }
}

impl fmt::Debug for Algorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl FromStr for Algorithm {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let parts = text.split_once('/');
        let (name, radix) = parts.map_or((text, None), |(name, radix)| (name, Some(radix)));
        let found = own::named(name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|one| one.name()).collect();
            unknown_name("algorithm", name, &names)
        })?;
        let Some(radix) = radix else {
            return Ok(found);
        };
        found.with_radix(radix.parse().map_err(|_| {
            refused!(
                Invalid,
                "radix '{radix}' is not a number: expected 2 to {RADIX_MAX}"
            )
        })?)
    }
}
