//! Macros that convert enums with named values to and from their names and codes.

/// Implements `Display`, `FromStr` and conversion to and from codes for an enum that has `name()`
/// and `ALL`. `ALL` must be in the order of the discriminants, which are bytes.
#[doc(hidden)]
#[macro_export]
macro_rules! named {
    ($type:ident, $what:literal) => {
        impl $type {
            /// Returns the discriminant, for encoding.
            #[must_use]
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// Returns the value whose discriminant is `code`, for decoding.
            #[must_use]
            pub fn from_code(code: u8) -> Option<Self> {
                Self::ALL.get(usize::from(code)).copied()
            }
        }

        $crate::named_text!($type, $what);
    };
}

/// Implements `Display` and `FromStr` for an enum that has `ALL` and `name()`.
#[doc(hidden)]
#[macro_export]
macro_rules! named_text {
    ($type:ident, $what:literal) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::UnknownName;

            fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
                let found = Self::ALL.iter().copied().find(|one| one.name() == text);
                found.ok_or_else(|| {
                    let names: Vec<_> = Self::ALL.iter().map(|one| one.name()).collect();
                    $crate::UnknownName(format!(
                        "unknown {} '{text}'; use one of: {}",
                        $what,
                        names.join(" ")
                    ))
                })
            }
        }
    };
}
