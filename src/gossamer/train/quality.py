"""What we recommend at one, two and three times the cost of RigL: the presets of ``--quality``.

The table is the outcome of ``gossamer reproduce gossamer/uncertainty``; docs/uncertainty.md has its
figures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from gossamer.data import task_of
from gossamer.data.prepare.target import Task
from gossamer.errors import UnknownName
from gossamer.models import MODELS, build_model
from gossamer.train.config import RunConfig

_SHARED: dict[str, Any] = {"sparsity": 0.95, "lr_factor": 2.0, "average": 0.25, "lr_floor": 0.3}

METHODS: dict[Task, tuple[str, dict[str, Any]]] = {
    "classification": ("ngvi", {**_SHARED, "initial_curvature": 1.0, "predicts": "mean"}),
    "regression": ("rigl", _SHARED),
}
"""By task: the method of all presets, and its settings. The noise of ``ngvi`` costs tables of some
hundred rows half of their accuracy."""

NORMALISED = ("rigl", _SHARED)
"""The method of networks with batch normalisation, whatever the task: weights before a
normalisation have no scale of their own, and noise that is small beside others is large beside
them. On validation images ``ngvi`` was behind by 0.05 nats (ResNet-20, CIFAR-10)."""


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
        "one sparse network, its weights averaged, with a Gaussian last layer; under noise where "
        "that helps",
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
        config: The run; its data and its network decide the method, and a file is read for that.
        name: Key of ``QUALITIES``.

    Example:
        >>> config = with_quality(RunConfig(data="digits"), "good")
        >>> config.method, config.members, config.member_sparsity, config.finish
        ('ngvi', 2, 0.95, 'last_layer')
    """
    if name not in QUALITIES:
        raise UnknownName("quality", name, list(QUALITIES))
    members = QUALITIES[name].members
    method, options = _method_of(config)
    found = replace(
        config,
        method=method,
        method_options={**options, **config.method_options},
        members=None if members == 1 else members,
        num_samples=members,
        finish="last_layer",
    )
    return settled(found, name)


def _method_of(config: RunConfig) -> tuple[str, dict[str, Any]]:
    if config.model in MODELS and normalises(config.model):
        return NORMALISED
    task = task_of(
        config.data,
        data_dir=config.data_dir,
        target=config.target,
        task=config.task,
        split=config.split,
        rules=config.table_rules,
    )
    return METHODS[task]


@cache
def normalises(model: str) -> bool:
    """Whether a network of ``gossamer.models`` has batch normalisation.

    Args:
        model: Key of ``MODELS``; built without memory, for images of 32 by 32.
    """
    with torch.device("meta"):
        network = build_model(model, input_shape=(3, 32, 32), output_size=10)
    return any(isinstance(each, _BatchNorm) for each in network.modules())


def settled(config: RunConfig, name: str) -> RunConfig:
    """The config with every member as sparse as it says by now; one network has no members."""
    if QUALITIES[name].members == 1:
        return config
    sparsity = float(config.method_options["sparsity"])
    return replace(config, member_sparsity=None if config.members == 1 else sparsity)
