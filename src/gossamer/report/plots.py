"""What a plot of the report is: where its values come from, how it is drawn, how to read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from gossamer.report.reader import RunResult
from gossamer.report.style import Array, Series

Drawn = list[tuple[Series, Any]]


@dataclass(frozen=True)
class Plot:
    """One plot of the report; a new one is such a row and its two functions.

    Attributes:
        key: Its anchor in the page.
        section: The heading it stands under.
        title: Its own heading.
        caption: How to read it.
        read: A run's values for it, or ``None`` where the run did not record them.
        draw: The figure of all runs that have values.
        task: The task it belongs to; ``None`` for both.
        wide: Whether it takes the page's full width.
        most: How many runs it can show; ``None`` for all.
        own_colours: Whether its colours mean something else than the runs.
        keys: Line styles to explain beside the runs' colours: (pattern, words).
        absent: Why a run may well lack it.
        optional: Whether it is left out where no run has it, because few will.
    """

    key: str
    section: str
    title: str
    caption: str
    read: Callable[[RunResult], Any]
    draw: Callable[[Drawn], Figure]
    task: str | None = None
    wide: bool = False
    most: int | None = None
    own_colours: bool = False
    keys: tuple[tuple[str, str], ...] = ()
    absent: str = ""
    optional: bool = False


def numbers(value: object, length: int | None = None) -> Array | None:
    """A list of numbers as an array, ``null`` as NaN; ``None`` for anything else.

    Args:
        value: From JSON.
        length: The length it must have; any but 0 if not given.
    """
    if not isinstance(value, list) or not value or (length is not None and len(value) != length):
        return None
    if not all(item is None or _is_number(item) for item in value):
        return None
    return np.array([np.nan if item is None else item for item in value], dtype=np.float64)


def table(value: object, key: str) -> dict[str, Any]:
    """The table under a key; empty where there is none."""
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def columns(value: dict[str, Any], names: Sequence[str]) -> list[Array] | None:
    """Several lists of one table, of equal length; ``None`` unless all are there."""
    first = numbers(value.get(names[0]))
    if first is None:
        return None
    found = [numbers(value.get(name), len(first)) for name in names]
    arrays = [array for array in found if array is not None]
    return arrays if len(arrays) == len(names) else None


def histogram(value: dict[str, Any], counts: str = "counts") -> tuple[Array, Array] | None:
    """Edges [K + 1] and counts [K] of a histogram that holds anything; else ``None``."""
    edges = numbers(value.get("edges"))
    if edges is None:
        return None
    found = numbers(value.get(counts), len(edges) - 1)
    if found is None or not np.isfinite(edges).all() or not np.nansum(found) > 0:
        return None
    return edges, np.nan_to_num(found)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
