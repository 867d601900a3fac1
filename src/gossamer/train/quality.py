"""What we recommend at one, two and three times the cost of RigL: the presets of ``--quality``.

The table is the outcome of ``gossamer reproduce gossamer/uncertainty``; docs/uncertainty.md has its
figures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gossamer.errors import UnknownName
from gossamer.train.config import RunConfig

_AVERAGED = {"initial_curvature": 1.0, "average": 0.25, "lr_floor": 0.6}


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
        {"method": "ngvi", "finish": "last_layer", "num_samples": 10},
        _AVERAGED,
        "one network with a posterior, weights averaged, a Gaussian last layer",
        cost=1.1,
        memory=1.7,
        passes=10,
    ),
    "good": Quality(
        {"method": "ngvi", "members": 2, "finish": "last_layer", "num_samples": 10},
        _AVERAGED,
        "two such networks that share the weights of one",
        cost=2.0,
        memory=1.7,
        passes=10,
    ),
    "best": Quality(
        {
            "method": "ngvi",
            "members": 3,
            "member_sparsity": None,
            "finish": "last_layer",
            "num_samples": 12,
        },
        _AVERAGED,
        "three such networks, each as large as that of fast",
        cost=3.2,
        memory=5.0,
        passes=12,
    ),
}
"""By name, cheapest first."""


def with_quality(config: RunConfig, name: str) -> RunConfig:
    """The config with the settings of a quality; its sparsity and all else stay.

    Args:
        config: The run.
        name: Key of ``QUALITIES``.

    Example:
        >>> config = with_quality(RunConfig(data="digits"), "good")
        >>> config.method, config.members, config.finish
        ('ngvi', 2, 'last_layer')
    """
    if name not in QUALITIES:
        raise UnknownName("quality", name, list(QUALITIES))
    chosen = QUALITIES[name]
    settings = dict(chosen.settings)
    options = {**chosen.options, **config.method_options}
    if "member_sparsity" in settings:  # members that are each as large as one network
        settings["member_sparsity"] = options.get("sparsity", 0.95)
    return replace(config, **settings, method_options=options)
