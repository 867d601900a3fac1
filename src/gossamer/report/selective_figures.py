"""Plots of selective prediction: what is lost where the surest answers come first."""

from __future__ import annotations

from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gossamer.estimates import Estimate
from gossamer.report.plots import Drawn, Plot, columns, numbers, table
from gossamer.report.quantities import format_number
from gossamer.report.reader import RunResult
from gossamer.report.style import MUTED, Array, line, new_figure

_MOST_AREAS = 8
"""Groups whose areas are told in the figure; more would hide the curves."""


class _Curve(NamedTuple):
    """Risk at some coverages, and that of the best order of the same answers where it is known."""

    coverage: Array
    risk: Array
    best: Array | None


def _read(run: RunResult) -> _Curve | None:
    curve = table(run.curves, "selective")
    found = columns(curve, ("coverage", "risk"))
    if found is None:  # the first version wrote accuracies
        found = columns(curve, ("coverage", "accuracy"))
        if found is None:
            return None
        found[1] = 1 - found[1]
    coverage, risk = found
    return _Curve(coverage, risk, numbers(curve.get("best_risk"), len(coverage)))


def _draw(drawn: Drawn, risk: str) -> Figure:
    figure = new_figure(5.6, 4.6)
    ax = figure.subplots()
    for series, curve in drawn:
        line(ax, series, curve.coverage, curve.risk, marker=None)
    if len(drawn) == 1 and drawn[0][1].best is not None:
        _, curve = drawn[0]
        look: Any = {"color": MUTED, "linestyle": (0, (4, 3)), "linewidth": 1}
        ax.plot(curve.coverage, curve.best, label="the best order of these answers", **look)
    ax.set(xlabel="share of inputs answered", ylabel=f"{risk} on those", xlim=(0, 1.005))
    top = ax.get_ylim()[1]
    ax.set_ylim(-0.015 * top, top)
    _tell_areas(ax, drawn)
    return figure


def _tell_areas(ax: Axes, drawn: Drawn) -> None:
    """AURC of the only run, or of every group in its colour."""
    areas: dict[int, list[float]] = {}
    looks = {series.place: series for series, _ in drawn}
    for series, _ in drawn:
        area = series.run.metrics.get("aurc")
        if isinstance(area, (int, float)):
            areas.setdefault(series.place, []).append(float(area))
    title = None
    if len(drawn) == 1 and areas:
        excess = drawn[0][0].run.metrics.get("eaurc")
        (only,) = areas.values()
        title = f"AURC {format_number('aurc', only[0])}"
        if isinstance(excess, (int, float)):
            title += f", excess {format_number('eaurc', excess)}"
    elif len(areas) <= _MOST_AREAS:
        for place, found in areas.items():
            words = f"AURC {format_number('aurc', Estimate.of(found).mean)}"
            ax.plot([], [], color=looks[place].colour, linestyle=looks[place].dash, label=words)
    handles, labels = ax.get_legend_handles_labels()
    if title or handles:
        look: Any = {"loc": "best", "alignment": "left", "title_fontsize": 9}
        ax.legend(handles, labels, title=title, **look)


_CAPTION = (
    "{risk} if the model answers only the inputs it is surest of. A curve that falls to the left "
    "means its uncertainty finds its own mistakes; AURC is the area below it, its excess the part "
    "above the best order of the same answers."
)

PLOTS = (
    Plot(
        "selective",
        "Calibration",
        "Risk and coverage",
        _CAPTION.format(risk="Share of wrong answers"),
        _read,
        lambda drawn: _draw(drawn, "error rate"),
        task="classification",
    ),
    Plot(
        "selective-values",
        "Calibration",
        "Risk and coverage",
        _CAPTION.format(risk="Mean squared error"),
        _read,
        lambda drawn: _draw(drawn, "mean squared error"),
        task="regression",
    ),
)
