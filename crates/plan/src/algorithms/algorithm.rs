//! Names of algorithms, both those in the registry and those that a program adds.

use super::own;
use crate::error::PlanError;
use crate::limits::RADIX_MAX;
use crate::spec::{Algorithm, RADIX_DEFAULT};
use std::fmt;
use std::str::FromStr;

impl Algorithm {
    /// Returns the name without the radix.
    #[must_use]
    pub fn name(self) -> &'static str {
        own::entry_of(self).map_or("an unregistered algorithm", |entry| entry.name)
    }

    /// Returns the same algorithm with a radix of `radix`.
    ///
    /// # Errors
    /// Returns an error if the radix is out of range or if the algorithm does not have a
    /// radix.
    pub fn with_radix(self, radix: usize) -> Result<Self, PlanError> {
        if !(2..=RADIX_MAX).contains(&radix) {
            return Err(refused!(
                Invalid,
                "radix {radix} is out of range: expected 2 to {RADIX_MAX}"
            ));
        }
        let number = self.number() as u8;
        let wanted = Self::with(number, radix as u8);
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
        let (name, radix) = match text.split_once('/') {
            Some((name, radix)) => (name, Some(radix)),
            None => (text, None),
        };
        let found = own::named(name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|one| one.name()).collect();
            refused!(
                Invalid,
                "unknown algorithm '{name}'; use one of: {}",
                names.join(" ")
            )
        })?;
        match radix.map(|radix| (radix, radix.parse())) {
            None => Ok(found),
            Some((_, Ok(radix))) => found.with_radix(radix),
            Some((radix, Err(_))) => Err(refused!(
                Invalid,
                "radix '{radix}' is not a number: expected 2 to {RADIX_MAX}"
            )),
        }
    }
}
