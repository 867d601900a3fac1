"""What the keys of metrics say: which foreign set and score, which corruption and severity.

Evaluation writes flat keys; here they become tables again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

Value = TypeVar("Value")

DETECTION = {
    "auroc": "by entropy",
    "auroc_mutual_information": "by mutual information",
    "auroc_energy": "by energy",
    "auroc_epistemic": "by epistemic std",
    "aupr": "AUPR",
    "fpr95": "FPR95",
}
"""Columns of the table of foreign sets: key of the first set's figure, and words for it."""

_SHIFT = re.compile(r"shift_(.+?)_(\d)_(.+)")


class ShiftKey(NamedTuple):
    """The parts of ``shift_rotation_3_accuracy``.

    Attributes:
        name: The corruption.
        severity: From 1.
        metric: What was measured under it.
    """

    name: str
    severity: int
    metric: str


def shift_key(key: str) -> ShiftKey | None:
    """A key's parts, or ``None`` where it is of no single severity."""
    found = _SHIFT.fullmatch(key)
    return None if found is None else ShiftKey(found[1], int(found[2]), found[3])


def shift_values(metrics: Mapping[str, Value]) -> dict[str, dict[str, dict[int, Value]]]:
    """By metric and corruption: values by severity, of which 0 is the uncorrupted part."""
    found: dict[str, dict[str, dict[int, Value]]] = {}
    for key, value in metrics.items():
        parts = shift_key(key)
        if parts is not None:
            clean = {0: metrics[parts.metric]} if parts.metric in metrics else {}
            lines = found.setdefault(parts.metric, {})
            lines.setdefault(parts.name, clean)[parts.severity] = value
    return found


def numeric(metrics: Mapping[str, object]) -> dict[str, float]:
    """Those metrics that are numbers."""
    return {
        key: float(value)
        for key, value in metrics.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def ood_suffixes(keys: Iterable[str]) -> list[str]:
    """How the keys of each foreign set end, the first set's with nothing.

    Of every set there are figures by the customary score, and of those ``aupr`` has no others
    beside it.
    """
    keys = list(keys)
    found = [key.removeprefix("aupr") for key in keys if key == "aupr" or key.startswith("aupr_")]
    return found if found or "auroc" not in keys else [""]


def ood_label(suffix: str, sets: Sequence[str]) -> str:
    """What a reader calls a foreign set.

    Args:
        suffix: One of :func:`ood_suffixes`.
        sets: Names of the run's foreign sets; none where they are not known.
    """
    name, local = suffix.removeprefix("_"), ""
    if name == "local" or name.endswith("_local"):
        name, local = name.removesuffix("local").removesuffix("_"), ", local noise"
    first = sets[0] if sets else "out of distribution"
    # Of a file the last part tells enough.
    return (name or first).rpartition("/")[2] + local


def detection_words(key: str, *, tasks: Iterable[str | None]) -> str:
    """Words for a column of :data:`DETECTION`; the customary score depends on the task."""
    if key != "auroc":
        return DETECTION[key]
    words = {"regression": "by predicted std"}
    return " or ".join(dict.fromkeys(words.get(task or "", DETECTION[key]) for task in tasks))
