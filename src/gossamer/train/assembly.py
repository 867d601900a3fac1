"""From settings to what a run works with: data, network, method.

``Facts`` are what data and settings decided together. They are stored with the run, so that the
method can be rebuilt without the data, and by a Gossamer whose defaults have changed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.data import DataSet, Preparation, choose_shifts, load, load_ood
from gossamer.errors import GossamerError, InvalidData, InvalidValue
from gossamer.inference import Method, method_entry, resolve_config
from gossamer.inference.sharing import (
    Membership,
    default_settings,
    has_own_members,
    joint,
    membership,
)
from gossamer.likelihoods import LIKELIHOODS, Gaussian, Likelihood, make_likelihood
from gossamer.models import MODELS, build_model
from gossamer.selection import Selection
from gossamer.settings import checked, hints_of
from gossamer.train.budget import default_epochs, epochs_of_steps
from gossamer.train.config import RunConfig
from gossamer.train.device import CPU
from gossamer.train.examples import Examples, steps_per_epoch
from gossamer.train.noise_start import noise_start
from gossamer.train.uncertainty import check_ood_names
from gossamer.train.wide import options_of, screened

_DEFAULT_LIKELIHOOD = {"classification": "categorical", "regression": "gaussian"}
_FITTING = {
    "classification": ("categorical", "bernoulli"),
    "regression": ("gaussian", "heteroscedastic", "student_t", "poisson", "negative_binomial"),
}


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
        likelihood_options: What the data say of the likelihood: ``offset``, of counts.
        epochs: Passes over the training part; ``None`` in runs of earlier versions, whose settings
            tell them.
        model_options: What the data say of the model: the columns that it reads of a wide table.
    """

    input_shape: list[int]
    output_size: int
    likelihood: str
    method_settings: dict[str, Any]
    num_data: int
    steps_per_epoch: int
    data_sha256: str
    likelihood_options: dict[str, Any] = field(default_factory=dict)
    epochs: int | None = None
    model_options: dict[str, Any] = field(default_factory=dict)

    def epochs_in(self, config: RunConfig) -> int:
        """Passes over the training part."""
        found = config.epochs if self.epochs is None else self.epochs
        assert found is not None
        return found


@dataclass(frozen=True, eq=False)
class Assembly:
    """All that a run works with.

    Attributes:
        dataset: The prepared data.
        ood: Out-of-distribution inputs by name.
        facts: What data and settings decided.
        method: Fresh, before its first step.
        examples: What the method learns from and is validated on.
        selection: What the screening of a wide table found, where the run begins.
    """

    dataset: DataSet
    ood: dict[str, Tensor]
    facts: Facts
    method: Method
    examples: Examples
    selection: Selection | None = None


def assemble(
    config: RunConfig, stored: Facts | None = None, device: torch.device = CPU
) -> Assembly:
    """Load the data and build the method; weights and support come from torch's generator.

    Args:
        config: The settings.
        stored: The facts of a run that is to go on; they win over today's defaults.
        device: Where the network goes; the data stay on the CPU.

    Raises:
        InvalidData: The data are not those that the run began with, or lack the part that the run
            is to be evaluated on.
        InvalidValue: A corruption to be measured does not fit the data.
    """
    dataset = load_dataset(config)
    # Asked by its name, not by its tensors: nothing looks at the test part before the end.
    if config.evaluate_on == "test" and dataset.test is None:
        for name, asked in (("ood", config.ood), ("shift", config.shift)):
            if asked:
                raise InvalidValue(
                    name, asked[0], "is measured beside a test part", "set evaluate_on=validation"
                )
        if config.test_fraction != 0.0:  # told: then there are no test metrics, and that is said
            raise InvalidData(
                "data", config.data, "have no test part", "give one, or set evaluate_on=validation"
            )
    ood = load_ood_inputs(config, dataset.preparation)
    choose_shifts(config.shift, dataset.preparation)
    digest = _digest(dataset)
    if stored is not None and stored.data_sha256 != digest:
        raise InvalidData(
            "data",
            config.data,
            "is not what the run began with",
            "restore the old data or choose another --out",
        )
    selection = None if stored is not None else _selection(config, dataset)
    facts = stored or find_facts(config, dataset, selection)
    plan = _membership(config)
    examples = Examples.of(dataset).dealt(plan.members, plan.leave_out, config.seed)
    method = build_method(config, facts, device)
    return Assembly(dataset, ood, facts, method, examples, selection)


def load_dataset(config: RunConfig) -> DataSet:
    """The data of a config. Counts are numbers, however few differ, and stay as they are."""
    kind = None if config.likelihood is None else LIKELIHOODS.get(config.likelihood)
    counts = kind is not None and kind.has_counts
    return load(
        config.data,
        data_dir=config.data_dir,
        target=config.target,
        task="regression" if counts and config.task is None else config.task,
        counts=counts and config.task != "classification",
        validation_fraction=config.validation_fraction,
        seed=config.seed,
        limit_train=config.limit_train,
        split=config.split,
        rules=config.table_rules,
        test=config.test,
        test_fraction=config.test_fraction,
    )


