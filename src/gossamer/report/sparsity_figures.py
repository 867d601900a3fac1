"""Plots of the support and the weights: sparsity by layer, swaps, turnover, mean and std."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gossamer.report.plots import Drawn, Plot, histogram, table
from gossamer.report.reader import RunResult
from gossamer.report.style import (
    MOST_PANELS,
    MUTED,
    SERIES,
    TRACK,
    Array,
    label_panels,
    line,
    new_figure,
    panels,
    plain,
    thin,
)
from gossamer.report.training_figures import first_of_each_group

_MOST_BARS = 48
_MOST_LINES = 6

Layers = list[tuple[str, float, str]]


def _read_layers(run: RunResult) -> Layers | None:
    """Name, sparsity and a note of size of every layer."""
    found = run.curves.get("layers")
    if not isinstance(found, list):
        return None
    layers: Layers = []
    for layer in found:
        if isinstance(layer, dict) and isinstance(layer.get("sparsity"), (int, float)):
            nnz, shape = layer.get("nnz"), layer.get("shape")
            size = "×".join(map(str, shape)) if isinstance(shape, list) else ""
            kept = f"{nnz:,} of {size}" if isinstance(nnz, int) and size else ""
            layers.append((str(layer.get("name", len(layers))), float(layer["sparsity"]), kept))
    return layers or None


def _draw_layers(drawn: Drawn) -> Figure:
    chosen = first_of_each_group(drawn)
    names = list(dict.fromkeys(name for _, layers in chosen for name, _, _ in layers))
    bars = len(names) * len(chosen) <= _MOST_BARS
    row = max(0.3, 0.13 * len(chosen) + 0.12) if bars else 0.2
    figure = new_figure(11.4, 0.75 + row * len(names))
    ax = figure.subplots()
    rows = {name: place for place, name in enumerate(names)}
    thickness = 0.76 / len(chosen) if bars else 0.5
    for index, (series, layers) in enumerate(chosen):
        shift = (index - (len(chosen) - 1) / 2) * (thickness if bars else 0.5 / len(chosen))
        y = [rows[name] + shift for name, _, _ in layers]
        x = [sparsity for _, sparsity, _ in layers]
        if bars:
            ax.barh(y, 1, thickness * 0.9, color=TRACK, linewidth=0)
            ax.barh(y, x, thickness * 0.9, color=series.colour, linewidth=0)
            for place, (_, sparsity, kept) in zip(y, layers, strict=True):
                single = len(chosen) == 1
                text = f"{100 * sparsity:.4g} %" + (f" · {kept}" if single and kept else "")
                ax.text(1.01, place, text, color=MUTED, va="center", fontsize=8 if single else 7)
        else:
            ax.scatter(x, y, 22, color=series.colour, marker=series.marker, linewidth=0)
    ax.set_yticks(range(len(names)), [plain(name) for name in names])
    ax.set(ylim=(len(names) - 0.4, -0.6), xlabel="share of the weights removed")
    if bars:
        ax.set_xlim(0, 1)
        ax.grid(visible=False, axis="y")
    return figure


def _swaps(run: RunResult, name: str) -> tuple[Array, Array] | None:
    points = [
        (swap["step"], swap[name]) for swap in run.swaps if isinstance(swap.get(name), (int, float))
    ]
    if not points:
        return None
    x, y = np.array(points, dtype=np.float64).T
    return x, y


def _draw_fraction(drawn: Drawn) -> Figure:
    figure = new_figure(5.6, 3.3)
    ax = figure.subplots()
    for series, (step, fraction) in drawn:
        line(ax, series, step, fraction)
    ax.set(xlabel="optimiser step", ylabel="swap fraction")
    ax.set_ylim(bottom=0)
    return figure


def _turnover(run: RunResult) -> tuple[Array, dict[str, Array]] | None:
    """Steps [T] and, for each layer, added / nnz at those steps [T], NaN where not recorded."""
    names = list(dict.fromkeys(name for swap in run.swaps for name in table(swap, "layers")))
    if not names:
        return None
    steps = np.array([swap["step"] for swap in run.swaps], dtype=np.float64)
    shares = {
        name: np.array([_share(table(table(swap, "layers"), name)) for swap in run.swaps])
        for name in names
    }
    return steps, shares


def _total_turnover(run: RunResult) -> tuple[Array, Array] | None:
    """Steps [T] and added / nnz over all layers together [T]."""
    points = []
    for swap in run.swaps:
        layers = [layer for layer in table(swap, "layers").values() if _share(layer) >= 0]
        if layers:
            kept = sum(layer["nnz"] for layer in layers)
            points.append((swap["step"], sum(layer["added"] for layer in layers) / kept))
    if not points:
        return None
    x, y = np.array(points, dtype=np.float64).T
    return x, y


def _share(layer: object) -> float:
    added, nnz = (layer.get("added"), layer.get("nnz")) if isinstance(layer, dict) else (None, None)
    if isinstance(added, (int, float)) and isinstance(nnz, (int, float)) and nnz > 0:
        return added / nnz
    return math.nan


def _draw_total_turnover(drawn: Drawn) -> Figure:
    figure = new_figure(5.6, 3.3)
    ax = figure.subplots()
    for series, (step, share) in drawn:
        line(ax, series, step, share)
    ax.set(xlabel="optimiser step", ylabel="fresh weights / nnz")
    ax.set_ylim(bottom=0)
    return figure


def _draw_turnover(drawn: Drawn) -> Figure:
    heat = max(len(shares) for _, (_, shares) in drawn) > _MOST_LINES
    top = max(float(np.nanmax([*share, 0.0])) for _, (_, s) in drawn for share in s.values())
    figure, axes = panels(len(drawn), height=3.4 if heat else 2.5)
    image: Any = None
    for ax, (series, (steps, shares)) in zip(axes, drawn, strict=True):
        if heat:
            image = _heat(ax, steps, shares, top)
        else:
            for index, (name, share) in enumerate(shares.items()):
                x, y = thin(steps), thin(share)
                few = "o" if len(x) <= 30 else None
                ax.plot(x, y, color=SERIES[index], marker=few, markeredgewidth=0, label=plain(name))
            ax.legend(loc="upper right", title="layer", title_fontsize=8, ncols=2)
            ax.set_ylim(bottom=0)
        ax.set_title(plain(series.run.name) if len(drawn) > 1 else "")
    label_panels(axes, "optimiser step", "layer" if heat else "fresh weights / nnz")
    if heat:
        bar = figure.colorbar(image, ax=axes, label="fresh weights / nnz", aspect=30, pad=0.01)
        bar.outline.set_visible(False)
    return figure


def _heat(ax: Axes, steps: Array, shares: dict[str, Array], top: float) -> Any:
    half = (steps[1] - steps[0]) / 2 if len(steps) > 1 else 0.5
    ax.grid(visible=False)
    ticks = range(0, len(shares), max(1, len(shares) // 15))
    names = list(shares)
    ax.set_yticks(list(ticks), [plain(names[tick]) for tick in ticks])
    extent = (steps[0] - half, steps[-1] + half, len(shares) - 0.5, -0.5)
    # An image, not one rectangle a value: a deep network has tens of thousands of them.
    values = np.array([thin(share) for share in shares.values()])
    look: dict[str, Any] = {"cmap": "cividis", "vmin": 0, "vmax": top or 1}
    return ax.imshow(values, aspect="auto", interpolation="nearest", extent=extent, **look)


def _read_weights(name: str) -> Any:
    def read(run: RunResult) -> tuple[Array, Array] | None:
        return histogram(table(table(run.curves, "weights"), name))

    return read


def _draw_weights(drawn: Drawn, *, label: str, log: bool) -> Figure:
    figure = new_figure(5.6, 3.3)
    ax = figure.subplots()
    log = log and all(edges[0] > 0 for _, (edges, _) in drawn)
    for series, (edges, counts) in drawn:
        # Runs bin differently, so heights are densities: per unit, or per decade on a log axis.
        width = np.diff(np.log10(edges) if log else edges)
        density = counts / (counts.sum() * width)
        if len(drawn) == 1:
            ax.stairs(density, edges, fill=True, color=series.colour, alpha=0.22, linewidth=0)
        ax.stairs(density, edges, color=series.colour, linestyle=series.dash, linewidth=1.4)
    ax.set(xlabel=label, ylabel="share of weights per decade" if log else "density")
    if log:
        ax.set_xscale("log")
    ax.margins(x=0.01)
    ax.set_ylim(bottom=0)
    return figure


_NO_SWAPS = "Methods with a fixed support swap nothing."

PLOTS = (
    Plot(
        "layers",
        "Sparsity",
        "Sparsity by layer",
        "The coloured part of each bar is removed, the pale rest is kept; where bars would be too "
        "many, a dot marks the share removed. Small layers usually stay denser, because they cost "
        "little and carry much.",
        _read_layers,
        _draw_layers,
        wide=True,
    ),
    Plot(
        "swap-fraction",
        "Sparsity",
        "Swap fraction",
        "Share of the kept weights put up for exchange at each swap; it should fall to 0 before "
        "the end, so that the last epochs train a settled support.",
        lambda run: _swaps(run, "fraction"),
        _draw_fraction,
        absent=_NO_SWAPS,
    ),
    Plot(
        "turnover-total",
        "Sparsity",
        "Support turnover, whole network",
        "Share of the support that is fresh after each swap. Below the swap fraction: removed "
        "weights that win their place back at once are not counted.",
        _total_turnover,
        _draw_total_turnover,
        absent=_NO_SWAPS,
    ),
    Plot(
        "turnover",
        "Sparsity",
        "Support turnover by layer",
        "The same for each layer. A layer that keeps exchanging much more than the others has not "
        "found its support.",
        _turnover,
        _draw_turnover,
        wide=True,
        most=MOST_PANELS,
        own_colours=True,
        absent=_NO_SWAPS,
    ),
    Plot(
        "weight-mean",
        "Weights",
        "Means of the kept weights",
        "Removal takes the weights that matter least, mostly near 0: a hollow there, or a peak of "
        "fresh weights that still start from 0, is its mark.",
        _read_weights("mean_hist"),
        lambda drawn: _draw_weights(drawn, label="weight mean", log=False),
    ),
    Plot(
        "weight-std",
        "Weights",
        "Standard deviations of the kept weights",
        "Logarithmic axis. Left: weights the data have settled; right, at the prior's width: those "
        "the data say little about.",
        _read_weights("std_hist"),
        lambda drawn: _draw_weights(drawn, label="weight standard deviation", log=True),
        absent="Methods without a posterior over weights have no standard deviations.",
    ),
)
