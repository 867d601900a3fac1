"""Which columns of a table count: by a trained network, and by the screening of a wide table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from gossamer.report.plots import Drawn, Plot, numbers, table
from gossamer.report.reader import RunResult
from gossamer.report.style import INK, MUTED, SERIES, Array, new_figure, plain

_MOST_NAMES = 20
_MOST_BARS = 30


def draw_inclusion(selection: Mapping[str, Any], names: Sequence[str] | None = None) -> Figure:
    """Inclusion by column: a stem per column, the chosen ones in colour and by name.

    Args:
        selection: What ``Selection.to_json`` gave: ``inclusion`` [p], ``columns``, ``level`` and
            ``by``.
        names: Of the columns [p]; their numbers by default.
    """
    inclusion = np.asarray(selection["inclusion"], dtype=np.float64)
    chosen = np.asarray(selection["columns"], dtype=np.int64)
    figure = new_figure(11.4, 3.0)
    ax = figure.subplots()
    rest = np.setdiff1d(np.arange(len(inclusion)), chosen)
    ax.vlines(rest, 0.0, inclusion[rest], color=MUTED, linewidth=0.8)
    ax.vlines(chosen, 0.0, inclusion[chosen], color=SERIES[0], linewidth=1.4)
    ax.scatter(chosen, inclusion[chosen], 18, color=SERIES[0], linewidth=0, zorder=3)
    for place in chosen[np.argsort(-inclusion[chosen], kind="stable")][:_MOST_NAMES]:
        label = str(place) if names is None else plain(names[place])
        ax.annotate(
            label,
            (place, inclusion[place]),
            (0, 4),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=INK,
        )
    of = "posterior inclusion" if selection["by"] == "spike_slab" else "share of knockoff draws"
    ax.set(xlabel="column", ylabel=of, ylim=(0.0, 1.12), xlim=(-0.01 * len(inclusion) - 1, None))
    ax.set_title(
        f"{len(chosen)} of {len(inclusion)} columns at a false discovery rate of "
        f"{selection['level']:g}"
    )
    return figure


def draw_importances(names: Sequence[str], shares: Array) -> Figure:
    """A bar per column, the largest share first; the last one is of all that have no room.

    Args:
        names: Of the columns [p].
        shares: Their shares [p].
    """
    order = np.argsort(-shares, kind="stable")
    shown = order if len(order) <= _MOST_BARS else order[: _MOST_BARS - 1]
    values, labels = shares[shown].tolist(), [plain(names[place]) for place in shown]
    if len(shown) < len(order):
        rest = order[len(shown) :]
        values.append(float(shares[rest].sum()))
        labels.append(f"the {len(rest):,} others together")
    figure = new_figure(11.4, 0.75 + 0.26 * len(values))
    ax = figure.subplots()
    places = np.arange(len(values))
    ax.barh(places, values, 0.7, color=SERIES[0], linewidth=0)
    for place, value in zip(places, values, strict=True):
        ax.annotate(
            f"{100 * value:.1f} %",
            (value, place),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=MUTED,
        )
    ax.set_yticks(places, labels)
    ax.set(ylim=(len(values) - 0.4, -0.6), xlim=(0.0, None), xlabel="share of the path weights")
    ax.grid(visible=False, axis="y")
    return figure


def _read_inclusion(run: RunResult) -> Mapping[str, Any] | None:
    """A selection whose values fit each other."""
    found = run.selection
    inclusion, chosen = numbers(found.get("inclusion")), found.get("columns")
    if inclusion is None or not isinstance(chosen, list) or not {"level", "by"} <= set(found):
        return None
    fits = all(isinstance(place, int) and 0 <= place < len(inclusion) for place in chosen)
    return found if fits else None


def _draw_inclusion(drawn: Drawn) -> Figure:
    ((_, found),) = drawn
    names = found.get("names")
    fits = isinstance(names, list) and len(names) == len(found["inclusion"])
    return draw_inclusion(found, list(map(str, names)) if fits else None)


def _read_importances(run: RunResult) -> tuple[list[str], Array] | None:
    found = table(run.curves, "importances")
    shares, names = numbers(found.get("shares")), found.get("names")
    if shares is None or not isinstance(names, list) or len(names) != len(shares):
        return None
    return list(map(str, names)), np.nan_to_num(shares)


def _draw_importances(drawn: Drawn) -> Figure:
    ((_, (names, shares)),) = drawn
    return draw_importances(names, shares)


PLOTS = (
    Plot(
        "importances",
        "Columns",
        "Importance of the columns",
        "Share of each column in the absolute weights along all paths from the columns to the "
        "outputs. A ranking of what the networks use, not a test: columns that say the same share "
        "what they are worth.",
        _read_importances,
        _draw_importances,
        wide=True,
        most=1,
        optional=True,
    ),
    Plot(
        "inclusion",
        "Columns",
        "Columns that matter",
        "The table is wide, so its columns were screened before training, on training rows alone. "
        "The height is how sure it is that a column has an effect of its own on the target; "
        "coloured ones were found to matter. Effects of columns only together are not seen.",
        _read_inclusion,
        _draw_inclusion,
        wide=True,
        most=1,
        optional=True,
    ),
)
