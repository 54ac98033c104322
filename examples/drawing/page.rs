//! Writes the parts that all pictures have in common: background, text, rectangles, and round
//! numbers for axes. The pictures are self-contained SVGs for light and dark pages.

use std::fmt::Write;

/// CSS with the colors for light pages and for dark pages.
const STYLE: &str = "
text{font-family:ui-sans-serif,system-ui,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2933}
.paper{fill:#ffffff;stroke:#d9dee5}.title{font-size:19px;font-weight:650}
.note{font-size:12.5px;fill:#5f6c7b}.name{font-size:15px;font-weight:650}
.head{font-size:12px;font-weight:600}.h3{fill:#6ea4e2}.h4{fill:#3c7fcf}.done{fill:#17a673}
.grid{stroke:#d9dee5;stroke-width:1;stroke-dasharray:2 4}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.paper{fill:#0f141b;stroke:#2b333d}
.note{fill:#93a1b1}.h3{fill:#3079c4}.h4{fill:#5aa0ea}.done{fill:#2cc48d}.grid{stroke:#2b333d}}
";

/// Writes the opening tag, the style and the background.
pub(crate) fn open(out: &mut String, (width, height): (f64, f64), style: &str) {
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\">\n<style>{STYLE}{style}</style>\n\
         <rect class=\"paper\" x=\"0.5\" y=\"0.5\" width=\"{:.0}\" height=\"{:.0}\" rx=\"10\"/>",
        width - 1.0,
        height - 1.0
    );
}

pub(crate) fn write_text(out: &mut String, (x, y): (f64, f64), class: &str, text: &str) {
    write_anchored(out, (x, y), class, "start", text);
}

pub(crate) fn write_anchored(
    out: &mut String,
    (x, y): (f64, f64),
    class: &str,
    anchor: &str,
    text: &str,
) {
    let text = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    let _ = writeln!(
        out,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
    );
}

/// Writes a rectangle with round corners.
pub(crate) fn write_rect(
    out: &mut String,
    class: &str,
    (x, y): (f64, f64),
    (width, height): (f64, f64),
    radius: f64,
) {
    let _ = writeln!(
        out,
        "<rect class=\"{class}\" x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" \
         height=\"{height:.2}\" rx=\"{radius}\"/>"
    );
}

/// Returns the smallest number that is at least `rough` and is 1, 2 or 5 times a power of ten.
pub(crate) fn tick_length(rough: f64) -> f64 {
    let power = 10_f64.powf(rough.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    let factor = factors.into_iter().find(|factor| factor * power >= rough);
    factor.unwrap_or(10.0) * power
}
