"""Which columns a screening found, from the JSON values of a ``Selection``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from gossamer.report.style import INK, MUTED, SERIES, new_figure, plain

_MOST_NAMES = 20


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
