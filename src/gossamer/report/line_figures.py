"""Lines of a table as points with errors: a panel per metric, one below the other in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gossamer.report.quantities import quantity
from gossamer.report.style import SERIES, new_figure

Point = tuple[float, float | None]
"""Mean and standard error; ``None`` of a single run."""


def draw_lines(lines: Mapping[str, Mapping[str, Point]], metrics: Sequence[str]) -> Figure:
    """A row of panels that share their lines.

    Args:
        lines: By label, in order from the top: points by metric; one may lack some.
        metrics: A panel for each; bytes, counts and seconds on a logarithmic axis.

    Example:
        >>> draw_lines({"ours": {"nll": (0.05, 0.003)}, "theirs": {"nll": (0.06, None)}}, ["nll"])
        <Figure size 1140x155 with 1 Axes>
    """
    figure = new_figure(11.4, 0.95 + 0.3 * len(lines))
    grid = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    for ax, metric in zip(grid, metrics, strict=True):
        _panel(ax, list(lines.values()), metric)
    grid[0].set_yticks(range(len(lines)), list(lines))
    grid[0].set_ylim(len(lines) - 0.5, -0.5)
    return figure


def _panel(ax: Axes, lines: Sequence[Mapping[str, Point]], metric: str) -> None:
    shown = quantity(metric)
    if shown.form in ("bytes", "count", "seconds"):
        ax.set_xscale("log")
    for place, line in enumerate(lines):
        if metric not in line:
            continue
        mean, error = line[metric]
        ax.errorbar(
            mean, place, xerr=error, color=SERIES[place % len(SERIES)], marker="o", capsize=3
        )
    unit = {"bytes": ", bytes", "seconds": ", s"}.get(shown.form, "")
    ax.set_xlabel(f"{shown.label}{unit} {shown.arrow}".strip())
    ax.tick_params(axis="y", length=0)
