"""Scalars for trackers: what is sent, to whom, and that a resumed run has every point once."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gossamer.cli.main import main
from gossamer.errors import CheckpointError, InvalidValue, MissingDependency
from gossamer.train import Observer, Restarts, RunConfig, ScalarLog, fit, scalars, train
from train.sittings import After

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
DATA = (X, (X.sum(1) > 0).long())
SWAPS = {"sparsity": 0.5, "update_every": 3}


class Seen:
    """A tracker that keeps what it gets: all points by name, as (step, value)."""

    def __init__(self) -> None:
        self.points: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self.flushed_at: list[int] = []
        self.last = 0

    def log(self, values: dict[str, float], step: int) -> None:
        self.last = step
        for name, value in values.items():
            self.points[name].append((step, value))

    def flush(self) -> None:
        self.flushed_at.append(self.last)


class Watch(Observer):
    """What the loop itself says of every step and epoch."""

    def __init__(self) -> None:
        self.steps: list[Any] = []
        self.epochs: list[Any] = []

    def on_step(self, fit: Any, info: Any) -> None:
        self.steps.append(info)

    def on_epoch(self, fit: Any, epoch: Any) -> None:
        self.epochs.append((epoch, fit.method.posterior().size))


def test_every_scalar_is_the_loops_own() -> None:
    seen, watch = Seen(), Watch()
    options: dict[str, Any] = {"epochs": 3, "batch_size": 10, "validation": DATA, **SWAPS}
    fit(DATA, "ssvi", observers=[watch, ScalarLog(seen, every=2)], **options)
    for name in ("loss", "nll", "kl", "kl_weight", "lr", "accuracy"):
        wanted = [(n + 1, getattr(info, name)) for n, info in enumerate(watch.steps)][1::2]
        assert seen.points[f"train/{name}"] == wanted, name
    swaps = [(n + 1, info.swap) for n, info in enumerate(watch.steps) if info.swap]
    assert len(swaps) >= 2
    for name in ("removed", "added"):
        wanted = [(n, sum(getattr(s, name) for s in swap.layers.values())) for n, swap in swaps]
        assert seen.points[f"swap/{name}"] == wanted
    assert seen.points["swap/fraction"] == [(n, swap.fraction) for n, swap in swaps]
    for name in ("loss", "nll", "accuracy"):
        assert seen.points[f"epoch/{name}"] == [(e.step, e.train[name]) for e, _ in watch.epochs]
    assert seen.points["val/nll"] == [(e.step, e.val["nll"]) for e, _ in watch.epochs]
    for name in ("nnz", "sparsity"):
        assert seen.points[f"network/{name}"] == [(e.step, s[name]) for e, s in watch.epochs]
    assert seen.flushed_at == [4, 8, 12]


def test_a_fit_is_the_same_with_a_log() -> None:
    one = fit(DATA, "ssvi", epochs=2, **SWAPS).method.state_dict()["model"]
    two = fit(DATA, "ssvi", epochs=2, log=Seen(), **SWAPS).method.state_dict()["model"]
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_restarts_are_told_apart() -> None:
    seen = Seen()
    fit(DATA, "sgd", epochs=2, validation=DATA, log=seen, restarts=Restarts(2, ((1, 1),)))
    counts = sorted(len(seen.points[f"{number}/epoch/loss"]) for number in (0, 1))
    assert counts == [1, 2], "both begin, one goes on"
    assert "epoch/loss" not in seen.points


class ByMetrics:
    """As mlflow and the loggers of Lightning."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.got.append((metrics, step))


class ByLog(ByMetrics):
    """As wandb: keywords of its own behind the step."""

    log_metrics = None  # type: ignore[assignment]

    def log(self, data: dict[str, float], step: int | None = None, commit: Any = None) -> None:
        self.got.append((data, step))


class ByScalar(ByMetrics):
    """As a SummaryWriter."""

    log_metrics = None  # type: ignore[assignment]

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.got.append(({tag: scalar_value}, global_step))


@pytest.mark.parametrize("kind", [ByMetrics, ByLog, ByScalar])
def test_trackers_of_every_kind(kind: type[ByMetrics]) -> None:
    tracker = kind()
    scalars.sender_of(tracker)({"a": 1.0}, 7)
    assert tracker.got == [({"a": 1.0}, 7)]


def test_a_function_will_do() -> None:
    got: list[Any] = []
    scalars.sender_of(lambda values, step: got.append((values, step)))({"a": 1.0}, 7)
    assert got == [({"a": 1.0}, 7)]


@pytest.mark.parametrize("log", [logging.getLogger("x"), "tensorboard", 3, ByLog])
def test_what_is_no_tracker_is_refused(log: Any) -> None:
    with pytest.raises(InvalidValue, match=r"^log = .*must be a tracker.*SummaryWriter"):
        fit(DATA, "sgd", epochs=1, log=log)


