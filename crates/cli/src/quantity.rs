//! Parses sizes, rates and times on the command line.

use clap::builder::RangedU64ValueParser;

/// Returns a parser that accepts a number from `min` to `max`.
pub(crate) fn count(min: usize, max: usize) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(min as u64..=max as u64)
}

/// Parses a size in bytes, given as digits and an optional K, M or G (or KiB, MiB, GiB) for powers
/// of 1024.
///
/// # Errors
/// Returns a message if the text is not a size.
pub(crate) fn parse_size(text: &str) -> Result<usize, String> {
    let end = text.find(|symbol: char| !symbol.is_ascii_digit());
    let (digits, unit) = text.split_at(end.unwrap_or(text.len()));
    let factor = match unit {
        "" => Some(1),
        "K" | "KiB" => Some(1 << 10),
        "M" | "MiB" => Some(1 << 20),
        "G" | "GiB" => Some(1 << 30),
        _ => None,
    };
    let factor = factor.filter(|_| !digits.is_empty()).ok_or_else(|| {
        format!(
            "'{text}' is not a size; use a number, optionally followed by K, M or G, such as 25M"
        )
    })?;
    digits
        .parse::<usize>()
        .ok()
        .and_then(|number| number.checked_mul(factor))
        .filter(|bytes| isize::try_from(*bytes).is_ok())
        .ok_or_else(|| format!("'{text}' exceeds the size of the address space"))
}

/// Parses a rate in bits per second, given as a number and the unit bit, Kbit, Mbit, Gbit or Tbit.
/// The units are powers of 1000.
///
/// # Errors
/// Returns a message if the text is not a rate.
pub(crate) fn parse_rate(text: &str) -> Result<f64, String> {
    const UNITS: &[(&str, f64)] = &[
        ("Kbit", 1e3),
        ("Mbit", 1e6),
        ("Gbit", 1e9),
        ("Tbit", 1e12),
        ("bit", 1.0),
    ];
    parse_number(text, UNITS)
        .filter(|rate| *rate > 0.0)
        .ok_or_else(|| {
            format!(
                "'{text}' is not a rate; use a number greater than 0 followed by bit, Kbit, Mbit, \
                 Gbit or Tbit (per second), such as 10Gbit"
            )
        })
}

/// Parses a time, given as a number and the unit ns, us, ms or s, and returns it in seconds.
///
/// # Errors
/// Returns a message if the text is not a time.
pub(crate) fn parse_time(text: &str) -> Result<f64, String> {
    const UNITS: &[(&str, f64)] = &[("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    parse_number(text, UNITS).ok_or_else(|| match text.strip_prefix('-') {
        Some(rest) if parse_number(rest, UNITS).is_some() => {
            format!("'{text}' is negative; a time must be at least 0")
        }
        _ => {
            format!(
                "'{text}' is not a time; use a number followed by ns, us, ms or s, such as 20us"
            )
        }
    })
}

/// Parses a finite number that is not negative, and multiplies it by the factor of the first unit
/// in `units` that `text` ends with.
fn parse_number(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, unit) = units
        .iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    let is_plain = number
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let value = number.parse::<f64>().ok().filter(|_| is_plain)? * unit;
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::{parse_rate, parse_size, parse_time};

    #[test]
    fn size_suffixes_are_powers_of_1024() {
        assert_eq!(parse_size("8"), Ok(8));
        assert_eq!(parse_size("1K"), Ok(1024));
        assert_eq!(parse_size("25M"), Ok(25 << 20));
        assert_eq!(parse_size("2G"), Ok(2 << 30));
        assert_eq!(parse_size("25MiB"), Ok(25 << 20));
        assert_eq!(parse_size("0"), Ok(0));
        for bad in [
            "",
            "K",
            "1k",
            "-1",
            "+1",
            "1.5M",
            "1MB",
            " 1",
            "99999999999G",
            "١",
        ] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rates_are_decimal() {
        assert_eq!(parse_rate("10Gbit"), Ok(1e10));
        assert_eq!(parse_rate("8Mbit"), Ok(8e6));
        assert_eq!(parse_rate("2.5Kbit"), Ok(2500.0));
        assert_eq!(parse_rate("9600bit"), Ok(9600.0));
        for bad in [
            "", "10", "Gbit", "0Gbit", "-1Gbit", "1e3bit", "infbit", "10GB", "10 Gbit",
        ] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_require_a_unit() {
        assert_eq!(parse_time("20us"), Ok(20.0 * 1e-6));
        assert_eq!(parse_time("0s"), Ok(0.0));
        assert_eq!(parse_time("1.5ms"), Ok(1.5 * 1e-3));
        assert_eq!(parse_time("7ns"), Ok(7.0 * 1e-9));
        for bad in ["", "20", "us", "-1us", "nans", "1m", "20 us"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }
}
