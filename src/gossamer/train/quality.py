"""What we recommend at one, two and three times the cost of RigL: the presets of ``--quality``.

The table is the outcome of ``gossamer reproduce gossamer/uncertainty``; docs/uncertainty.md has its
figures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gossamer.errors import UnknownName
from gossamer.train.config import RunConfig

_AVERAGED: dict[str, Any] = {"sparsity": 0.95, "average": 0.25, "lr_floor": 0.6}


@dataclass(frozen=True)
class Quality:
    """A recommended way to train.

    Attributes:
        settings: Of the run.
        options: Of the method.
        about: What it is, for a list.
        cost: Training time over that of one RigL network of the same sparsity, about.
        memory: Bytes of parameters and optimiser state over those of that network, about.
        passes: Passes of a network per prediction.
    """

    settings: dict[str, Any]
    options: dict[str, Any]
    about: str
    cost: float
    memory: float
    passes: int


QUALITIES: dict[str, Quality] = {
    "fast": Quality(
        {"method": "rigl", "finish": "last_layer", "num_samples": 1},
        _AVERAGED,
        "one sparse network, its weights averaged, with a Gaussian last layer",
        cost=1.0,
        memory=1.5,
        passes=1,
    ),
    "good": Quality(
        {"method": "rigl", "members": 2, "finish": "last_layer", "num_samples": 2},
        _AVERAGED,
        "two of them",
        cost=2.0,
        memory=3.0,
        passes=2,
    ),
    "best": Quality(
        {"method": "rigl", "members": 3, "finish": "last_layer", "num_samples": 3},
        _AVERAGED,
        "three of them",
        cost=3.0,
        memory=4.5,
        passes=3,
    ),
}
"""By name, cheapest first."""


DEFAULT = "fast"
"""What ``gossamer train`` takes where neither a quality nor a method is given."""


def with_quality(config: RunConfig, name: str) -> RunConfig:
    """The config with the settings of a quality; sparsity and all else stay as they are.

    Args:
        config: The run.
        name: Key of ``QUALITIES``.

    Example:
        >>> config = with_quality(RunConfig(data="digits"), "good")
        >>> config.members, config.member_sparsity, config.finish
        (2, 0.95, 'last_layer')
    """
    if name not in QUALITIES:
        raise UnknownName("quality", name, list(QUALITIES))
    chosen = QUALITIES[name]
    options = {**chosen.options, **config.method_options}
    return settled(replace(config, **chosen.settings, method_options=options), name)


def settled(config: RunConfig, name: str) -> RunConfig:
    """The config with every member as sparse as it says by now; one network has no members."""
    if QUALITIES[name].settings.get("members") is None:
        return config
    sparsity = float(config.method_options["sparsity"])
    return replace(config, member_sparsity=None if config.members == 1 else sparsity)
