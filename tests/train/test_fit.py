"""A fit without a folder: the steps of a run, its state, its stops and its observers."""

from __future__ import annotations

import copy
import dataclasses
import doctest
import importlib
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gossamer
import gossamer.train.evaluation
from gossamer.data import DataSet, from_arrays
from gossamer.errors import GossamerError, InvalidData, InvalidValue, NonFinite
from gossamer.inference import METHODS, StepInfo
from gossamer.models import build_model
from gossamer.train import (
    Batches,
    Epoch,
    Examples,
    Fit,
    Observer,
    Restarts,
    RunConfig,
    fit,
    load_dataset,
    read_records,
    train,
)
from gossamer.train.checkpoint import best, latest, load_checkpoint
from gossamer.train.codec import decode, encode
from train.bits import same

CPU = torch.device("cpu")


def points(count: int = 120, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.rand(count, 3, generator=torch.Generator().manual_seed(seed))
    return x, (x.sum(1) > 1.5).long()


def network() -> nn.Module:
    return build_model("mlp", input_shape=(3,), output_size=2, hidden=(8,))


def make(observers: tuple[Observer, ...] = (), **options: Any) -> Fit:
    """Three epochs of 4 steps, 120 examples."""
    torch.manual_seed(1)
    x, y = points()
    name = options.pop("name", "ssvi")
    settings = {"sparsity": 0.5, "update_every": 3} if name == "ssvi" else {}
    method = gossamer.build(name, network(), num_data=len(x), total_steps=12, **settings)
    examples = Examples(x, y, points(40, seed=1))
    return Fit(
        method,
        Batches(examples, 32, CPU),
        epochs=3,
        order=torch.Generator().manual_seed(2),
        validate=lambda m: gossamer.train.evaluation.validate(m, examples, num_samples=2, seed=0),
        observers=observers,
        **options,
    )


def timeless(state: dict[str, Any]) -> dict[str, Any]:
    history = [{**epoch, "seconds": 0.0} for epoch in state["history"]]
    return {**state, "seconds": 0.0, "epoch_seconds": 0.0, "history": history}


class StopAt(Observer):
    def __init__(self, *steps: int) -> None:
        self.steps, self.step, self.told = set(steps), 0, []  # type: ignore[var-annotated]

    def on_step(self, fit: Fit, info: StepInfo) -> None:
        self.step = fit.step

    def on_stop(self, fit: Fit) -> None:
        self.told.append(fit.step)

    def should_stop(self) -> bool:
        return self.step in self.steps


@pytest.mark.parametrize("select", ["last", "best"])
def test_a_fit_takes_the_steps_of_a_run(tmp_path: Path, small: RunConfig, select: Any) -> None:
    """Same data, settings and seed: the same bits, history and best state."""
    config = dataclasses.replace(small, epochs=4, lr=0.3, select=select, seed=3)  # too fast
    train(config, tmp_path)
    result = fit(
        load_dataset(config),
        "ssvi",
        lambda: build_model("mlp", input_shape=(1, 8, 8), output_size=10, hidden=(16,)),
        epochs=4,
        seed=3,
        select=select,
        num_samples=2,
        lr=0.3,
        **config.method_options,
    )
    found = {"last": latest, "best": best}[select](tmp_path / "checkpoints")
    assert same(result.method.state_dict(), load_checkpoint(found)["method"])
    epochs = [r for r in read_records(tmp_path / "record.jsonl") if r["kind"] == "epoch"]
    for mine, recorded in zip(result.history, epochs, strict=True):
        values = json.loads(json.dumps(dataclasses.asdict(mine)))
        for key in ("epoch", "step", "train", "val", "lr"):
            assert values[key] == recorded[key]
    assert result.best_epoch == min(epochs, key=lambda r: r["val"]["nll"])["epoch"]
    assert result.ending == "finished"


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("at", [(1,), (3, 8), (4,), (12,)])
def test_a_stopped_fit_goes_on_bit_for_bit(name: str, at: tuple[int, ...]) -> None:
    """In the middle of an epoch, at its end, and where nothing is left to do."""
    straight = make(name=name)
    assert straight.run()
    stop = StopAt(*at)
    fit = make((stop,), name=name)
    while not fit.run():
        state = copy.deepcopy(fit.state_dict())
        state = decode(*encode(state))  # as a checkpoint would keep it
        torch.manual_seed(99)  # somebody else draws in between
        fit = make((stop,), name=name)
        fit.load_state_dict(state)
        stop.steps -= {fit.step}
    assert stop.told == [step for step in at if step < 12]
    assert fit.ending == "finished"
    assert same(timeless(straight.state_dict()), timeless(fit.state_dict()))


def test_the_state_is_whole_whenever_an_observer_is_called() -> None:
    class Keep(Observer):
        def __init__(self) -> None:
            self.states: list[dict[str, Any]] = []

        def on_step(self, fit: Fit, info: StepInfo) -> None:
            if fit.step < 12 and fit.position < fit.feed.steps_per_epoch:
                self.states.append(copy.deepcopy(fit.state_dict()))

        def on_epoch(self, fit: Fit, epoch: Epoch) -> None:
            self.states.append(copy.deepcopy(fit.state_dict()))

    keep = Keep()
    straight = make((keep,))
    straight.run()
    assert len(keep.states) == 12
    for state in keep.states:
        fit = make()
        fit.load_state_dict(state)
        fit.run()
        assert same(timeless(fit.state_dict()), timeless(straight.state_dict()))


def test_patience_stops_after_epochs_without_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    nlls = itertools.chain([3.0, 1.0, 2.0, 1.0], itertools.repeat(0.5))
    monkeypatch.setattr(
        gossamer.train.evaluation, "validate", lambda *args, **kwargs: {"nll": next(nlls)}
    )
    x, y = points()
    result = fit((x, y), "sgd", network(), validation=(x, y), epochs=20, patience=2)
    assert [epoch.val["nll"] for epoch in result.history] == [3.0, 1.0, 2.0, 1.0]
    assert (result.ending, result.best_epoch) == ("patience", 2)


def test_the_best_state_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = points()

    def fitted(epochs: int, **options: Any) -> dict[str, Any]:
        nlls = iter([3.0, 1.0, 2.0, 4.0])
        with monkeypatch.context() as patch:
            patch.setattr(
                gossamer.train.evaluation, "validate", lambda *args, **kwargs: {"nll": next(nlls)}
            )
            told = {"validation": (x, y), "lr_schedule": "constant", **options}
            found = fit((x, y), "sgd", network_of(4), epochs=epochs, **told)
        return found.method.state_dict()

    assert same(fitted(4, select="best"), fitted(2))


def network_of(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return network()


def test_a_time_limit_ends_it_early() -> None:
    x, y = points()
    result = fit((x, y), "sgd", network(), epochs=10**6, time_limit=0.2)
    assert result.ending == "time_limit"
    assert 0 < len(result.history) < 10**5
    assert result.seconds < 60


def test_means_weigh_examples_and_a_bad_loss_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, int]] = []

    class Watch(Observer):
        def on_step(self, fit: Fit, info: StepInfo) -> None:
            seen.append((info.nll, 32 if fit.position < 4 else 24))

    one = make((Watch(),))
    one.run(until=1)
    expected = math.fsum(nll * count for nll, count in seen) / 120
    assert one.history[0].train["nll"] == pytest.approx(expected, rel=1e-14)
    real = one.method.step
    monkeypatch.setattr(
        one.method, "step", lambda batch: dataclasses.replace(real(batch), loss=math.nan)
    )
    with pytest.raises(NonFinite, match="loss = nan: at step 5"):
        one.run()


