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
from gossamer.data.split import TEST_FRACTION
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
        screen: Whether an ``mlp`` reads, of a wide table, only the columns that matter, see
            docs/selection.md.
        method: A name of the registry of methods.
        method_options: Settings of the method, ``sparsity`` among them.
        members: How many networks train and predict together, see docs/members.md; ``None`` takes
            the method's own number, which is 1 of most; 3 of cycles.
        member_sparsity: Sparsity of each; ``None``: they share the weights that one network of the
            method's sparsity keeps.
        harvest: ``"runs"`` trains members one beside the other, ``"abreast"`` as one network, which
            is several times as fast for small perceptrons; ``"cycles"`` cuts one run into so many.
        leave_out: How many members each training row is left out of; those judge it honestly, see
            docs/members.md. 0: all learn from all.
        likelihood: ``None`` takes categorical for classes and gaussian for numbers. Others:
            ``bernoulli`` for two classes; ``student_t`` (outliers) and ``heteroscedastic`` (a noise
            for every row) for numbers; ``poisson`` and ``negative_binomial`` for counts.
        likelihood_options: Arguments of the likelihood: ``noise_std`` of gaussian and its ``start``
            (by default what a ridge regression leaves over), ``scale`` and
            ``degrees_of_freedom`` of student_t, ``dispersion`` of negative_binomial.
        epochs: Passes over the training split. ``None`` goes by ``steps``, or by the number of
            rows: 60 epochs of images; of tables 4000 steps for numbers, and for classes 60 epochs
            but 300 to 4000 steps; never fewer than 20 epochs.
        steps: Optimiser steps, as whole epochs, at least one; not beside ``epochs``.
        batch_size: Examples per step; 64, the default, stands for all of them where there are
            fewer.
        lr: Learning rate; ``None`` takes the method's own.
        seed: Of everything: split, initial weights, support, data order, noise.
        preset: A named set of the method's settings: ``"default"``, ``"paper"``.
        backend: How the sparse products are computed: ``auto``, ``native``, ``masked``.
        device: ``auto`` (a GPU of CUDA if there is one, else the CPU), ``cpu``, ``cuda``,
            ``cuda:N`` or ``mps``. A run may go on on another device, to rounding.
        limit_train: Use only so many training examples.
        validation_fraction: Share of the training examples kept for validation, in [0, 1); 0:
            none.
        test: Of a table: another table, whose rows are the test part.
        test_fraction: Of a table without one: the share of its rows that tests, in [0, 1); 0: there
            is no test part, and no test metrics.
        time_limit: Seconds of training after which it stops and is evaluated; ``None`` for none.
        num_samples: Weight draws per prediction in the final evaluation.
        noise: ``"weight"``, ``"local"``, or ``"both"`` (test metrics once for each).
        evaluate_on: What the final metrics are of: the ``"test"`` part, or, while settings are
            being chosen, the ``"validation"`` part; the test part is then not looked at.
        select: Tested is the ``"last"`` state, or the ``"best"`` checkpoint by validation NLL.
        finish: What the validation part adds when training has ended: ``"temperature"`` or
            ``"last_layer"`` (see docs/last-layer.md); or ``"left_out"``, what training rows add
            that members left out (``leave_out``). Where the metrics are of the validation part
            too, half of its rows chooses and the other half is measured.
        refit: Whether, when training has ended, the method is trained anew on training and
            validation rows together, for as many epochs as were kept; a temperature and what
            ``conformal`` decides are taken over. Beside ``last_layer`` a temperature stands in for
            it.
        conformal: Whether held-out rows also decide intervals and label sets, see
            docs/conformal.md; left aside where they are too few for 95 %, 19.
        patience: Stop where the validation NLL has not improved for so many epochs; ``None``
            trains all of them.
        checkpoint_every: Epochs between checkpoints; the best is chosen among them. ``None`` is
            every epoch, or, where ``epochs`` is not told, a sixtieth of them.
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
    screen: bool = False
    method: str = "ssvi"
    method_options: dict[str, Any] = field(default_factory=dict)
    members: Count | None = None
    member_sparsity: float | None = None
    harvest: Literal["runs", "abreast", "cycles"] = "runs"
    leave_out: Annotated[int, Within(0)] = 0
    likelihood: str | None = None
    likelihood_options: dict[str, Any] = field(default_factory=dict)
    epochs: Count | None = None
    steps: Count | None = None
    batch_size: Count = DEFAULT_BATCH
    lr: Annotated[float, Within(0.0)] | None = None
    seed: Annotated[int, Within(0, 2**63 - 1)] = 0
    preset: str = "default"
    backend: str = "auto"
    device: str = "auto"
    limit_train: Count | None = None
    validation_fraction: float = 0.1
    test: str | None = None
    test_fraction: float = TEST_FRACTION
    time_limit: Annotated[float, Within(0.0)] | None = None
    num_samples: Count = 5
    noise: Literal["weight", "local", "both"] = "weight"
    evaluate_on: Literal["test", "validation"] = "test"
    select: Literal["last", "best"] = "last"
    finish: Literal["none", "temperature", "last_layer", "left_out"] = "none"
    refit: bool = False
    conformal: bool = False
    patience: Count | None = None
    checkpoint_every: Count | None = None
    keep_checkpoints: Count = 2
    log: Literal["none", "tensorboard"] = "none"
    ood: tuple[str, ...] = ()
    shift: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, hint in hints_of(RunConfig).items():
            object.__setattr__(self, name, check(name, getattr(self, name), hint))
        if self.member_sparsity is not None and not 0.0 <= self.member_sparsity < 1.0:
            raise InvalidValue("member_sparsity", self.member_sparsity, "must lie in [0, 1)")
        for part in ("test", "validation"):
            share = getattr(self, f"{part}_fraction")
            if not 0.0 <= share < 1.0:
                rule, hint = "must lie in [0, 1)", f"0 is for no {part} part"
                raise InvalidValue(f"{part}_fraction", share, rule, hint)

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
