//! Defines a macro that converts the values of an enum to and from their names.

/// Implements `Display` and `FromStr` for an enum that has `ALL` and `name()`.
#[doc(hidden)]
#[macro_export]
macro_rules! named {
    ($type:ident, $what:literal) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::PlanError;

            fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
                let found = Self::ALL.iter().copied().find(|one| one.name() == text);
                found.ok_or_else(|| {
                    let names: Vec<_> = Self::ALL.iter().map(|one| one.name()).collect();
                    $crate::internal::unknown_name($what, text, &names)
                })
            }
        }
    };
}
