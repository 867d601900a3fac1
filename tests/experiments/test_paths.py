"""``cvadam2023/paths``: masks and weights it saw are the run's, and its figures are files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from gossamer.errors import CheckpointError, InvalidData, InvalidValue
from gossamer.experiments import Finished, Scope, Watch, find_experiment, run_experiment
from gossamer.experiments.cvadam2023 import paths
from gossamer.experiments.cvadam2023.fashion import base_config, pruned_options
from gossamer.experiments.cvadam2023.paths import EXPERIMENT, Observed, observe
from gossamer.metrics import accuracy
from gossamer.prediction import predict
from gossamer.report.path_figures import choose_channels
from gossamer.train import (
    RunConfig,
    RunFolder,
    latest,
    load_checkpoint,
    load_dataset,
    load_run,
    train,
)
from gossamer.train.assembly import build_method

EPOCHS = 4


@pytest.fixture(scope="module")
def config(fashion_dir: str) -> RunConfig:
    return replace(
        base_config(fashion_dir),
        limit_train=320,
        epochs=EPOCHS,
        batch_size=32,
        method="em_mcmc",
        seed=7,
    )


def of(config: RunConfig, pruning: str) -> RunConfig:
    return replace(config, method_options=pruned_options(pruning, 0.9, "layer"))


@pytest.fixture(scope="module")
def seen(config: RunConfig, watch: Watch) -> dict[str, Observed]:
    return {p: observe(of(config, p), watch, records=3) for p in ("dfp", "dpf")}


def test_the_watched_run_is_a_run(
    config: RunConfig, seen: dict[str, Observed], tmp_path: Path
) -> None:
    """Same seed, same steps: weights, masks and accuracy at the end are those of ``train``."""
    for pruning in ("dfp", "dpf"):
        result = train(of(config, pruning), tmp_path / pruning)
        posterior = load_run(tmp_path / pruning).posterior
        method = build_method(*RunFolder(tmp_path / pruning).read_config())
        found = latest(tmp_path / pruning / "checkpoints")
        assert found is not None
        method.load_state_dict(load_checkpoint(found.path)["method"])
        course = seen[pruning].course
        assert course.hard_sparsity[-1] == pytest.approx(result.metrics["sparsity"], abs=1e-12)
        data = load_dataset(config)
        last = predict(posterior, data.x_val, 1)
        assert course.accuracy[-1] == accuracy(last.probs, data.y_val)
        kept = posterior.network().get_submodule("conv2").weight.abs().amax((0, 2, 3)) > 0
        weight = method.model.get_submodule("conv2").weight.detach()  # DPF: masked ones too
        channels = seen[pruning].channels
        assert [one.kept for one in channels] == kept.tolist()
        # 12 of the 50 x 25 weights of a channel, evenly spread, the first and the last among them.
        for one, column in zip(channels, weight.transpose(0, 1).flatten(1), strict=True):
            ends = torch.tensor([path[-1] for path in one.weights])
            assert len(ends) == 12
            assert (ends[[0, -1]] - column[[0, -1]]).abs().max() < 1e-6


def test_courses(seen: dict[str, Observed]) -> None:
    for pruning, watched in seen.items():
        course = watched.course
        assert course.epoch == list(range(EPOCHS + 1))
        assert course.hard_sparsity[0] == course.soft_sparsity[0] == 0.0
        assert course.hard_sparsity == sorted(course.hard_sparsity)
        pairs = zip(course.soft_sparsity, course.hard_sparsity, strict=True)
        assert all(soft >= hard for soft, hard in pairs)
        assert course.hard_sparsity[-1] == pytest.approx(0.9, abs=0.015)
        total = course.stored[0]
        left = round((1 - course.hard_sparsity[-1]) * total)
        assert course.stored[-1] == (left if pruning == "dfp" else total)
        assert watched.times[0] == 0.0
        assert watched.times[-1] == EPOCHS
        assert all(len(path) == len(watched.times) for c in watched.channels for path in c.weights)


def test_pruned_weights_stay_at_zero_under_dfp_and_are_held_under_dpf(
    seen: dict[str, Observed],
) -> None:
    assert all(all(path) for channel in seen["dpf"].channels for path in channel.weights)
    pruned = [channel for channel in seen["dfp"].channels if not channel.kept]
    assert len(pruned) == 18
    for path in (path for channel in pruned for path in channel.weights):
        zero = path.index(0.0)
        assert not any(path[zero:])
        assert all(path[:zero])


def test_the_folder(
    config: RunConfig,
    fashion_dir: str,
    tmp_path: Path,
    watcher: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert find_experiment("cvadam2023/paths") is EXPERIMENT
    monkeypatch.setattr(paths, "base_config", lambda data_dir: replace(config, epochs=2))
    out, display = tmp_path / "out", watcher()
    scope = Scope(seed=7, data_dir=fashion_dir)
    found = run_experiment(EXPERIMENT, scope, out=out, display=display)
    assert display.finished == ["DFP", "DPF"]
    stored = json.loads((out / "outcome.json").read_text())
    assert {**stored, **found.values} == stored
    assert list(stored["runs"]) == ["DFP", "DPF"]
    table, kept = found.parts
    assert [row[0] for row in table.rows] == ["0", "1", "2"]
    assert table.rows[2][8] == f"{stored['runs']['DPF']['stored'][2]:,}"
    assert kept.startswith("- DFP: input channels of conv2 kept: ")
    assert set(found.figures) == {"fig1.svg", "fig1-dpf.svg", "fig2.svg"}
    for name in found.figures:
        text = (out / name).read_text()
        assert text == found.figures[name]
        assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    # Read again: nothing is trained, and the figures come from the values alone.
    display = watcher()
    again = run_experiment(EXPERIMENT, Scope(seed=7), out=out, display=display)
    assert display.started == (2, 2)
    assert again == found
    assert again.figures == paths.figures(stored)
    with pytest.raises(CheckpointError, match="differ from the experiment's"):
        run_experiment(EXPERIMENT, Scope(seed=8), out=out, display=display)
    (out / "rows" / "DPF.json").unlink()
    row = json.loads((out / "rows" / "DFP.json").read_text())["row"]
    lost = paths.conclude(Finished("", scope, out, EXPERIMENT.tasks(scope), {"DFP": row}))
    assert (list(lost.values["runs"]), lost.parts, lost.figures) == (["DFP"], (), {})


def test_three_channels_of_each_kind() -> None:
    channels = [{"channel": i, "kept": i % 5 == 4} for i in range(20)]
    assert [one["channel"] for one in choose_channels(channels)] == [0, 1, 2, 4, 9, 14]
    assert [one["channel"] for one in choose_channels(channels[:5])] == [0, 1, 2, 4]


def test_refusals(config: RunConfig, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOSSAMER_DATA", raising=False)
    task = EXPERIMENT.tasks(Scope())[0]
    with pytest.raises(InvalidData, match="needs a data folder: give --data-dir"):
        task.function(task.settings, watch)
    with pytest.raises(InvalidValue, match="has no masks to watch"):
        observe(replace(config, method="sgd"), watch)
    with pytest.raises(InvalidValue, match="is no layer that starts dense"):
        observe(of(config, "dfp"), watch, layer="fc9")
