"""Figures 1 and 2 of cvadam2023, from the values that ``cvadam2023/paths`` wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gossamer.report.style import MUTED, SERIES, label_panels, new_figure, panels

_PER_KIND = 3


def draw_channels(paths: Mapping[str, Any]) -> Figure:
    """Fig. 1: the paths of some weights, a panel per input channel.

    Args:
        paths: ``epoch`` [T], and ``channels``: tables with ``channel``, ``kept`` (whether it is
            there at the end) and ``weights`` [W][T].
    """
    chosen = choose_channels(paths["channels"])
    figure, axes = panels(len(chosen), height=2.0)
    for ax, channel in zip(axes, chosen, strict=True):
        colour = SERIES[0] if channel["kept"] else SERIES[1]
        for weights in channel["weights"]:
            ax.plot(paths["epoch"], weights, color=colour, linewidth=0.7, alpha=0.7)
        ax.set_title(f"channel {channel['channel']}: {'kept' if channel['kept'] else 'pruned'}")
    _whole_epochs(axes)
    label_panels(axes, "epoch", "weight")
    return figure


def choose_channels(channels: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The first three that were pruned, then the first three that stayed."""
    found: list[Mapping[str, Any]] = []
    for kept in (False, True):
        found += [channel for channel in channels if channel["kept"] is kept][:_PER_KIND]
    return found


def draw_sparsity(runs: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Fig. 2: validation accuracy, and soft and hard sparsity, over training.

    Args:
        runs: By label: ``epoch``, ``accuracy``, ``soft_sparsity``, ``hard_sparsity``, each [E].
    """
    figure = new_figure(11.4, 3.3)
    left, right = figure.subplots(1, 2)
    for place, (label, run) in enumerate(runs.items()):
        look = {"color": SERIES[place], "marker": "os"[place % 2], "markeredgewidth": 0}
        left.plot(run["epoch"], run["accuracy"], label=label, **look)
        right.plot(run["epoch"], run["hard_sparsity"], label=f"{label}, hard", **look)
        dashed = {**look, "linestyle": (0, (4, 2)), "markersize": 2.4}
        right.plot(run["epoch"], run["soft_sparsity"], label=f"{label}, soft", **dashed)
    # The untrained network would squeeze all others into the top of the panel.
    trained = np.concatenate([np.asarray(run["accuracy"][1:]) for run in runs.values()])
    if trained.size:
        left.set_ylim(bottom=max(0.0, float(trained.min()) - 0.03))
    left.set_ylabel("validation accuracy")
    right.set_ylabel("share of the weights")
    right.set_ylim(-0.03, 1.03)
    for ax in (left, right):
        ax.set_xlabel("epoch")
        ax.legend(loc="lower right", labelcolor=MUTED)
    _whole_epochs([left, right])
    return figure


def _whole_epochs(axes: Sequence[Axes]) -> None:
    for ax in axes:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.margins(x=0.02)
