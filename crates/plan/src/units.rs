//! Human-readable times, sizes and rates.

use std::fmt;

/// A time in seconds that is displayed with three digits and a suitable unit.
#[derive(Clone, Copy, Debug)]
pub struct Seconds(pub f64);

impl fmt::Display for Seconds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            0.0 => (0.0, "s"),
            s if s < 1e-6 => (s * 1e9, "ns"),
            s if s < 1e-3 => (s * 1e6, "µs"),
            s if s < 1.0 => (s * 1e3, "ms"),
            s => (s, "s"),
        };
        write_three_digits(formatter, value, unit)
    }
}

/// A number of bytes that is displayed with a binary unit, such as KiB.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub f64);

impl fmt::Display for Bytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < units.len() {
            value /= 1024.0;
            unit += 1;
        }
        write_three_digits(formatter, value, units[unit])
    }
}

/// A rate in bits per second that is displayed with a decimal unit, such as Mbit/s.
#[derive(Clone, Copy, Debug)]
pub struct Rate(pub f64);

impl fmt::Display for Rate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            bits if bits < 1e3 => (bits, "bit/s"),
            bits if bits < 1e6 => (bits / 1e3, "Kbit/s"),
            bits if bits < 1e9 => (bits / 1e6, "Mbit/s"),
            bits => (bits / 1e9, "Gbit/s"),
        };
        write_three_digits(formatter, value, unit)
    }
}

fn write_three_digits(formatter: &mut fmt::Formatter<'_>, value: f64, unit: &str) -> fmt::Result {
    if value >= 100.0 || value.fract() == 0.0 {
        write!(formatter, "{value:.0} {unit}")
    } else if value >= 10.0 {
        write!(formatter, "{value:.1} {unit}")
    } else {
        write!(formatter, "{value:.2} {unit}")
    }
}
