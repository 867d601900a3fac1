"""From settings to what a run works with: data, network, method.

``Facts`` are what data and settings decided together. They are stored with the run, so that the
method can be rebuilt without the data, and by a Gossamer whose defaults have changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from gossamer.data import DataSet, Preparation, load, load_ood
from gossamer.errors import GossamerError, InvalidData, InvalidValue
from gossamer.inference import Method, build, resolve_config
from gossamer.likelihoods import Gaussian, Likelihood, make_likelihood
from gossamer.models import build_model
from gossamer.train.config import RunConfig

_DEFAULT_LIKELIHOOD = {"classification": "categorical", "regression": "gaussian"}
_FITTING = {"classification": ("categorical", "bernoulli"), "regression": ("gaussian",)}


@dataclass(frozen=True)
class Facts:
    """What data and settings decided together, as JSON values.

    Attributes:
        input_shape: Shape of one example.
        output_size: Columns of the network's output.
        likelihood: Name of the likelihood.
        method_settings: All settings of the method, defaults and preset resolved.
        num_data: Training examples.
        steps_per_epoch: Batches per epoch.
        data_sha256: Digest of the training and validation tensors.
    """

    input_shape: list[int]
    output_size: int
    likelihood: str
    method_settings: dict[str, Any]
    num_data: int
    steps_per_epoch: int
    data_sha256: str


@dataclass(frozen=True, eq=False)
class Assembly:
    """All that a run works with.

    Attributes:
        dataset: The prepared data.
        ood: Out-of-distribution inputs by name.
        facts: What data and settings decided.
        method: Fresh, before its first step.
    """

    dataset: DataSet
    ood: dict[str, Tensor]
    facts: Facts
    method: Method


def assemble(config: RunConfig, stored: Facts | None = None) -> Assembly:
    """Load the data and build the method; weights and support come from torch's generator.

    Args:
        config: The settings.
        stored: The facts of a run that is to go on; they win over today's defaults.

    Raises:
        InvalidData: The data are not those that the run began with.
    """
    dataset = load_dataset(config)
    ood = load_ood_inputs(config, dataset.preparation)
    facts = find_facts(config, dataset)
    if stored is not None:
        if stored.data_sha256 != facts.data_sha256:
            raise InvalidData(
                "data",
                config.data,
                "is not what the run began with",
                "restore the old data or choose another --out",
            )
        facts = stored
    return Assembly(dataset, ood, facts, build_method(config, facts))


def load_dataset(config: RunConfig) -> DataSet:
    """The data of a config."""
    return load(
        config.data,
        data_dir=config.data_dir,
        target=config.target,
        task=config.task,  # type: ignore[arg-type]  # checked by the config
        validation_fraction=config.validation_fraction,
        seed=config.seed,
        limit_train=config.limit_train,
        split=config.split,
    )


def load_ood_inputs(config: RunConfig, preparation: Preparation) -> dict[str, Tensor]:
    """The out-of-distribution inputs of a config, prepared as the run's own are."""
    return {name: load_ood(name, config.data_dir, preparation) for name in config.ood}


def find_facts(config: RunConfig, dataset: DataSet) -> Facts:
    """Resolve what depends on the data.

    Raises:
        InvalidValue: The batch is larger than the training part, or the likelihood does not fit.
    """
    name = config.likelihood or _DEFAULT_LIKELIHOOD[dataset.task]
    num_data = dataset.num_train
    if config.batch_size > num_data:
        raise InvalidValue(
            "batch_size",
            config.batch_size,
            f"must not exceed the number of training examples, {num_data}",
            "use a smaller batch",
        )
    return Facts(
        input_shape=list(dataset.input_shape),
        output_size=_output_size(make_likelihood(name, **config.likelihood_options), dataset),
        likelihood=name,
        method_settings=_method_settings(config),
        num_data=num_data,
        steps_per_epoch=len(range(0, num_data, config.batch_size))
        - leaves_out_last(num_data, config.batch_size),
        data_sha256=_digest(dataset),
    )


def leaves_out_last(num_data: int, batch_size: int) -> bool:
    """Whether the last batch would be a single example, on which BatchNorm cannot train."""
    return batch_size > 1 and num_data % batch_size == 1


def build_method(config: RunConfig, facts: Facts) -> Method:
    """The method of a run, before its first step."""
    try:
        model = build_model(
            config.model,
            input_shape=facts.input_shape,
            output_size=facts.output_size,
            **config.model_options,
        )
    except GossamerError:
        raise
    except (TypeError, ValueError) as error:  # the models know nothing of Gossamer's errors
        raise InvalidValue("model", config.model, f"cannot be built: {error}") from error
    settings: dict[str, Any] = {
        # JSON has no tuples; the methods' settings have no lists.
        key: tuple(value) if isinstance(value, list) else value
        for key, value in facts.method_settings.items()
    }
    likelihood = make_likelihood(facts.likelihood, **config.likelihood_options)
    total_steps = config.epochs * facts.steps_per_epoch
    try:
        return build(
            config.method,
            model,
            num_data=facts.num_data,
            total_steps=total_steps,
            likelihood=likelihood,
            **settings,
        )
    except TypeError as error:  # a setting of the wrong type, such as a text for a number
        raise InvalidValue(
            "method_options", config.method_options, f"do not fit {config.method}: {error}"
        ) from error


def _method_settings(config: RunConfig) -> dict[str, Any]:
    options: dict[str, Any] = dict(config.method_options)
    fields: Mapping[str, Any] = {"lr": config.lr, "backend": config.backend}
    for key, value in fields.items():
        if value is None:
            continue
        if key in options and options[key] != value:
            raise InvalidValue(
                f"method_options.{key}",
                options[key],
                f"contradicts {key} = {value}",
                "give only one of them",
            )
        options[key] = value
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    try:
        settings = resolve_config(config.method, config.preset, **options)
    except TypeError as error:
        raise InvalidValue("method_options", config.method_options, str(error)) from error
    resolved: dict[str, Any] = json.loads(json.dumps(asdict(settings), allow_nan=False))
    return resolved


def _output_size(likelihood: Likelihood, dataset: DataSet) -> int:
    if likelihood.name not in _FITTING[dataset.task]:
        raise InvalidValue(
            "likelihood",
            likelihood.name,
            f"does not fit {dataset.task} of {dataset.name}",
            f"use {' or '.join(_FITTING[dataset.task])}",
        )
    if likelihood.name == "bernoulli":
        if dataset.num_classes != 2:
            raise InvalidValue(
                "likelihood", "bernoulli", f"needs 2 classes, not {dataset.num_classes}", ""
            )
        return 1
    has_noise_head = isinstance(likelihood, Gaussian) and likelihood.noise_std == "head"
    return dataset.output_size * (2 if has_noise_head else 1)


def _digest(dataset: DataSet) -> str:
    digest = hashlib.sha256()
    for tensor in (dataset.x_train, dataset.y_train, dataset.x_val, dataset.y_val):
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
