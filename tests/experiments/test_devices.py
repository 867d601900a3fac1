"""Where experiments compute: a task that builds a method does all of it on the device asked for.

There is no GPU where these tests run: the device is pretended, and its tensors refuse to meet those
of the CPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gossamer.errors import InvalidValue
from gossamer.experiments import EXPERIMENTS, FunctionTask, RunTask, Scope, Watch, fits
from gossamer.experiments.cvadam2023 import freeze, paths
from gossamer.experiments.cvadam2023.fashion import base_config, pruned_options
from gossamer.experiments.cvadam2023.table4 import problem, repeat
from gossamer.experiments.cvadam2023.table4.settings import METHODS, RepeatSettings
from gossamer.experiments.gossamer import moments
from gossamer.experiments.li2024ssvi.iou import iou_along_run
from gossamer.experiments.news import Interrupted
from gossamer.inference.pruning import Pruning
from gossamer.train import RunConfig
from train.pretended import pretending

DIGITS = RunConfig(data="digits", limit_train=200, epochs=2, model_options={"hidden": [16]})


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], Any]:
    """Calls something on the pretended device."""

    def call(function: Callable[[], Any]) -> Any:
        with pretending(monkeypatch) as device, monkeypatch.context() as patch:
            for module in (fits, problem):
                patch.setattr(module, "resolve_device", lambda name: device)
            return function()

    return call


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("example", [1, 3])
def test_chains(example: int, method: Pruning, watch: Watch, elsewhere: Any) -> None:
    about = replace(
        RepeatSettings.of(example, method, 0, seed=3),
        num_train=300,
        num_test=50,
        num_features=24,
        batch_size=64,
        epochs=12,
        warmup_epochs=2,
        candidates=3,
        rounds=((2, 2), (4, 1)),
        prune_threshold=0.018,
    )
    here = repeat.carry_out(about, watch)
    there = elsewhere(lambda: repeat.carry_out(about, watch))
    assert here["num_selected"] < 24
    for key in set(here) - {"seconds"}:
        is_number = isinstance(here[key], float)
        assert there[key] == (pytest.approx(here[key], rel=1e-3) if is_number else here[key]), key


def test_removed_sets(watch: Watch, elsewhere: Any) -> None:
    options = {"sparsity": 0.5, "update_every": 2}
    config = replace(DIGITS, method_options=options)
    here, there = iou_along_run(config, watch), elsewhere(lambda: iou_along_run(config, watch))
    assert len(here) == len(there) >= 2
    assert [at.removed for at in there] == [at.removed for at in here]


def test_moments(watch: Watch, elsewhere: Any) -> None:
    def compared() -> tuple[torch.device, list[moments.Compared]]:
        method, x, y = moments.trained(replace(DIGITS, method_options={"sparsity": 0.5}), watch)
        return x.device, moments.compare_ways(method, x[:20], y[:20], reference_samples=3)

    place, rows = elsewhere(compared)
    assert place == torch.device("meta")
    assert [row.way for row in rows] == [row.way for row in compared()[1]]


def test_frozen_chains(watch: Watch, elsewhere: Any) -> None:
    options = {**freeze.CONFIG.method_options, "cycles": 2, "samples_per_cycle": 1}
    config = replace(freeze.CONFIG, epochs=2, method_options=options, limit_train=200)
    settings = freeze.Settings(0.5, config)
    here = freeze.measure(settings, watch)
    there = elsewhere(lambda: freeze.measure(settings, watch))
    assert there["samples"] == here["samples"] == 2
    assert there["nll"] == pytest.approx(here["nll"], rel=1e-3)


@pytest.mark.parametrize("pruning", METHODS)
def test_paths(pruning: Pruning, fashion_dir: str, watch: Watch, elsewhere: Any) -> None:
    config = replace(
        base_config(fashion_dir),
        limit_train=160,
        epochs=2,
        batch_size=32,
        method="em_mcmc",
        method_options=pruned_options(pruning, 0.9, "layer"),
    )
    here = paths.observe(config, watch)
    there = elsewhere(lambda: paths.observe(config, watch))
    assert there.times == here.times
    assert there.course.hard_sparsity == pytest.approx(here.course.hard_sparsity, abs=0.02)
    assert there.channels[0].weights[0] == pytest.approx(here.channels[0].weights[0], rel=1e-2)


def settings_of(task: Any) -> Any:
    return task.config if isinstance(task, RunTask) else task.settings


@pytest.mark.parametrize("key", EXPERIMENTS)
def test_every_task_gets_the_device(key: str) -> None:
    experiment = EXPERIMENTS[key]
    scale = next(iter(experiment.scales), "")
    tasks = experiment.tasks(Scope(scale, data_dir="D", device="cuda:1"))
    for task in tasks:
        settings = settings_of(task)
        settings = getattr(settings, "config", settings)
        if isinstance(settings, dict):
            settings = RunConfig.from_json(settings)
        configs = getattr(settings, "configs", None)
        if configs is not None:
            assert {config["device"] for config in configs.values()} == {"cpu"}
        elif isinstance(task, FunctionTask) and task.alone:  # it measures the CPU
            assert settings.device == "cpu"
        elif not experiment.cpu_only:
            assert settings.device == "cuda:1", task.name


def test_devices_of_a_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    any_device, cpu_only = EXPERIMENTS["gossamer/demo"], EXPERIMENTS["gossamer/engines"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert any_device.scope().device == cpu_only.scope().device == "auto"
    with pytest.raises(InvalidValue, match="device = cuda: is not available here; use cpu"):
        any_device.scope(device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert any_device.scope(device="cuda").device == "cuda"
    assert any_device.scope().device == "auto"  # each task decides where it runs
    assert cpu_only.scope().device == "cpu"
    with pytest.raises(InvalidValue, match="gossamer/engines computes on the CPU; use cpu"):
        cpu_only.scope(device="cuda")


class After(Watch):
    """Asks to stop when it was asked so many times."""

    left = 3

    def is_set(self) -> bool:
        self.left -= 1
        return self.left <= 0


def claim(config: Path, device: str | None) -> None:
    """Let a run say that it was begun on another device, or know none as the first version."""
    values = json.loads(config.read_text())
    values.pop("device")
    config.write_text(json.dumps(values if device is None else {**values, "device": device}))


@pytest.mark.parametrize("stored", ["cuda", None])
def test_a_run_of_another_device_is_found_and_goes_on(
    stored: str | None, tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    task = RunTask("line", "line", replace(DIGITS, method="sgd", device="cpu"))
    with pytest.raises(Interrupted):
        task.carry_out(tmp_path, After(tmp_path, task.name))
    claim(tmp_path / task.name / "config.json", stored)
    assert task.found(tmp_path) is None
    task.carry_out(tmp_path, watch)  # on the CPU: there is no GPU
    row = task.found(tmp_path)
    assert row is not None
    assert replace(task, config=replace(task.config, device="cuda:1")).found(tmp_path) == row


def count(settings: freeze.Settings, watch: Watch) -> dict[str, Any]:
    return {"epochs": settings.config.epochs}


@pytest.mark.parametrize("stored", ["cuda", None])
def test_a_row_of_another_device_is_found(stored: str | None, tmp_path: Path, watch: Watch) -> None:
    """Also one that knows no device: rows of the first version."""
    task = FunctionTask("row", count, freeze.Settings(0.5, DIGITS))
    task.carry_out(tmp_path, watch)
    path = tmp_path / "rows" / "row.json"
    values = json.loads(path.read_text())
    assert values["settings"] == json.loads(json.dumps(asdict(task.settings)))
    values["settings"]["config"].pop("device")
    if stored is not None:
        values["settings"]["config"]["device"] = stored
    path.write_text(json.dumps(values))
    assert task.found(tmp_path) == {"epochs": 2}
