"""``RunConfig``: all settings of a run, validated, readable and writable as JSON.

Each field states its own rule once, in its metadata; checking, reading JSON and parsing
``key=value`` all follow from it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gossamer.errors import InvalidValue, UnknownName
from gossamer.train.rules import (
    Choice,
    Integer,
    Names,
    Number,
    Options,
    Rule,
    Text,
)


def _by(rule: Rule) -> dict[str, Rule]:
    return {"rule": rule}


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of one run; immutable and valid once made.

    Attributes:
        data: A registered data set, or a file (``.npz``, ``.csv``, ``.parquet``).
        data_dir: Where data sets lie that are not embedded.
        target: The column to predict, for a table.
        task: ``"classification"`` or ``"regression"``; ``None`` lets the data decide.
        split: Which of the standard splits, for a data set that brings several.
        model: A name of :mod:`gossamer.models`.
        model_options: Arguments of the model.
        method: A name of the registry of methods.
        method_options: Settings of the method, ``sparsity`` among them.
        likelihood: ``None`` takes categorical for classes and gaussian for numbers.
        likelihood_options: Arguments of the likelihood, e.g. ``noise_std`` of gaussian.
        epochs: Passes over the training split.
        batch_size: Examples per step.
        lr: Learning rate; ``None`` takes the method's own.
        seed: Of everything: split, initial weights, support, data order, noise.
        preset: A named set of the method's settings: ``"default"``, ``"paper"``.
        backend: How the sparse products are computed: ``auto``, ``native``, ``masked``.
        limit_train: Use only so many training examples.
        validation_fraction: Share of the training examples kept for validation.
        num_samples: Weight draws per prediction in the final evaluation.
        noise: ``"weight"``, ``"local"``, or ``"both"`` (test metrics once for each).
        evaluate_on: What the final metrics are of: the ``"test"`` part, or, while settings are
            being chosen, the ``"validation"`` part; the test part is then not looked at.
        select: Tested is the ``"last"`` state, or the ``"best"`` checkpoint by validation NLL.
        checkpoint_every: Epochs between checkpoints; the best is chosen among them.
        keep_checkpoints: How many of the newest stay.
        ood: Data sets to score as out of distribution at the end.
    """

    data: str = field(default="digits", metadata=_by(Text()))
    data_dir: str | None = field(default=None, metadata=_by(Text(optional=True)))
    target: str | None = field(default=None, metadata=_by(Text(optional=True)))
    task: str | None = field(
        default=None, metadata=_by(Choice("classification", "regression", optional=True))
    )
    split: int = field(default=0, metadata=_by(Integer(low=0)))
    model: str = field(default="mlp", metadata=_by(Text()))
    model_options: dict[str, Any] = field(default_factory=dict, metadata=_by(Options()))
    method: str = field(default="ssvi", metadata=_by(Text()))
    method_options: dict[str, Any] = field(default_factory=dict, metadata=_by(Options()))
    likelihood: str | None = field(default=None, metadata=_by(Text(optional=True)))
    likelihood_options: dict[str, Any] = field(default_factory=dict, metadata=_by(Options()))
    epochs: int = field(default=60, metadata=_by(Integer(low=1)))
    batch_size: int = field(default=64, metadata=_by(Integer(low=1)))
    lr: float | None = field(default=None, metadata=_by(Number(low=0.0, optional=True)))
    seed: int = field(default=0, metadata=_by(Integer(low=0, high=2**63 - 1)))
    preset: str = field(default="default", metadata=_by(Text()))
    backend: str = field(default="auto", metadata=_by(Text()))
    limit_train: int | None = field(default=None, metadata=_by(Integer(low=1, optional=True)))
    validation_fraction: float = field(default=0.1, metadata=_by(Number(low=0.0, high=1.0)))
    num_samples: int = field(default=5, metadata=_by(Integer(low=1)))
    noise: str = field(default="weight", metadata=_by(Choice("weight", "local", "both")))
    evaluate_on: str = field(default="test", metadata=_by(Choice("test", "validation")))
    select: str = field(default="last", metadata=_by(Choice("last", "best")))
    checkpoint_every: int = field(default=1, metadata=_by(Integer(low=1)))
    keep_checkpoints: int = field(default=2, metadata=_by(Integer(low=1)))
    ood: tuple[str, ...] = field(default=(), metadata=_by(Names()))

    def __post_init__(self) -> None:
        for name, rule in _RULES.items():
            object.__setattr__(self, name, rule.check(name, getattr(self, name)))

    def to_json(self) -> dict[str, Any]:
        """All settings as JSON values, in the order of the fields."""
        values: dict[str, Any] = {name: getattr(self, name) for name in _RULES}
        copied: dict[str, Any] = json.loads(json.dumps(values, allow_nan=False))
        return copied

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunConfig:
        """Settings from JSON values; what is missing takes its default.

        Raises:
            InvalidValue: A value against its rule.
            UnknownName: A key that is no setting.
        """
        for key in values:
            if key not in _RULES:
                raise UnknownName("setting", str(key), list(_RULES))
        return cls(**values)

    def with_overrides(self, assignments: Iterable[str]) -> RunConfig:
        """A copy with ``key=value`` texts applied in order.

        A value is parsed by its field's type; ``none`` clears an optional one. Settings of the
        method and arguments of the model are reached by a dot, and parsed as JSON where they are
        JSON, else as text::

            config.with_overrides(["epochs=5", "method_options.sparsity=0.9", "ood=a,b"])
        """
        values = self.to_json()
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            key = key.strip()
            if not equals or not key:
                raise InvalidValue("--set", assignment, "must read key=value", "e.g. epochs=20")
            name, *inner = key.split(".")
            rule = _RULES.get(name)
            if rule is None:
                raise UnknownName("setting", name, list(_RULES))
            if not inner:
                values[name] = rule.parse(name, text.strip())
            elif isinstance(rule, Options):
                _place(values[name], inner, rule.parse_option(text.strip()), key)
            else:
                raise InvalidValue("--set", key, f"{name} has no parts", f"write {name}=value")
        return RunConfig.from_json(values)

    def first_difference(self, other: RunConfig) -> tuple[str, Any, Any] | None:
        """The first setting in which two configs differ: dotted name, this value, the other's."""
        return _first_difference("", self.to_json(), other.to_json())


_RULES: dict[str, Rule] = {f.name: f.metadata["rule"] for f in dataclasses.fields(RunConfig)}


def _place(options: dict[str, Any], path: list[str], value: Any, key: str) -> None:
    for part in path[:-1]:
        options = options.setdefault(part, {})
        if not isinstance(options, dict):
            raise InvalidValue("--set", key, f"{part} has no parts", "set the whole value")
    if not all(path):
        raise InvalidValue("--set", key, "has an empty part", "write e.g. method_options.sparsity")
    options[path[-1]] = value


def _first_difference(
    prefix: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]
) -> tuple[str, Any, Any] | None:
    for key in [*mine, *(k for k in theirs if k not in mine)]:
        a, b = mine.get(key), theirs.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            inner = _first_difference(f"{prefix}{key}.", a, b)
            if inner is not None:
                return inner
        elif a != b or type(a) is not type(b) or (key in mine) != (key in theirs):
            return f"{prefix}{key}", a, b
    return None
