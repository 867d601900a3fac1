"""What we recommend at one, two and three times the cost of RigL: the presets of ``--quality``.

The table is the outcome of ``gossamer reproduce gossamer/uncertainty``; docs/uncertainty.md has its
figures.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from gossamer.data import Outline, outline_of
from gossamer.data.prepare.target import Task
from gossamer.errors import UnknownName
from gossamer.likelihoods import LIKELIHOODS
from gossamer.models import MODELS, build_model
from gossamer.train.config import RunConfig
from gossamer.train.tables import leaves_out, table_recipe

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
        "one sparse network, its weights averaged, with a Gaussian last layer, under noise where "
        "that helps; for numbers in a table 20 side by side, which leave rows out",
        cost=1.0,
        memory=1.7,
    ),
    "good": Quality(2, "two of them, or twice the steps", cost=2.0, memory=3.4),
    "best": Quality(3, "three of them, or three times the steps", cost=3.0, memory=5.2),
}
"""By name, cheapest first."""


_OWN_NOISE = ("heteroscedastic", "student_t")
"""Likelihoods under which a Gaussian last layer has no closed form."""

DEFAULT = "fast"
"""What ``gossamer train`` takes where neither a quality nor a method is given."""


def with_quality(config: RunConfig, name: str) -> RunConfig:
    """The config with the settings of a quality; sparsity and all else stay as they are.

    Numbers in a table have their own (:func:`table_recipe`): many members that leave rows out.

    Args:
        config: The run; its data and its network decide the method, and a file is read for that.
        name: Key of ``QUALITIES``.

    Example:
        >>> config = with_quality(RunConfig(data="digits"), "good")
        >>> config.method, config.members, config.member_sparsity, config.finish
        ('ngvi', 2, 0.95, 'last_layer')
        >>> config = with_quality(RunConfig(data="diabetes"), "fast")
        >>> config.method, config.members, config.leave_out, config.steps, config.finish
        ('rigl', 20, 4, 2000, 'left_out')
    """
    if name not in QUALITIES:
        raise UnknownName("quality", name, list(QUALITIES))
    outline = _outline(config)
    rows = None if outline is None else outline.table_rows
    if (
        outline is None
        or rows is None
        or outline.task == "classification"
        or not _has_one_noise(config)
    ):
        return _with_networks(config, name, outline)
    if config.limit_train is not None:
        rows = min(rows, config.limit_train)
    recipe = table_recipe(rows, QUALITIES[name].cost)
    method, options = METHODS["regression"]
    return replace(
        config,
        method=method,
        method_options={**options, **config.method_options},
        members=recipe.members,
        member_sparsity=float(config.method_options.get("sparsity", options["sparsity"])),
        leave_out=recipe.leave_out,
        harvest="abreast" if config.model == "mlp" else "runs",
        steps=recipe.steps,
        batch_size=recipe.batch_size,
        num_samples=recipe.members,
        validation_fraction=0.0,
        finish="left_out" if recipe.leave_out else "none",
        conformal=True,
        screen=True,
    )


def with_networks(config: RunConfig, name: str, task: Task) -> RunConfig:
    """The config with one, two or three networks of ``METHODS``, whatever the data are.

    The validation part finishes them. Nothing is read, and no table is screened.

    Args:
        config: As in :func:`with_quality`.
        name: Key of ``QUALITIES``.
        task: What the data are for.
    """
    if name not in QUALITIES:
        raise UnknownName("quality", name, list(QUALITIES))
    outline = None if _has_norms(config) else Outline(task, None)
    return _with_networks(config, name, outline)


def _with_networks(config: RunConfig, name: str, outline: Outline | None) -> RunConfig:
    members = QUALITIES[name].members
    method, options = NORMALISED if outline is None else METHODS[outline.task]
    found = replace(
        config,
        method=method,
        method_options={**options, **config.method_options},
        members=None if members == 1 else members,
        num_samples=members,
        finish=_finish_of(config),
        conformal=True,
        screen=outline is not None and outline.table_rows is not None,
    )
    return settled(found, name)


def _outline(config: RunConfig) -> Outline | None:
    """``None`` where the network decides, not the data."""
    if _has_norms(config):
        return None
    return outline_of(
        config.data,
        data_dir=config.data_dir,
        target=config.target,
        task=config.task,
        split=config.split,
        rules=config.table_rules,
        test=config.test,
        test_fraction=config.test_fraction,
    )


def _has_norms(config: RunConfig) -> bool:
    return config.model in MODELS and normalises(config.model)


def _has_one_noise(config: RunConfig) -> bool:
    """Whether real targets would have one level of noise, which left-out rows can find."""
    is_gaussian = config.likelihood in (None, "gaussian")
    return is_gaussian and config.likelihood_options.get("noise_std") != "head"


def _finish_of(config: RunConfig) -> Literal["none", "temperature", "last_layer"]:
    """What finishes networks under the likelihood that was told."""
    kind = None if config.likelihood is None else LIKELIHOODS.get(config.likelihood)
    if kind is not None and kind.has_counts:
        return "none"
    has_head = config.likelihood_options.get("noise_std") == "head"
    return "temperature" if has_head or config.likelihood in _OWN_NOISE else "last_layer"


@cache
def normalises(model: str) -> bool:
    """Whether a network of ``gossamer.models`` has batch normalisation.

    Args:
        model: Key of ``MODELS``; built without memory, for images of 32 by 32.
    """
    with torch.device("meta"):
        network = build_model(model, input_shape=(3, 32, 32), output_size=10)
    return any(isinstance(each, _BatchNorm) for each in network.modules())


def settled(config: RunConfig, name: str, told: Collection[str] = ()) -> RunConfig:
    """The config of a quality, made whole after some of its settings were changed.

    Every member is as sparse as the config says by now, and one network has no members. Rows are
    left out of as many of the told members as divides them, or, where these or a finishing step by
    other rows leave no choice, of none: then a validation part is cut.

    Args:
        config: Of :func:`with_quality`, changed.
        name: Key of ``QUALITIES``.
        told: Settings that were told, which stay as they are.
    """
    if "epochs" in told and "steps" not in told:
        config = replace(config, steps=None)
    if config.leave_out and "leave_out" not in told:
        times = leaves_out(config.members or 1)
        if config.finish == "left_out" and times:
            config = replace(config, leave_out=times)
        else:
            finish = "last_layer" if config.finish == "left_out" else config.finish
            config = replace(config, leave_out=0, finish=finish)
            if "validation_fraction" not in told:
                share = RunConfig.validation_fraction
                config = replace(config, validation_fraction=share)
    if "member_sparsity" in told or (config.members is None and QUALITIES[name].members == 1):
        return config
    if config.members in (None, 1):
        return replace(config, member_sparsity=None)
    return replace(config, member_sparsity=float(config.method_options["sparsity"]))
