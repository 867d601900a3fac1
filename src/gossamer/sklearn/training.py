"""From raw rows to a posterior: preparation, ``fit``, the finishing step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from gossamer.data.build import build_dataset
from gossamer.data.dataset import DataSet
from gossamer.data.prepare import TableRules, Task
from gossamer.data.prepare.table_input import by_name, complete_rows
from gossamer.data.readers.parts import Part, join_parts
from gossamer.errors import InvalidData, InvalidValue, NonFinite, UnknownName
from gossamer.inference import METHODS, Method
from gossamer.models import build_model
from gossamer.prediction import (
    Posterior,
    calibrated,
    calibrated_by_scores,
    last_layer,
    tempered,
)
from gossamer.prediction.conformal.report import coverage_report
from gossamer.selection import Selection
from gossamer.settings import check
from gossamer.sklearn.budget import Auto, Budget, budget
from gossamer.sklearn.clock import Clock
from gossamer.sklearn.folds import FOLDS, by_folds, is_folded
from gossamer.sklearn.rows import RawRows, held_out_from
from gossamer.sklearn.sparsity import USUAL, Sparsity, remarks, resolved
from gossamer.train import FitResult, Observer, fit
from gossamer.train.budget import epochs_between_looks
from gossamer.train.config import Count
from gossamer.train.examples import Examples
from gossamer.train.finishing import LEAST_SCORES, judged_by_left_out
from gossamer.train.quality import METHODS as RECOMMENDED
from gossamer.train.quality import QUALITIES
from gossamer.train.refit import refitted
from gossamer.train.tables import TableRecipe, table_recipe
from gossamer.train.wide import options_of, screened, told

Module = nn.Module | Callable[[int, int], nn.Module]

_SAMPLES = 32
_LEAST_ROWS = 2
_LEAST_TO_FINISH = 2
_FEW_SCORES = "intervals are the model's own: fewer than 19 rows cannot calibrate them"
_UNCALIBRATED: dict[Task, str] = {
    "regression": "intervals are the model's own: {} rows were held out, and 19 could calibrate "
    "them; call calibrate with other rows",
    "classification": "there are no sets of labels: {} rows were held out, and 19 could decide "
    "them; call calibrate with other rows",
}
_NO_LAYER = (
    "held-out rows give the last layer no finite variance (training may be too long): "
    "a temperature stands in for it"
)


@dataclass(frozen=True, eq=False)
class Plan:
    """What an estimator asks of a fit; see its arguments.

    Attributes:
        label_names: Names of the classes; ``None`` for numbers.
        seed: Of everything random.
        observers: Who watches.
    """

    task: Task
    method: str | None
    quality: str
    members: Auto
    hidden: tuple[int, ...]
    module: Module | None
    sparsity: Sparsity
    max_steps: Auto
    batch_size: Auto
    early_stopping: bool
    validation_fraction: float
    time_limit: float | None
    rules: TableRules
    method_options: Mapping[str, Any]
    label_names: tuple[str, ...] | None
    seed: int
    refit: bool = False
    observers: tuple[Observer, ...] = ()


@dataclass(frozen=True, eq=False)
class Trained:
    """What training leaves.

    Attributes:
        posterior: That knows its preparation.
        result: The story of the fit.
        notes: What is worth telling.
        coverage: By level, the share of rows in the interval that other rows decided; of rows that
            their networks never saw. Empty where there are none.
        selection: Of the columns, where the table is wide.
    """

    posterior: Posterior
    result: FitResult
    notes: tuple[str, ...]
    coverage: dict[float, float]
    selection: Selection | None


def train(plan: Plan, rows: RawRows) -> Trained:
    """Prepare, train and finish.

    Scales and levels come from the rows that are trained on. Rows that no network saw choose the
    finishing step: those that members left out, or a held-out part, which also chooses the state
    that is kept. Weights that are no whole numbers count in the objective.
    """
    if plan.quality not in QUALITIES:
        raise UnknownName("quality", str(plan.quality), list(QUALITIES))
    if len(rows) < _LEAST_ROWS:
        rule = f"must hold at least {_LEAST_ROWS} rows"
        raise InvalidData("X", f"n_samples = {len(rows)}", rule, "add rows")
    if plan.rules.missing == "drop":
        rows = rows.at(np.flatnonzero(complete_rows(by_name(rows.x))))
    if plan.members != "auto":
        check("members", plan.members, Count)
    clock = Clock(plan.time_limit)
    leaves_out = _is_table_of_numbers(plan) and _recipe(plan, len(rows)).leave_out > 0
    fraction = _fraction(plan.validation_fraction)
    folded = plan.method is None and fraction > 0.0 and is_folded(plan.task, rows)
    given, held_out = held_out_from(
        rows,
        fraction=0.0 if leaves_out or folded else fraction,
        seed=plan.seed,
        by_class=plan.task == "classification",
    )
    data = _dataset(plan, given, None if held_out is None else held_out.evened())
    selection = None if plan.module is not None else screened(data, plan.seed)
    plan, said = _with_sparsity(plan, data, options_of(selection))
    method, settings, num_samples = _method(plan, data.num_train)
    length = _length(plan, data)
    examples = replace(Examples.of(data), validation_weight=_mean_weight(held_out))
    if settings.get("leave_out"):
        examples = examples.dealt(settings["members"], settings["leave_out"], plan.seed)
    told_twice: dict[str, Any] = {
        "epochs": length.epochs,
        "batch_size": length.batch_size,
        "seed": plan.seed,
        "device": "cpu",
        **settings,
    }
    network = _network(plan, data, options_of(selection))
    result = fit(
        examples,
        method,
        network,
        patience=length.patience,
        validate_every=1
        if length.selects
        else epochs_between_looks(length.epochs, by_left_out=leaves_out),
        select="best" if length.selects else "last",
        num_samples=min(num_samples, 3),
        observers=plan.observers,
        time_limit=clock.share(1 + FOLDS if folded else 1),
        **told_twice,
    )
    if result.ending == "time_limit":
        said += (
            f"time_limit = {plan.time_limit:g} ended training after {len(result.history)} of "
            f"{length.epochs} epochs: more time may give better answers",
        )
    found = result.method.posterior()
    if folded:
        found, coverage = by_folds(
            found,
            examples,
            lambda some, number: fit(
                some, method, network, time_limit=clock.share(FOLDS - number), **told_twice
            ).method.posterior(),
            num_samples=num_samples,
            seed=plan.seed,
        )
        notes: tuple[str, ...] = ()
    else:
        found, notes, coverage = _finished(plan, found, data, examples, num_samples)
    if plan.refit and examples.validation is not None:
        taught = _second_fit(
            plan,
            clock,
            examples,
            result.method,
            lambda rows, ends: fit(
                rows, method, network, observers=ends, time_limit=clock.left, **told_twice
            ),
            epochs=(result.best_epoch if length.selects else None) or len(result.history),
            num_samples=num_samples,
        )
        found = found if taught is None else taught
        if taught is None:
            said += (
                f"time_limit = {plan.time_limit:g} left too little for a second fit: the model is "
                "that of the first, which did not learn from the held-out rows",
            )
    posterior = found.frozen()
    posterior.preparation = data.preparation
    posterior.about = {
        **_architecture(plan, data, options_of(selection)),
        "method": method,
        "num_samples": num_samples,
        "seed": plan.seed,
    }
    screening = [] if selection is None else [told(selection)]
    hidden = plan.hidden if plan.module is None else None
    notes = (*data.notes, *screening, *said, *remarks(posterior, hidden), *notes)
    return Trained(posterior, result, notes, coverage, selection)


def _second_fit(
    plan: Plan,
    clock: Clock,
    examples: Examples,
    first: Method,
    refit: Callable[[Examples, list[Observer]], FitResult],
    *,
    epochs: int,
    num_samples: int,
) -> Posterior | None:
    """The posterior of a second fit, on all rows; ``None`` where there was no time for all of it.

    Half of a fit may be far behind the first one, which is then the better answer.
    """
    assert examples.validation is not None
    if clock.is_over:
        return None
    done: list[FitResult] = []

    def noted(rows: Examples, ends: list[Observer]) -> FitResult:
        done.append(refit(rows, ends))
        return done[0]

    found = refitted(
        first,
        examples,
        noted,
        epochs=epochs,
        finishes=plan.method is None,
        conformal=len(examples.validation[0]) >= LEAST_SCORES,
        look={"num_samples": num_samples, "seed": plan.seed},
    )
    return found if len(done[0].history) >= epochs else None


def _with_sparsity(
    plan: Plan, data: DataSet, options: Mapping[str, Any]
) -> tuple[Plan, tuple[str, ...]]:
    """The plan with a sparsity that suits the size of its network, and what is worth telling."""
    if plan.module is not None and plan.sparsity == "auto":
        return replace(plan, sparsity=USUAL), ()
    inputs = len(options.get("columns", range(data.input_shape[0])))
    sparsity = resolved(plan.sparsity, plan.hidden, inputs, data.output_size)
    is_told = plan.sparsity != "auto" or "sparsity" in plan.method_options
    if is_told or sparsity == USUAL or not _is_sparse(plan):
        return replace(plan, sparsity=sparsity), ()
    note = f"small network: sparsity is {sparsity:.3g}, not {USUAL}, so that it can learn"
    return replace(plan, sparsity=sparsity), (note,)


def _is_sparse(plan: Plan) -> bool:
    """Whether the method has a sparsity."""
    method = METHODS.get(plan.method or RECOMMENDED[plan.task][0])
    return method is not None and "sparsity" in {field.name for field in fields(method.config)}


def _length(plan: Plan, data: DataSet) -> Budget:
    """How long it trains; members that leave rows out have a budget of their own."""
    max_steps, batch_size = plan.max_steps, plan.batch_size
    if _is_table_of_numbers(plan):
        recipe = _recipe(plan, data.num_train)
        max_steps = recipe.steps if max_steps == "auto" else max_steps
        batch_size = recipe.batch_size if batch_size == "auto" else batch_size
    return budget(
        data.num_train,
        0 if data.validation is None else len(data.validation.x),
        max_steps=max_steps,
        batch_size=batch_size,
        early_stopping=plan.early_stopping,
        labels=plan.task == "classification",
    )


def _recipe(plan: Plan, num_rows: int) -> TableRecipe:
    return table_recipe(num_rows, QUALITIES[plan.quality].cost, _members(plan))


def _members(plan: Plan) -> int | None:
    return None if plan.members == "auto" else int(plan.members)


def _is_table_of_numbers(plan: Plan) -> bool:
    """Whether it has the recipe for numbers in tables."""
    return plan.method is None and plan.task == "regression"


def history_of(result: FitResult) -> list[dict[str, Any]]:
    """One plain mapping for every epoch: ``train_loss``, ``val_nll`` and so on."""
    found = []
    for epoch in result.history:
        values = asdict(epoch)
        for part in ("train", "val"):
            values.update({f"{part}_{key}": value for key, value in values.pop(part).items()})
        found.append(values)
    return found


def _method(plan: Plan, num_rows: int) -> tuple[str, dict[str, Any], int]:
    """Key, settings and samples per prediction: the recommended ones, or those asked for."""
    if plan.method is not None:
        if plan.method not in METHODS:
            raise UnknownName("method", str(plan.method), list(METHODS))
        if plan.members != "auto":
            rule, hint = "is of the recommended method", "give it in method_options"
            raise InvalidValue("members", plan.members, rule, hint)
        sparsity = {"sparsity": plan.sparsity} if _is_sparse(plan) else {}
        return plan.method, {**sparsity, **plan.method_options}, _SAMPLES
    if "members" in plan.method_options:
        count = plan.method_options["members"]
        rule, hint = "members are an argument of the estimator itself", f"give members={count!r}"
        raise InvalidValue("method_options", {"members": count}, rule, hint)
    method, options = RECOMMENDED[plan.task]
    settings = {**options, "sparsity": plan.sparsity, **plan.method_options}
    members, leave_out = _members(plan) or QUALITIES[plan.quality].members, 0
    if _is_table_of_numbers(plan):
        recipe = _recipe(plan, num_rows)
        members, leave_out = recipe.members, recipe.leave_out
    if members > 1:
        own = {"members": members, "member_sparsity": settings["sparsity"], "leave_out": leave_out}
        if leave_out and plan.module is None:
            own["harvest"] = "abreast"
        settings = {**own, **settings}
    return method, settings, members


def _mean_weight(rows: RawRows | None) -> float:
    """Evened rows count alike, and together as much as before."""
    return 1.0 if rows is None or rows.weight is None else float(rows.weight.mean())


def _fraction(fraction: float) -> float:
    if not 0.0 <= fraction < 1.0:
        rule = "must lie in [0, 1)"
        raise InvalidValue("validation_fraction", fraction, rule, "0.1 is usual, 0 is for none")
    return fraction


def _dataset(plan: Plan, given: RawRows, held_out: RawRows | None) -> DataSet:
    if plan.label_names is not None and len(np.unique(given.y)) < 2:
        raise InvalidData(
            "y",
            None,
            "must hold at least 2 classes of weight above 0; there is one class",
            "check the labels",
        )
    raw = join_parts(
        "X",
        Part("X", "y", given.x, given.y),
        validation=None if held_out is None else Part("X", "y held out", held_out.x, held_out.y),
        weight=given.weight,
        task=plan.task,
    )
    named = replace(raw, name="X and y", label_names=plan.label_names)
    return build_dataset(
        named, task=plan.task, validation_fraction=0.0, seed=plan.seed, rules=plan.rules
    )


def _network(
    plan: Plan, data: DataSet, options: Mapping[str, Any]
) -> nn.Module | Callable[[], nn.Module]:
    if isinstance(plan.module, nn.Module):
        return plan.module
    (features,) = data.input_shape
    if plan.module is not None:
        return partial(plan.module, features, data.output_size)
    return partial(
        build_model,
        "mlp",
        input_shape=data.input_shape,
        output_size=data.output_size,
        hidden=plan.hidden,
        **options,
    )


def _architecture(plan: Plan, data: DataSet, options: Mapping[str, Any]) -> dict[str, Any]:
    """What lets an archive be loaded without the network, where it has a name."""
    if plan.module is not None:
        return {}
    return {
        "model": {
            "name": "mlp",
            "input_shape": list(data.input_shape),
            "output_size": data.output_size,
            "options": {"hidden": list(plan.hidden), **options},
        }
    }


def _finished(
    plan: Plan, posterior: Posterior, data: DataSet, examples: Examples, num_samples: int
) -> tuple[Posterior, tuple[str, ...], dict[float, float]]:
    """With the finishing step of the recommended presets, and what is worth telling of it.

    Of other methods held-out rows decide intervals and sets of labels, and nothing else.
    """
    if examples.left_out is not None:
        return _by_left_out(posterior, examples, plan.seed)
    validation = data.validation
    count = 0 if validation is None else len(validation.x)
    few = (_UNCALIBRATED[plan.task].format(count),) if count < LEAST_SCORES else ()
    if validation is None or count < _LEAST_TO_FINISH:
        return posterior, few, {}
    held_out = (validation.x, validation.y)
    look: dict[str, Any] = {"num_samples": num_samples, "seed": plan.seed}
    found = posterior
    notes: tuple[str, ...] = few
    if plan.method is None:
        try:
            found = last_layer(posterior, held_out, rows=None, num_data=data.num_train, **look)
        except (InvalidData, NonFinite):
            # Where labels are all sure the last layer has no curvature, and no finite variance.
            found, notes = tempered(posterior, held_out, **look), (_NO_LAYER, *few)
    if count >= LEAST_SCORES:
        found = calibrated(found, held_out, **look)
    return found, notes, {}


def _by_left_out(
    posterior: Posterior, examples: Examples, seed: int
) -> tuple[Posterior, tuple[str, ...], dict[float, float]]:
    examples = examples.evened()
    judged = judged_by_left_out(posterior, examples, seed)
    scores = judged.standardised
    if scores is None or len(scores) < LEAST_SCORES:
        return judged.posterior, (_FEW_SCORES,), {}
    assert examples.left_out is not None
    report = coverage_report(scores, fold=examples.left_out[:, 0])
    # Of so few rows the others of a fold may have no interval of a high level.
    coverage = {each.level: each.held_out for each in report if math.isfinite(each.held_out)}
    return calibrated_by_scores(judged.posterior, scores), (), coverage
