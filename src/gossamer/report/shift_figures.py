"""Plots over severities: how quality, likelihood and honesty change as inputs are corrupted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gossamer.report.keys import numeric, shift_values
from gossamer.report.plots import Drawn, Plot
from gossamer.report.quantities import quantity
from gossamer.report.reader import RunResult
from gossamer.report.style import line, new_figure, plain

Lines = dict[str, dict[str, dict[int, float]]]
"""By metric and corruption: values by severity."""


def _reader(*metrics: str) -> Callable[[RunResult], Lines | None]:
    def read(run: RunResult) -> Lines | None:
        found = shift_values(numeric(run.metrics))
        return {metric: found[metric] for metric in metrics if metric in found} or None

    return read


def _draw(drawn: Drawn) -> Figure:
    """A row of panels for every metric and a column for every corruption; of one, a single row."""
    metrics = list(dict.fromkeys(metric for _, lines in drawn for metric in lines))
    names = list(
        dict.fromkeys(name for _, lines in drawn for found in lines.values() for name in found)
    )
    shape = (1, len(metrics)) if len(names) == 1 else (len(metrics), len(names))
    figure = new_figure(11.4, 0.5 + 2.2 * shape[0])
    share: Literal["none", "row"] = "none" if len(names) == 1 else "row"
    axes = figure.subplots(*shape, sharex=True, sharey=share, squeeze=False)
    panels = {
        (metric, name): axes.ravel()[row * len(names) + column]
        for row, metric in enumerate(metrics)
        for column, name in enumerate(names)
    }
    for series, lines in drawn:
        for metric, found in lines.items():
            for name, values in found.items():
                x = np.array(sorted(values), dtype=np.float64)
                y = np.array([values[int(severity)] for severity in x], dtype=np.float64)
                line(panels[metric, name], series, x, y)
    for (metric, name), ax in panels.items():
        _finish(ax, metric, labelled=name == names[0])
        if len(names) == 1 or metric == metrics[0]:
            ax.set_title(plain(name))
        if len(names) == 1 or metric == metrics[-1]:
            ax.set_xlabel("severity")
    figure.align_ylabels()
    return figure


def _finish(ax: Axes, metric: str, *, labelled: bool) -> None:
    if labelled:
        known = quantity(metric)
        ax.set_ylabel(f"{known.label} {known.arrow}".strip())
    ax.set_xticks(range(6), ["clean", "1", "2", "3", "4", "5"])
    if metric in ("accuracy", "coverage"):
        ax.set_ylim(-0.03, 1.03)


_CAPTION = (
    "{figures} on the test inputs as they are, and corrupted ever more. All models get worse; an "
    "honest one knows it{honest}."
)

PLOTS = (
    Plot(
        "shift",
        "Shift",
        "Under corruption",
        _CAPTION.format(
            figures="Accuracy, NLL and calibration error",
            honest=", so that its NLL grows slowly and its calibration error stays small",
        ),
        _reader("accuracy", "nll", "ece"),
        _draw,
        task="classification",
        wide=True,
        optional=True,
    ),
    Plot(
        "shift-values",
        "Shift",
        "Under corruption",
        _CAPTION.format(
            figures="Error, NLL and the share of targets inside a 90 % interval",
            honest=": its intervals grow with its error, and coverage stays near 90 %",
        ),
        _reader("rmse", "nll", "coverage"),
        _draw,
        task="regression",
        wide=True,
        optional=True,
    ),
)