def test_validation_may_be_rare_but_never_misses_the_end() -> None:
    rare = make(validate_every=2)
    rare.run()
    assert [bool(epoch.val) for epoch in rare.history] == [False, True, True]
    every = make()
    every.run()
    assert same(rare.method.state_dict(), every.method.state_dict())


def test_a_built_method_is_trained_in_place() -> None:
    x, y = points()
    built = gossamer.build("sgd", network(), num_data=120, total_steps=4)
    before = copy.deepcopy(built.state_dict())
    result = fit((x, y), built, epochs=2)
    assert result.method is built
    assert result.best_epoch is None
    assert not same(before, built.state_dict())
    told: dict[str, Any] = {"restarts": Restarts(2), "lr": 0.1, "preset": "a", "model": network()}
    for name, value in told.items():
        with pytest.raises(InvalidValue, match=f"^{name} = .*cannot change a method that is built"):
            fit((x, y), built, epochs=2, **{name: value})


def test_names_of_models_and_real_targets() -> None:
    x, _ = points()
    result = fit((x, x.sum(1)), "ssvi", "mlp", validation=(x, x.sum(1)), epochs=2, sparsity=0.9)
    assert set(result.history[-1].val) == {"rmse", "nll"}
    assert gossamer.predict(result.method, x[:5]).mean.shape == (5,)  # type: ignore[union-attr]


