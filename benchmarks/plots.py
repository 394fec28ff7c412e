"""Plots of figures, as SVG. The same figures give the same bytes, so a plot in the tree changes only with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "minflinkd",  # otherwise the ids in the file are random
    "svg.fonttype": "none",  # text stays text
    "font.size": 10,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.alpha": 0.3,
}
_FEW = 6  # up to so many x values, each gets its own tick


def line_plot(
    path: Path,
    title: str,
    x_label: str,
    y_label: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    log_y: bool = False,
    limit: float | None = None,
) -> None:
    """Plot one line per series through its points (x, y), and the target `limit` as a dashed horizontal line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.add_subplot(title=title, xlabel=x_label, ylabel=y_label)
        for name, points in series.items():
            xs, ys = zip(*sorted(points), strict=True)
            axes.plot(xs, ys, marker="o" if len(points) <= _FEW else "", label=name)
        if limit is not None:
            axes.axhline(limit, color="black", linestyle="--", linewidth=1, label=f"aim: {limit:g}")
        if log_y:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        else:
            axes.set_ylim(bottom=0)
        at = sorted({x for points in series.values() for x, _ in points})
        if len(at) <= _FEW:
            axes.xaxis.set_major_locator(FixedLocator(at))
            axes.xaxis.set_minor_locator(NullLocator())
        axes.legend()
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
