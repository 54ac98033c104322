//! Determines whether times grow linearly or logarithmically with the number of ranks.

/// A straight line, fitted to points by least squares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Line {
    /// Increase of y per unit of x.
    pub(crate) slope: f64,
    /// The coefficient of determination R²: 1 if all points are on the line.
    pub(crate) fit: f64,
}

/// Fits one line to the times against the number of ranks, and another against the binary logarithm
/// of the number of ranks. Each of `points` is a number of ranks and a time.
pub(crate) fn growth(points: &[(f64, f64)]) -> [Line; 2] {
    let logarithmic: Vec<_> = points.iter().map(|(x, y)| (x.log2(), *y)).collect();
    [line(points), line(&logarithmic)]
}

/// Describes how `points`, which are pairs of ranks and milliseconds, grow, according to the better
/// fit.
pub(crate) fn describe(points: &[(f64, f64)]) -> String {
    let [linear, logarithmic] = growth(points);
    let (line, per) = match linear.fit > logarithmic.fit {
        true => (linear, "per rank"),
        false => (logarithmic, "per doubling"),
    };
    format!(
        "{:+.1} ms {per} (R² over n {:.3}, over log₂ n {:.3})",
        line.slope, linear.fit, logarithmic.fit
    )
}

fn line(points: &[(f64, f64)]) -> Line {
    let count = points.len().max(1) as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (mean_x, mean_y) = (mean(|point| point.0), mean(|point| point.1));
    let (mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0);
    for (x, y) in points {
        xx += (x - mean_x) * (x - mean_x);
        xy += (x - mean_x) * (y - mean_y);
        yy += (y - mean_y) * (y - mean_y);
    }
    let slope = if xx > 0.0 { xy / xx } else { 0.0 };
    let fit = if yy > 0.0 { slope * xy / yy } else { 1.0 };
    Line { slope, fit }
}
