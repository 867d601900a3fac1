"""What we recommend at one, two and three times the cost of RigL: the presets of ``--quality``.

The table is the outcome of ``gossamer reproduce gossamer/uncertainty``; docs/uncertainty.md has its
figures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gossamer.data import task_of
from gossamer.data.prepare.target import Task
from gossamer.errors import UnknownName
from gossamer.train.config import RunConfig

_SHARED: dict[str, Any] = {"sparsity": 0.95, "lr_factor": 2.0, "average": 0.25, "lr_floor": 0.3}

METHODS: dict[Task, tuple[str, dict[str, Any]]] = {
    "classification": ("ngvi", {**_SHARED, "initial_curvature": 1.0, "predicts": "mean"}),
    "regression": ("rigl", _SHARED),
}
"""By task: the method of all presets, and its settings. The noise of ``ngvi`` costs tables of some
hundred rows half of their accuracy."""


@dataclass(frozen=True)
class Quality:
    """A recommended way to train: how many networks of ``METHODS``.

    Attributes:
        members: Networks that train and predict together; each is a pass per prediction.
        about: What it is, for a list.
        cost: Training time over that of one RigL network of the same sparsity, about.
        memory: Bytes of parameters and optimiser state over those of that network, about.
    """

    members: int
    about: str
    cost: float
    memory: float


QUALITIES: dict[str, Quality] = {
    "fast": Quality(
        1,
        "one sparse network, trained under noise, its weights averaged, with a Gaussian last layer",
        cost=1.0,
        memory=1.7,
    ),
    "good": Quality(2, "two of them", cost=2.0, memory=3.4),
    "best": Quality(3, "three of them", cost=3.0, memory=5.2),
}
"""By name, cheapest first."""


DEFAULT = "fast"
"""What ``gossamer train`` takes where neither a quality nor a method is given."""


def with_quality(config: RunConfig, name: str) -> RunConfig:
    """The config with the settings of a quality; sparsity and all else stay as they are.

    Args:
        config: The run; its data decide the method, and a file is read for that.
        name: Key of ``QUALITIES``.

    Example:
        >>> config = with_quality(RunConfig(data="digits"), "good")
        >>> config.method, config.members, config.member_sparsity, config.finish
        ('ngvi', 2, 0.95, 'last_layer')
    """
    if name not in QUALITIES:
        raise UnknownName("quality", name, list(QUALITIES))
    members = QUALITIES[name].members
    method, options = METHODS[
        task_of(
            config.data,
            data_dir=config.data_dir,
            target=config.target,
            task=config.task,
            split=config.split,
        )
    ]
    found = replace(
        config,
        method=method,
        method_options={**options, **config.method_options},
        members=None if members == 1 else members,
        num_samples=members,
        finish="last_layer",
    )
    return settled(found, name)


def settled(config: RunConfig, name: str) -> RunConfig:
    """The config with every member as sparse as it says by now; one network has no members."""
    if QUALITIES[name].members == 1:
        return config
    sparsity = float(config.method_options["sparsity"])
    return replace(config, member_sparsity=None if config.members == 1 else sparsity)
