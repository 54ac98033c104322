#!/usr/bin/env python3
"""Compares predicted with measured times, from the points that `choice.py --points` recorded.

`predicted.py POINTS.csv [PICTURE.svg]`

For each network and number of ranks, prints how many predictions are within 15 % of the measured
median, and the three worst predictions. Draws all points into PICTURE.svg.
"""

import csv
import math
import sys

NEAR = 1.15
COLORS = ("#1b6ca8", "#c8553d", "#2e8b57", "#8e5ea2", "#b8860b", "#555555")
SIDE, MARGIN = 520, 64


def points(path):
    """Yields the points in a file, with their times converted to numbers."""
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            row["us"], row["predicted_us"] = float(row["us"]), float(row["predicted_us"])
            yield row


def error(row):
    """Returns the factor between prediction and measurement, at least 1."""
    return max(row["us"] / row["predicted_us"], row["predicted_us"] / row["us"])


def summary(group, rows):
    """Prints two lines about the points of one group."""
    near = sum(error(row) <= NEAR for row in rows)
    print(f"{group}: {near} of {len(rows)} within 15 %")
    worst = sorted(rows, key=error, reverse=True)[:3]
    said = [
        f"{row['op']} {row['bytes']} {row['algorithm']} {row['us']:.0f} us,"
        f" predicted {row['predicted_us']:.0f}"
        for row in worst
    ]
    print("  worst: " + "; ".join(said))


def picture(groups):
    """Returns an SVG that plots predicted against measured times on logarithmic axes."""
    times = [row[name] for rows in groups.values() for row in rows for name in ("us", "predicted_us")]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))

    def at(time_us):
        return (math.log10(time_us) - low) / (high - low) * SIDE

    def x(time_us):
        return MARGIN + at(time_us)

    def y(time_us):
        return MARGIN + SIDE - at(time_us)

    size = SIDE + 2 * MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size}" height="{size + 24 * len(groups)}"'
        ' font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for power in range(low, high + 1):
        tick = 10.0**power
        label = f"{tick / 1e6:g} s" if power >= 6 else f"{tick / 1e3:g} ms" if power >= 3 else f"{tick:g} us"
        out.append(f'<path d="M{x(tick):.1f} {MARGIN}v{SIDE}M{MARGIN} {y(tick):.1f}h{SIDE}" stroke="#ddd"/>')
        out.append(f'<text x="{x(tick):.1f}" y="{MARGIN + SIDE + 18}" text-anchor="middle">{label}</text>')
        out.append(f'<text x="{MARGIN - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{label}</text>')
    first, last = 10.0**low, 10.0**high
    for factor, dash in ((1 / NEAR, "4 3"), (1.0, "none"), (NEAR, "4 3")):
        ends = (x(first), y(first * factor), x(last), y(last * factor))
        out.append(
            '<path d="M{:.1f} {:.1f}L{:.1f} {:.1f}" stroke="#888"'.format(*ends)
            + f' stroke-dasharray="{dash}" clip-path="inset(0)"/>'
        )
    for (name, rows), color in zip(groups.items(), COLORS):
        for row in rows:
            told = f"{row['op']} {row['bytes']} {row['algorithm']}"
            out.append(
                f'<circle cx="{x(row["predicted_us"]):.1f}" cy="{y(row["us"]):.1f}" r="3.2"'
                f' fill="{color}" fill-opacity="0.65"><title>{told}</title></circle>'
            )
        line = size + 24 * list(groups).index(name)
        out.append(f'<circle cx="{MARGIN}" cy="{line - 4}" r="5" fill="{color}"/>')
        out.append(f'<text x="{MARGIN + 12}" y="{line}">{name}</text>')
    middle = MARGIN + SIDE / 2
    out.append(f'<text x="{middle}" y="{MARGIN - 24}" text-anchor="middle">'
               "measured (vertical) against predicted (horizontal); dashed: 15 % off</text>")
    return "\n".join(out + ["</svg>\n"])


def main():
    """Parses the arguments, prints the summaries, and draws the picture."""
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    groups = {}
    for row in points(sys.argv[1]):
        groups.setdefault(f"{row['network']}, {row['ranks']} ranks", []).append(row)
    for group, rows in groups.items():
        summary(group, rows)
    if len(sys.argv) == 3:
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            file.write(picture(groups))


if __name__ == "__main__":
    main()