def test_steps_between_sendings_are_checked() -> None:
    with pytest.raises(InvalidValue, match="every = 0: must be at least 1"):
        ScalarLog(Seen(), every=0)


# ----- runs -----


def test_a_run_sends_its_results_and_a_stop_leaves_neither_hole_nor_double(
    tmp_path: Path, small: RunConfig
) -> None:
    straight, cut = Seen(), Seen()
    whole = train(small, tmp_path / "whole", log=straight)
    assert train(small, tmp_path / "cut", log=cut, stop=After(7)).status == "interrupted"
    assert cut.last <= 7
    assert cut.flushed_at[-1:] == [cut.last], "on disk before the checkpoint is"
    assert train(None, tmp_path / "cut", resume=True, log=cut).status == "finished"
    assert whole.metrics is not None
    assert straight.points["test/nll"] == [(whole.step, whole.metrics["nll"])]
    assert {k for k in straight.points if k.startswith("train/")}
    timed = ("test/seconds", "test/predict_seconds", "test/checkpoint_bytes")
    assert {k: v for k, v in cut.points.items() if k not in timed} == {
        k: v for k, v in straight.points.items() if k not in timed
    }


def test_results_of_the_validation_part_are_called_so(tmp_path: Path, small: RunConfig) -> None:
    seen = Seen()
    train(replace(small, evaluate_on="validation", epochs=1), tmp_path / "run", log=seen)
    assert "val/ece" in seen.points
    assert not [name for name in seen.points if name.startswith("test/")]


def test_without_the_package_the_extra_is_named_before_a_folder_is_made(
    tmp_path: Path, small: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scalars, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"tensorboard: .*gossamer\[tensorboard\]"):
        train(replace(small, log="tensorboard"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ----- TensorBoard itself, where it is installed (``make faces``) -----

real = pytest.mark.faces
quiet = pytest.mark.filterwarnings("ignore")  # its own


def curves(run: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a run."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    tags = found.Tags()["scalars"]
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in tags}


class Kill(Exception):
    """Ends a run as a kill does: nothing is saved."""


class Killer(Seen):
    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def log(self, values: dict[str, float], step: int) -> None:
        if step >= self.at:
            raise Kill


@real
@quiet
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_tensorboard_shows_every_point_once(tmp_path: Path, small: RunConfig, how: str) -> None:
    pytest.importorskip("tensorboard")
    config = replace(small, log="tensorboard", method_options=dict(SWAPS))
    whole = train(config, tmp_path / "whole")
    shown = curves(tmp_path / "whole")
    assert whole.metrics is not None
    assert shown["test/nll"] == [(whole.step, pytest.approx(whole.metrics["nll"], rel=1e-6))]
    per_epoch = whole.step // whole.epoch
    assert [step for step, _ in shown["val/nll"]] == list(
        range(per_epoch, whole.step + 1, per_epoch)
    )
    if how == "stopped":
        train(config, tmp_path / "cut", stop=After(per_epoch + 3))
    else:
        with pytest.raises(Kill):
            train(config, tmp_path / "cut", log=Killer(2 * per_epoch - 1))
    assert train(None, tmp_path / "cut", resume=True).status == "finished"
    again = curves(tmp_path / "cut")
    assert set(again) == set(shown)
    for name in set(shown) - {"test/seconds", "test/checkpoint_bytes"}:
        assert again[name] == shown[name], name


@real
@quiet
def test_a_run_may_go_on_with_curves_or_without(tmp_path: Path, small: RunConfig) -> None:
    pytest.importorskip("tensorboard")
    run = tmp_path / "run"
    train(small, run, stop=After(7))
    assert train(replace(small, log="tensorboard"), run, resume=True).status == "finished"
    assert min(step for step, _ in curves(run)["epoch/loss"]) > 7
    assert json.loads((run / "config.json").read_text())["log"] == "none", "as it was begun"


@real
@quiet
def test_the_command_writes_curves_only_when_asked(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    options = ["--data", "digits", "--limit-train", "200", "--epochs", "1", "--method", "sgd"]
    quietly = ["--quiet", "--no-report"]
    for name, log in (("with", ["--log", "tensorboard"]), ("without", [])):
        assert main(["train", *options, *quietly, *log, "--out", str(tmp_path / name)]) == 0
    assert "test/accuracy" in curves(tmp_path / "with")
    assert not (tmp_path / "without" / "tensorboard").exists()


@real
@quiet
def test_no_curve_is_written_through_a_link(tmp_path: Path, small: RunConfig) -> None:
    pytest.importorskip("tensorboard")
    run, config = tmp_path / "run", replace(small, log="tensorboard")
    train(config, run, stop=After(7))
    (run / "tensorboard" / "events.link").symlink_to(tmp_path / "thesis.txt")
    with pytest.raises(CheckpointError, match=r"events.link = .*is a symbolic link"):
        train(None, run, resume=True)
