"""From old names to new ones, and what only one of two versions may have; each with its reason.

The rules are applied to both recordings, so that any two commits can be compared. Only names are
changed here. A number that changes is argued for in the commit that changes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

RENAMED: list[tuple[str, str, str]] = [
    (r"^state/engines(/|$)", r"state/backends\1", "one word for what computes a layer: backend"),
]
"""Pattern of an old path, what it becomes, why."""

OPTIONAL: list[tuple[str, str]] = [
    (r"^state/method$", "chains always saved their method's name, gradient methods do so later"),
    (r"^state/samples/", "CV-Adam, no chain, saved an empty collection before"),
    (r"(^|/)energy$", "predictions of classes had no energy before"),
]
"""Paths that one side may lack, and why. Where both have them they are compared."""


def canonical(values: Mapping[str, str]) -> dict[str, str]:
    """Values under the newest names."""
    return {_renamed(path): value for path, value in values.items()}


def is_optional(path: str) -> bool:
    """Whether one side may lack a path."""
    return any(re.search(pattern, path) for pattern, _ in OPTIONAL)


def _renamed(path: str) -> str:
    for pattern, new, _ in RENAMED:
        path = re.sub(pattern, new, path)
    return path
