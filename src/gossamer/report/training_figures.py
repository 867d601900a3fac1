"""Plots over epochs: NLL, KL and its weight, accuracy or RMSE, calibration error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gossamer.report.plots import Drawn, Plot, table
from gossamer.report.reader import RunResult
from gossamer.report.style import MUTED, Array, Series, line, new_figure

_HALF = (5.6, 3.3)
_TRAIN: dict[str, Any] = {"linestyle": (0, (2, 1.5)), "linewidth": 1.1, "alpha": 0.75}
_KEYS = (("solid", "validation"), ("dashed", "training"))

Curve = tuple[Array, Array]


def _curve(run: RunResult, part: str, name: str) -> Curve | None:
    """Epochs [E] and values [E] of one recorded number; ``None`` if no epoch has it."""
    points = [
        (epoch["epoch"], value)
        for epoch in run.epochs
        if isinstance(value := table(epoch, part).get(name), (int, float))
    ]
    if not points:
        return None
    x, y = np.array(points, dtype=np.float64).T
    return x, y


def _parts(name: str, *parts: str) -> Callable[[RunResult], dict[str, Curve] | None]:
    def read(run: RunResult) -> dict[str, Curve] | None:
        curves = {part: _curve(run, part, name) for part in parts}
        found = {part: curve for part, curve in curves.items() if curve is not None}
        return found or None

    return read


def _read_kl(run: RunResult) -> dict[str, Curve] | None:
    kl, weight = _curve(run, "train", "kl"), _curve(run, "train", "kl_weight")
    if kl is None or not kl[1].any():  # methods without a posterior report 0
        return None
    return {"kl": kl} | ({"kl_weight": weight} if weight is not None else {})


def _draw_parts(drawn: Drawn, label: str) -> Figure:
    figure = new_figure(*_HALF)
    ax = figure.subplots()
    for series, curves in drawn:
        for part, (x, y) in curves.items():
            line(ax, series, x, y, **(_TRAIN if part == "train" else {}))
    _finish(ax, label)
    return figure


def _draw_nll(drawn: Drawn) -> Figure:
    figure = _draw_parts(drawn, "negative log-likelihood (nats)")
    _log_if_wide(figure.axes[0], [y for _, curves in drawn for _, y in curves.values()])
    return figure


def _draw_kl(drawn: Drawn) -> Figure:
    figure = new_figure(*_HALF)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    for series, curves in drawn:
        line(upper, series, *curves["kl"])
        if "kl_weight" in curves:
            line(lower, series, *curves["kl_weight"])
    _finish(upper, "KL (nats)")
    _finish(lower, "KL weight")
    _log_if_wide(upper, [curves["kl"][1] for _, curves in drawn])
    upper.set_xlabel("")
    lower.set_ylim(bottom=0)
    figure.align_ylabels()
    return figure


def _draw_ece(drawn: Drawn) -> Figure:
    figure = _draw_parts(drawn, "expected calibration error")
    figure.axes[0].set_ylim(bottom=0)
    return figure


def _log_if_wide(ax: Axes, values: list[Array]) -> None:
    """Takes a logarithmic axis where a linear one would flatten most of the curves."""
    low, high = (float(f([f(one) for one in values])) for f in (min, max))
    if low > 0 and high > 30 * low:
        ax.set_yscale("log")


def _finish(ax: Axes, label: str) -> None:
    ax.set_xlabel("epoch")
    ax.set_ylabel(label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.margins(x=0.02)


def diagonal(ax: Axes) -> None:
    """Draws the line on which a perfectly calibrated model would lie."""
    ax.plot([0, 1], [0, 1], color=MUTED, linestyle=(0, (4, 3)), linewidth=1, zorder=1)


def first_of_each_group(drawn: Drawn) -> Drawn:
    """The first run of every group, for what is the same in all its runs."""
    firsts: dict[int, tuple[Series, Any]] = {}
    for series, value in drawn:
        firsts.setdefault(series.place, (series, value))
    return list(firsts.values())


PLOTS = (
    Plot(
        "nll",
        "Training",
        "Negative log-likelihood",
        "Lower is better. Training far below validation means the model learns its examples by "
        "heart; a validation curve that rises again means it grows over-confident.",
        _parts("nll", "val", "train"),
        _draw_nll,
        keys=_KEYS,
    ),
    Plot(
        "kl",
        "Training",
        "KL divergence and its weight",
        "How far the weights' posterior has moved from the prior, summed over all weights, and the "
        "share of it that the loss counts; a rising weight is the warm-up.",
        _read_kl,
        _draw_kl,
        absent="Methods without a posterior over weights have no KL.",
    ),
    Plot(
        "accuracy",
        "Training",
        "Accuracy",
        "Share of right answers, higher is better. The gap between the two lines is the "
        "generalisation gap.",
        _parts("accuracy", "val", "train"),
        lambda drawn: _draw_parts(drawn, "accuracy"),
        task="classification",
        keys=_KEYS,
    ),
    Plot(
        "rmse",
        "Training",
        "Root mean squared error",
        "Typical size of the error on the validation split, lower is better. A curve still falling "
        "at the end asks for more epochs.",
        _parts("rmse", "val"),
        lambda drawn: _draw_parts(drawn, "RMSE"),
        task="regression",
    ),
    Plot(
        "ece",
        "Training",
        "Calibration error",
        "Mean gap between confidence and accuracy on the validation split; 0 is perfect, 0.1 means "
        "that confidences are off by ten points.",
        _parts("ece", "val"),
        _draw_ece,
        task="classification",
    ),
)
