"""``RunConfig``: all settings of a run, validated, readable and writable as JSON.

A field's type hint is its rule; checking, reading JSON and parsing ``key=value`` all follow from it
(:mod:`gossamer.settings`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from gossamer.data import TableRules
from gossamer.errors import InvalidValue, UnknownName
from gossamer.settings import Within, check, hints_of, parse, parse_json
from gossamer.train.examples import DEFAULT_BATCH

Count = Annotated[int, Within(1)]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of one run; immutable and valid once made.

    Attributes:
        data: A registered data set, or a file (``.npz``, or a table: ``.csv``, ``.tsv``, either as
            ``.gz``, ``.parquet``).
        data_dir: Where data sets lie that are not embedded.
        target: The column to predict, for a table.
        task: ``"classification"`` or ``"regression"``; ``None`` lets the data decide.
        missing: Of a table's missing cells: ``"mean"`` (with a feature that says so; a level of its
            own in categories), ``"error"``, or ``"drop"`` for their rows.
        unknown: Of a level that training never saw: ``"other"`` or ``"error"``.
        day_first: How ``03/04/2024`` reads where its column does not tell; ``None`` refuses it.
        decimal: How ``1,234`` reads where its column does not tell: ``"point"`` is 1234,
            ``"comma"`` 1.234; ``None`` refuses it.
        split: Which of the standard splits, for a data set that brings several.
        model: A name of :mod:`gossamer.models`.
        model_options: Arguments of the model.
        method: A name of the registry of methods.
        method_options: Settings of the method, ``sparsity`` among them.
        members: How many networks train and predict together, see docs/members.md; ``None`` takes
            the method's own number, which is 1 of most; 3 of cycles.
        member_sparsity: Sparsity of each; ``None``: they share the weights that one network of the
            method's sparsity keeps.
        harvest: ``"runs"`` trains members side by side, ``"cycles"`` cuts one run into so many.
        likelihood: ``None`` takes categorical for classes and gaussian for numbers.
        likelihood_options: Arguments of the likelihood, e.g. ``noise_std`` of gaussian.
        epochs: Passes over the training split.
        batch_size: Examples per step; 64, the default, stands for all of them where there are
            fewer.
        lr: Learning rate; ``None`` takes the method's own.
        seed: Of everything: split, initial weights, support, data order, noise.
        preset: A named set of the method's settings: ``"default"``, ``"paper"``.
        backend: How the sparse products are computed: ``auto``, ``native``, ``masked``.
        device: ``auto`` (a GPU of CUDA if there is one, else the CPU), ``cpu``, ``cuda``,
            ``cuda:N`` or ``mps``. A run may go on on another device, to rounding.
        limit_train: Use only so many training examples.
        validation_fraction: Share of the training examples kept for validation.
        num_samples: Weight draws per prediction in the final evaluation.
        noise: ``"weight"``, ``"local"``, or ``"both"`` (test metrics once for each).
        evaluate_on: What the final metrics are of: the ``"test"`` part, or, while settings are
            being chosen, the ``"validation"`` part; the test part is then not looked at.
        select: Tested is the ``"last"`` state, or the ``"best"`` checkpoint by validation NLL.
        finish: What the validation part adds when training has ended: ``"temperature"`` or
            ``"last_layer"`` (see docs/last-layer.md). Where the metrics are of the validation part
            too, half of its rows chooses and the other half is measured.
        patience: Stop where the validation NLL has not improved for so many epochs; ``None``
            trains all of them.
        checkpoint_every: Epochs between checkpoints; the best is chosen among them.
        keep_checkpoints: How many of the newest stay.
        log: ``"tensorboard"`` writes curves into the folder ``tensorboard`` of the run. A run may
            go on with it or without.
        ood: Data sets to score as out of distribution at the end.
        shift: Corruptions of the test inputs to measure at the end, in five severities each:
            ``rotation``, ``noise``, ``blur``, ``contrast``, or ``all`` that fit the data.
    """

    data: str = "digits"
    data_dir: str | None = None
    target: str | None = None
    task: Literal["classification", "regression"] | None = None
    missing: Literal["mean", "error", "drop"] = "mean"
    unknown: Literal["other", "error"] = "other"
    day_first: bool | None = None
    decimal: Literal["point", "comma"] | None = None
    split: Annotated[int, Within(0)] = 0
    model: str = "mlp"
    model_options: dict[str, Any] = field(default_factory=dict)
    method: str = "ssvi"
    method_options: dict[str, Any] = field(default_factory=dict)
    members: Count | None = None
    member_sparsity: Annotated[float, Within(0.0, 1.0)] | None = None
    harvest: Literal["runs", "cycles"] = "runs"
    likelihood: str | None = None
    likelihood_options: dict[str, Any] = field(default_factory=dict)
    epochs: Count = 60
    batch_size: Count = DEFAULT_BATCH
    lr: Annotated[float, Within(0.0)] | None = None
    seed: Annotated[int, Within(0, 2**63 - 1)] = 0
    preset: str = "default"
    backend: str = "auto"
    device: str = "auto"
    limit_train: Count | None = None
    validation_fraction: Annotated[float, Within(0.0, 1.0)] = 0.1
    num_samples: Count = 5
    noise: Literal["weight", "local", "both"] = "weight"
    evaluate_on: Literal["test", "validation"] = "test"
    select: Literal["last", "best"] = "last"
    finish: Literal["none", "temperature", "last_layer"] = "none"
    patience: Count | None = None
    checkpoint_every: Count = 1
    keep_checkpoints: Count = 2
    log: Literal["none", "tensorboard"] = "none"
    ood: tuple[str, ...] = ()
    shift: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, hint in hints_of(RunConfig).items():
            object.__setattr__(self, name, check(name, getattr(self, name), hint))

    @property
    def table_rules(self) -> TableRules:
        """How a table is read."""
        return TableRules(
            missing=self.missing,
            unknown=self.unknown,
            day_first=self.day_first,
            decimal=self.decimal,
        )

    def to_json(self) -> dict[str, Any]:
        """All settings as JSON values, in the order of the fields."""
        values: dict[str, Any] = {name: getattr(self, name) for name in hints_of(RunConfig)}
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
            if key not in hints_of(RunConfig):
                raise UnknownName("setting", str(key), list(hints_of(RunConfig)))
        return cls(**values)

    def with_overrides(self, assignments: Iterable[str]) -> RunConfig:
        """A copy with ``key=value`` texts applied in order.

        A value is parsed by its field's type; ``none`` clears an optional one. Settings of the
        method and arguments of the model are reached by a dot, and parsed as JSON where they are
        JSON, else as text::

            config.with_overrides(["epochs=5", "method_options.sparsity=0.9", "ood=a,b"])
        """
        values, hints = self.to_json(), hints_of(RunConfig)
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            key = key.strip()
            if not equals or not key:
                raise InvalidValue("--set", assignment, "must read key=value", "e.g. epochs=20")
            name, *inner = key.split(".")
            if name not in hints:
                raise UnknownName("setting", name, list(hints))
            if not inner:
                values[name] = parse(name, text.strip(), hints[name])
            elif isinstance(values[name], dict):
                _place(values[name], inner, parse_json(text.strip()), key)
            else:
                raise InvalidValue("--set", key, f"{name} has no parts", f"write {name}=value")
        return RunConfig.from_json(values)

    def first_difference(self, other: RunConfig) -> tuple[str, Any, Any] | None:
        """The first setting in which two configs differ: dotted name, this value, the other's."""
        return _first_difference("", self.to_json(), other.to_json())


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