def load_ood_inputs(config: RunConfig, preparation: Preparation) -> dict[str, Tensor]:
    """The out-of-distribution inputs of a config, prepared as the run's own are."""
    check_ood_names(config.ood)
    return {name: load_ood(name, config.data_dir, preparation) for name in config.ood}


def find_facts(config: RunConfig, dataset: DataSet, selection: Selection | None = None) -> Facts:
    """Resolve what depends on the data.

    Args:
        config: The settings.
        dataset: Prepared.
        selection: What a screening of its columns found, where there was one.

    Raises:
        InvalidValue: The batch is larger than the training part, or the likelihood does not fit.
    """
    name = config.likelihood or _DEFAULT_LIKELIHOOD[dataset.task]
    num_data = dataset.num_train
    likelihood = make_likelihood(name, **config.likelihood_options)
    per_epoch = steps_per_epoch(num_data, config.batch_size)
    return Facts(
        input_shape=list(dataset.input_shape),
        output_size=_output_size(likelihood, dataset),
        likelihood=name,
        method_settings=_method_settings(config),
        num_data=num_data,
        steps_per_epoch=per_epoch,
        data_sha256=_digest(dataset),
        model_options=options_of(selection),
        likelihood_options=_options_of(likelihood, config, dataset),
        epochs=_epochs(config, dataset, per_epoch),
    )


def _selection(config: RunConfig, dataset: DataSet) -> Selection | None:
    is_told = config.model != "mlp" or "columns" in config.model_options
    return None if is_told or not config.screen else screened(dataset, config.seed)


def _epochs(config: RunConfig, dataset: DataSet, per_epoch: int) -> int:
    if config.epochs is not None and config.steps is not None:
        raise InvalidValue(
            "steps", config.steps, f"stands beside epochs = {config.epochs}", "give one of them"
        )
    if config.epochs is not None:
        return config.epochs
    if config.steps is not None:
        return epochs_of_steps(config.steps, per_epoch)
    labels = dataset.task == "classification"
    return default_epochs(per_epoch, dataset.input_shape, labels=labels)


def build_method(config: RunConfig, facts: Facts, device: torch.device = CPU) -> Method:
    """The method of a run, before its first step.

    The network is built on the CPU, so that a seed gives the same weights everywhere, and goes to
    its device before the method is built on it.
    """

    def network() -> nn.Module:
        try:
            model = build_model(
                config.model,
                input_shape=facts.input_shape,
                output_size=facts.output_size,
                **model_options(config.model, {**facts.model_options, **config.model_options}),
            )
        except GossamerError:
            raise
        except (TypeError, ValueError) as error:  # the models know nothing of Gossamer's errors
            raise InvalidValue("model", config.model, f"cannot be built: {error}") from error
        return model.to(device)

    entry = method_entry(config.method)
    # The facts hold every setting, so presets and defaults have no say any more.
    kept = {k: v for k, v in facts.method_settings.items() if k not in entry.gone}
    settings = entry.config(**checked(entry.config, kept, of=config.method))
    return joint(
        config.method,
        entry,
        settings,
        network,
        _membership(config),
        num_data=facts.num_data,
        total_steps=facts.epochs_in(config) * facts.steps_per_epoch,
        likelihood=make_likelihood(
            facts.likelihood, **{**facts.likelihood_options, **config.likelihood_options}
        ).to(device),
    )


def model_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """A model's options, checked by their type hints; the model itself knows the rest."""
    known = hints_of(MODELS[name]) if name in MODELS else {}
    found = {key: value for key, value in options.items() if key in known}
    return {**options, **(checked(MODELS[name], found, of=name) if found else {})}


def _membership(config: RunConfig) -> Membership:
    return membership(
        config.method,
        method_entry(config.method),
        members=config.members,
        member_sparsity=config.member_sparsity,
        harvest=config.harvest,
        leave_out=config.leave_out,
    )


def _method_settings(config: RunConfig) -> dict[str, Any]:
    options: dict[str, Any] = dict(config.method_options)
    entry = method_entry(config.method)
    plan = _membership(config)
    fields: dict[str, Any] = {"lr": config.lr, "backend": config.backend}
    if has_own_members(entry):
        fields["members"] = config.members
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
    changed = default_settings(entry, plan)
    settings = resolve_config(config.method, config.preset, changed, **options)
    resolved: dict[str, Any] = json.loads(json.dumps(asdict(settings), allow_nan=False))
    return resolved


def _options_of(likelihood: Likelihood, config: RunConfig, dataset: DataSet) -> dict[str, Any]:
    """Where a likelihood begins that was not told.

    Counts: an output of 0 stands for their mean, since a network begins near 0. Learnt noise: at
    what a linear map leaves over.
    """
    if _learns_noise(likelihood) and "start" not in config.likelihood_options:
        start = noise_start(dataset.x_train, dataset.y_train)
        return {} if start is None else {"start": start}
    mean = float(dataset.y_train.double().mean()) if likelihood.has_counts else 0.0
    if mean <= 0.0 or "offset" in config.likelihood_options:
        return {}
    return {"offset": math.log(mean)}


def _learns_noise(likelihood: Likelihood) -> bool:
    return type(likelihood) is Gaussian and likelihood.noise_std == "learn"


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
    examples = Examples.of(dataset)
    for tensor in (examples.x, examples.y, *(examples.validation or ())):
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