def test_the_callers_generator_and_network_are_left_alone() -> None:
    x, y = points()
    net = network()
    before = copy.deepcopy(net.state_dict())
    torch.manual_seed(123)
    expected = torch.rand(3)
    torch.manual_seed(123)
    fit((x, y), "sgd", net, epochs=1)
    assert torch.rand(3).equal(expected)
    assert same(dict(net.state_dict()), dict(before))


def training_part_alone(config: RunConfig) -> DataSet:
    """A data set whose test and validation parts are absent."""
    return dataclasses.replace(load_dataset(config), validation=None, test=None)


def test_neither_a_test_nor_a_validation_part_is_needed(small: RunConfig) -> None:
    data = training_part_alone(small)
    result = fit(data, "sgd", epochs=1)
    assert result.history[0].val == {}
    for option in ({"patience": 2}, {"select": "best"}, {"restarts": Restarts(2)}):
        with pytest.raises(InvalidValue, match="needs a validation part"):
            fit(data, "sgd", epochs=1, **option)  # type: ignore[arg-type]
    with pytest.raises(InvalidData, match="test part of digits: is absent"):
        gossamer.train.evaluation.evaluate(result.method, data)


def test_a_run_says_before_it_starts_that_there_is_no_test_part(
    tmp_path: Path, small: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gossamer.train.assembly, "load_dataset", training_part_alone)
    with pytest.raises(InvalidData, match="have no test part; give one, or set evaluate_on"):
        train(small, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epochs": 0}, "epochs = 0: must be a whole number ≥ 1"),
        ({"batch_size": 500}, "must not exceed the number of training examples, 120"),
        ({"device": "tpu"}, "device = tpu: must be auto, cpu"),
        ({"time_limit": 0.0}, "time_limit = 0.0"),
        ({"select": "first"}, "select = first: is not known"),
        ({"sparcity": 0.5}, "setting of sgd = sparcity"),
        ({"validation": (torch.zeros(3, 3), torch.zeros(2))}, "must have as many as y: 2"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(GossamerError) as caught:
        fit(points(), "sgd", network(), **{"epochs": 1, **options})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_examples_of_weight_0_do_not_count() -> None:
    """Their labels may then be anything; where all weights are 1 nothing changes at all."""
    x, y = points()
    weight = (torch.arange(120) % 3 > 0).float()
    wrong, net = torch.where(weight > 0, y, 1 - y), network()

    def fitted(target: Tensor, weights: Tensor | None) -> list[Tensor]:
        data = from_arrays(
            x, target, task="classification", weight=weights, validation_fraction=0.0
        )
        return list(fit(data, "sgd", net, epochs=2).method.model.parameters())

    plain, ones = fitted(y, None), fitted(y, torch.ones(120))
    assert all(torch.equal(a, b) for a, b in zip(plain, ones, strict=True))
    some, others = fitted(y, weight), fitted(wrong, weight)
    assert all(torch.equal(a, b) for a, b in zip(some, others, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(some, plain, strict=True))
    with pytest.raises(InvalidData, match=r"weight = \(3,\): must be \(120,\)"):
        Examples(x, y, weight=torch.ones(3))


@pytest.mark.parametrize("module", ["fitting", "restarts"])
def test_the_examples_of_the_docstrings_run(module: str) -> None:
    found = doctest.testmod(importlib.import_module(f"gossamer.train.{module}"))
    assert found.attempted > 0
    assert found.failed == 0


def test_the_default_batch_takes_all_of_few_examples() -> None:
    x = torch.randn(43, 3)
    data = (x, (x.sum(1) > 0).long())
    few = fit(data, "sgd", seed=1, epochs=3)
    all_of_them = fit(data, "sgd", seed=1, epochs=3, batch_size=43)
    mine, theirs = (r.method.posterior().network().state_dict() for r in (few, all_of_them))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
