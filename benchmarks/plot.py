"""Draw the figures that a benchmark wrote with `--json`: no GPU is needed.

    python benchmarks/plot.py RESULT.json PICTURE.svg

Each script draws its own; here is what their pictures share. Colours are those of Okabe and Ito,
which the colour-blind can tell apart.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from report import versions_line

BENCHMARKS = ("adopted", "choice", "cold_start", "command_line", "examples", "launch", "regret",
              "repeat", "tuning")  # fmt: skip

BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#6E6E6E"
COLOURS = (BLUE, ORANGE, GREEN, PINK, GREY)

STYLE: dict[Any, Any] = {
    "font.size": 11, "axes.titlesize": 12, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "axes.axisbelow": True, "grid.color": "#DDDDDD", "legend.frameon": False,
    "savefig.facecolor": "white", "savefig.dpi": 160,
    "svg.hashsalt": "shipconf",  # the same figures make the same file
}  # fmt: skip


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Draw a file of figures, by the script that measured them."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 3.6), layout="constrained")
        import_module(document["benchmark"]).draw(figure, document["results"])
        caption = f"{versions_line(document)}; {document['date']}"
        if document.get("commit"):
            caption += f"; commit {document['commit']}"
        figure.supxlabel(caption, x=0.99, ha="right", size=8, color=GREY)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def bars(
    axes: Axes, groups: Sequence[str], series: Mapping[str, Sequence[float | None]], text: str,
    colours: Sequence[str] = COLOURS,
) -> None:  # fmt: skip
    """Horizontal bars, the first group on top, each with its value as `text` formats it."""
    height = 0.8 / len(series)
    for number, (name, values) in enumerate(series.items()):
        known = [(i, value) for i, value in enumerate(values) if value is not None]
        drawn = axes.barh(
            [i + (number - (len(series) - 1) / 2) * height for i, _ in known],
            [value for _, value in known], height * 0.92, label=name,
            color=colours[number % len(colours)],
        )  # fmt: skip
        axes.bar_label(drawn, [text.format(value) for _, value in known], padding=3, size=9)
    axes.set_yticks(range(len(groups)), groups)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.12)


def legend_above(figure: Figure, axes: Axes) -> None:
    """One legend for all panels, with the series of this one in their order."""
    handles, names = axes.get_legend_handles_labels()
    columns = 2 if len(names) > 3 else len(names)
    figure.legend(handles, names, loc="outside upper center", ncols=columns)


def sizes_axis(axes: Axes, name: str) -> None:
    """A logarithmic axis of sizes, with ticks at powers of four: 1, 4, 16, …"""
    axes.set_xscale("log", base=4)
    plain_numbers(axes)
    axes.set_xlabel(name)


def plain_numbers(axes: Axes) -> None:
    """Say 0.1, 1, 10 along a logarithmic axis, and nothing between them."""
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("result", type=Path, help="what a benchmark wrote with --json")
    parser.add_argument("picture", type=Path, help="the .svg or .png to write")
    options = parser.parse_args()
    document = json.loads(options.result.read_text(encoding="utf-8"))
    if document.get("benchmark") not in BENCHMARKS:
        parser.error(f"{options.result} is of none of {', '.join(BENCHMARKS)}")
    draw(document, options.picture)


if __name__ == "__main__":
    main()
