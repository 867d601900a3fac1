"""Plots of honesty: reliability, intervals, entropy."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from gossamer.report.plots import Drawn, Plot, columns, histogram, numbers, table
from gossamer.report.reader import RunResult
from gossamer.report.style import (
    MOST_PANELS,
    SERIES,
    Array,
    Series,
    label_panels,
    line,
    new_figure,
    panels,
    plain,
)
from gossamer.report.training_figures import diagonal

_RIGHT, _WRONG, _OOD = SERIES[0], SERIES[1], SERIES[3]
_ENTROPY = (("right", _RIGHT), ("wrong", _WRONG), ("ood", _OOD))

_SOLID_SHARE = 0.01
_SOLID_COUNT = 10

Reliability = tuple[Array, Array, Array, Array]


def _read_reliability(run: RunResult) -> Reliability | None:
    """Edges [M + 1], confidence [M], accuracy [M] and count [M]; empty bins are NaN."""
    curve = table(run.curves, "reliability")
    edges = numbers(curve.get("edges"))
    found = columns(curve, ("confidence", "accuracy", "count"))
    if edges is None or found is None or len(edges) != len(found[0]) + 1:
        return None
    confidence, accuracy, count = found
    empty = ~(count > 0)
    if empty.all():
        return None
    return edges, np.where(empty, np.nan, confidence), np.where(empty, np.nan, accuracy), count


def _draw_reliability(drawn: Drawn) -> Figure:
    figure = new_figure(5.6, 4.6)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    diagonal(upper)
    for series, (edges, confidence, accuracy, count) in drawn:
        share = count / count.sum()
        if len(drawn) == 1:
            _reliability_bars(upper, series, edges, confidence, accuracy, count)
        else:
            _reliability_line(upper, series, confidence, accuracy, count)
        lower.stairs(share, edges, color=series.colour, fill=len(drawn) == 1, linewidth=1.2)
    upper.set(ylabel="accuracy", xlim=(0, 1.01), ylim=(-0.015, 1.015))
    lower.set(xlabel="confidence", ylabel="share")
    figure.align_ylabels()
    return figure


def _solid(count: Array) -> NDArray[np.bool_]:
    """Which bins hold enough answers to mean something."""
    enough = max(_SOLID_SHARE * float(count.sum()), _SOLID_COUNT)
    return np.greater_equal(count, enough)


def _reliability_line(
    ax: Axes, series: Series, confidence: Array, accuracy: Array, count: Array
) -> None:
    # A bin of a few answers is noise: it is shown, but it does not bend the line.
    solid = _solid(count)
    loose = (count > 0) & ~solid
    line(ax, series, confidence[solid], accuracy[solid])
    look: dict[str, Any] = {"color": series.colour, "marker": series.marker, "linewidth": 0}
    ax.scatter(confidence[loose], accuracy[loose], 7, alpha=0.5, **look)


def _reliability_bars(
    ax: Axes, series: Series, edges: Array, confidence: Array, accuracy: Array, count: Array
) -> None:
    full = count > 0
    left, width = edges[:-1][full], np.diff(edges)[full] * 0.94
    said, was = confidence[full], accuracy[full]
    pale = np.where(_solid(count)[full], 1.0, 0.35)
    parts = (
        (np.zeros_like(was), np.minimum(said, was), series.colour, 1.0, None),
        (was, np.maximum(said - was, 0), _WRONG, 0.5, "over-confident by"),
        (said, np.maximum(was - said, 0), SERIES[5], 0.8, "under-confident by"),
    )
    for bottom, height, colour, alpha, words in parts:
        colours = [(colour, alpha * one) for one in pale]
        ax.bar(left, height, width, bottom, align="edge", color=colours, linewidth=0)
        if words:
            ax.bar(0, 0, color=colour, alpha=alpha, label=words)
    ece = series.run.metrics.get("ece")
    title = f"ECE {ece:.4f}" if isinstance(ece, (int, float)) else None
    ax.legend(loc="upper left", title=title, alignment="left", title_fontsize=9)


def _read_intervals(run: RunResult) -> list[Array] | None:
    return columns(table(run.curves, "intervals"), ("nominal", "observed"))


def _draw_intervals(drawn: Drawn) -> Figure:
    figure = new_figure(5.6, 4.2)
    ax = figure.subplots()
    diagonal(ax)
    for series, (nominal, observed) in drawn:
        line(ax, series, nominal, observed)
    ax.set(xlabel="nominal coverage", ylabel="observed coverage", xlim=(0, 1), ylim=(0, 1))
    return figure


def _read_entropy(run: RunResult) -> dict[str, tuple[Array, Array]] | None:
    curve = table(run.curves, "entropy")
    found = {name: histogram(curve, name) for name, _ in _ENTROPY}
    return {name: value for name, value in found.items() if value is not None} or None


def _draw_entropy(drawn: Drawn) -> Figure:
    figure, axes = panels(len(drawn))
    for ax, (series, found) in zip(axes, drawn, strict=True):
        for name, colour in _ENTROPY:
            if name in found:
                edges, counts = found[name]
                density = counts / (counts.sum() * np.diff(edges))
                ax.stairs(density, edges, fill=True, color=colour, alpha=0.22, linewidth=0)
                words = f"{name if name != 'ood' else 'OOD'} ({counts.sum():,.0f})"
                ax.stairs(density, edges, color=colour, linewidth=1.5, label=words)
        ax.set_title(plain(series.run.name) if len(drawn) > 1 else "")
        ax.legend(loc="upper right")
        ax.margins(x=0)
    label_panels(axes, "entropy (nats)", "density")
    return figure


CALIBRATION = (
    Plot(
        "reliability",
        "Calibration",
        "Reliability diagram",
        "On the dashed line, answers given with 80 % confidence are right 80 % of the time. Below "
        "it the model is over-confident, above it under-confident. The strip below shows the share "
        "of answers in each bin; bins with under 1 % of them, or under 10, are noise: drawn pale.",
        _read_reliability,
        _draw_reliability,
        task="classification",
    ),
    Plot(
        "intervals",
        "Calibration",
        "Interval coverage",
        "On the dashed line a 90 % interval holds 90 % of the targets. Below it the intervals are "
        "too narrow (over-confident), above it too wide.",
        _read_intervals,
        _draw_intervals,
        task="regression",
    ),
)

UNCERTAINTY = (
    Plot(
        "entropy",
        "Uncertainty",
        "Entropy of right, wrong and out-of-distribution answers",
        "Each histogram has area 1; in brackets the number of inputs. Right answers belong at low "
        "entropy on the left, mistakes and foreign inputs on the right.",
        _read_entropy,
        _draw_entropy,
        task="classification",
        wide=True,
        most=MOST_PANELS,
        own_colours=True,
    ),
)
