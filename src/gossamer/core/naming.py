"""Settings by patterns of names: which layer has which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from gossamer.errors import InvalidValue

Value = TypeVar("Value")


def places_by_pattern(
    setting: str, names: Sequence[str], patterns: Iterable[str]
) -> dict[str, list[int]]:
    """The places of the names of every pattern.

    Args:
        setting: Whose patterns they are, for the errors.
        names: Of the layers, in order.
        patterns: Shell style; a name belongs to the first that it matches.

    Raises:
        InvalidValue: A name has no pattern, or a pattern no name.

    Example:
        >>> places_by_pattern("sparsity", ["body.0", "body.1", "head"], ["head", "*"])
        {'head': [2], '*': [0, 1]}
    """
    found: dict[str, list[int]] = {pattern: [] for pattern in patterns}
    for place, name in enumerate(names):
        own = next((each for each in found if fnmatchcase(name, each)), None)
        if own is None:
            raise InvalidValue(
                setting,
                list(found),
                f"has no pattern for the layer {name}",
                "name it, or end with '*' for all others; exclude= leaves a layer dense",
            )
        found[own].append(place)
    for pattern, places in found.items():
        if not places:
            raise InvalidValue(
                setting,
                pattern,
                "matches no layer that is left",
                f"the layers are {', '.join(names)}",
            )
    return found


def by_name(setting: str, given: Value | Mapping[str, Value], names: Sequence[str]) -> list[Value]:
    """The value of every name: one for all, or values by patterns (``places_by_pattern``).

    Example:
        >>> by_name("prior_std", {"head": 1.0, "*": "scaled"}, ["body", "head"])
        ['scaled', 1.0]
        >>> by_name("prior_std", 0.5, ["body", "head"])
        [0.5, 0.5]
    """
    if not isinstance(given, Mapping):
        return [given] * len(names)
    values: dict[int, Value] = {}
    for pattern, places in places_by_pattern(setting, names, given).items():
        values |= dict.fromkeys(places, given[pattern])
    return [values[place] for place in range(len(names))]
