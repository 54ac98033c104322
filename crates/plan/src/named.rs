//! What every table of named values can do: its text, its value from a text, its code and back.

/// Gives an enum that has `ALL` (in the order of its discriminants, which are bytes) and `name()`
/// its `Display`, its `FromStr`, and its codes.
#[doc(hidden)]
#[macro_export]
macro_rules! named {
    ($type:ident, $what:literal) => {
        impl $type {
            /// The discriminant, for encoding.
            #[must_use]
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// The one whose discriminant is `code`, for decoding.
            #[must_use]
            pub fn from_code(code: u8) -> Option<Self> {
                Self::ALL.get(usize::from(code)).copied()
            }
        }

        $crate::named_text!($type, $what);
    };
}

/// Gives an enum that has `ALL` and `name()` its `Display` and its `FromStr`.
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
            type Err = String;

            fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
                let found = Self::ALL.iter().copied().find(|one| one.name() == text);
                found.ok_or_else(|| {
                    let names: Vec<_> = Self::ALL.iter().map(|one| one.name()).collect();
                    format!(
                        "no {} is called '{text}'; there are {}",
                        $what,
                        names.join(" ")
                    )
                })
            }
        }
    };
}
