"""The front of ``gossamer/uncertainty``: NLL against training time and against bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from gossamer.report.style import INK, MUTED, SERIES, new_figure

AXES = (("cost", "training time, RigL = 1"), ("bytes", "bytes of parameters and state"))

_TIMES = (1, 2, 3, 5, 10, 20)


def draw_front(problems: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """A row of two panels per problem; what lies lower and further left is better.

    Args:
        problems: By label, points: ``name``, ``nll``, ``error`` (or ``None``), ``cost``, ``bytes``,
            ``ours``.
    """
    figure = new_figure(11.4, 3.6 * len(problems))
    grid = figure.subplots(len(problems), 2, squeeze=False)
    for row, (label, points) in zip(grid, problems.items(), strict=True):
        for ax, (key, words) in zip(row, AXES, strict=True):
            _panel(ax, points, key)
            ax.set_xlabel(words)
        row[0].xaxis.set_major_locator(FixedLocator(_TIMES))
        row[0].xaxis.set_minor_locator(NullLocator())
        row[0].xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        row[0].set_title(label)
        row[0].set_ylabel("NLL of test points")
    return figure


def _panel(ax: Axes, points: Sequence[Mapping[str, Any]], key: str) -> None:
    ax.set_xscale("log")
    shown = [point for point in points if point[key] == point[key]]  # NaN: nobody timed it
    for point in shown:
        colour = SERIES[0] if point["ours"] else SERIES[1]
        marker = "D" if point["ours"] else "o"
        ax.errorbar(
            point[key],
            point["nll"],
            yerr=point["error"],
            color=colour,
            marker=marker,
            markersize=5,
            linewidth=1,
        )
        ax.annotate(
            point["name"],
            (point[key], point["nll"]),
            xytext=(5, 4),
            textcoords="offset points",
            fontsize=7.5,
            color=INK if point["ours"] else MUTED,
        )
    front = _front(shown, key)
    ax.plot([p[key] for p in front], [p["nll"] for p in front], color=MUTED, linewidth=0.8)


def _front(points: Sequence[Mapping[str, Any]], key: str) -> list[Mapping[str, Any]]:
    """Those that nobody cheaper beats."""
    found: list[Mapping[str, Any]] = []
    for point in sorted(points, key=lambda p: (p[key], p["nll"])):
        if not found or point["nll"] < found[-1]["nll"]:
            found.append(point)
    return found
