"""Runs and fits whose networks predict together."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.cli import settings
from gossamer.cli.train import default_out
from gossamer.errors import InvalidValue
from gossamer.inference.members import Members
from gossamer.models import build_model
from gossamer.train import RunConfig, fit, load_dataset, load_run, read_records, train
from gossamer.train.device import portable
from train.bits import same
from train.sittings import Watch

WEIGHTS = 64 * 16 + 16 * 10


def members(small: RunConfig, **changes: Any) -> RunConfig:
    return dataclasses.replace(small, **{"method": "rigl", "members": 2, **changes})


@pytest.fixture(scope="module")
def run(small: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Watch]:
    watch, out = Watch(), tmp_path_factory.mktemp("members")
    torch.set_num_threads(1)
    train(members(small), out, progress=watch)
    return out, watch


def test_the_total_is_exact_in_every_file(run: tuple[Path, Watch], small: RunConfig) -> None:
    out, watch = run
    total = round(0.2 * WEIGHTS)
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["nnz"] == total
    assert metrics["sparsity"] == pytest.approx(1 - total / WEIGHTS)
    records = read_records(out / "record.jsonl")
    assert {r["nnz"] for r in records if r["kind"] == "epoch"} == {total}
    swaps = [r for r in records if r["kind"] == "swap"]
    assert swaps
    for swap in swaps:
        assert sum(layer["nnz"] for layer in swap["layers"].values()) == total
        assert {name[0] for name in swap["layers"]} == {"0", "1"}
    assert metrics["checkpoint_bytes"] > 0
    assert any("rigl, 2 members on digits" in text for text in watch.messages)


def test_what_was_saved_predicts_alike(run: tuple[Path, Watch], small: RunConfig) -> None:
    out, _ = run
    loaded = load_run(out).posterior
    alone = gs.load(out)
    by_state = load_run(out, select="last").posterior
    x = load_dataset(small).test.x[:20]
    answers = [p.predict(x, 2, seed=1).samples for p in (loaded, alone, by_state)]
    assert answers[0].shape == (2, 20, 10)
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])
    assert not torch.equal(answers[0][0], answers[0][1])
    assert float(alone.predict(x, 2).mutual_information.max()) > 0.0


def test_a_fit_has_the_bits_of_a_run(run: tuple[Path, Watch], small: RunConfig) -> None:
    out, _ = run
    data = load_dataset(small)
    shape = tuple(data.input_shape)
    made = fit(
        data,
        "rigl",
        lambda: build_model("mlp", input_shape=shape, output_size=10, hidden=(16,)),
        epochs=3,
        members=2,
        sparsity=0.8,
        update_every=3,
        num_samples=2,
    )
    x = data.test.x[:20]
    ours = made.method.posterior().predict(x, 2).samples
    assert torch.equal(ours, gs.load(out).predict(x, 2).samples)


def test_cycles_and_ensembles_run(small: RunConfig, tmp_path: Path) -> None:
    three = members(small, members=None, harvest="cycles")
    metrics = train(three, tmp_path / "cycles").metrics
    assert metrics is not None
    assert metrics["nnz"] == 3 * (round(0.2 * WEIGHTS) // 3), "three unless told"
    stored = json.loads((tmp_path / "cycles" / "config.json").read_text())
    assert stored["harvest"] == "cycles"
    dense = members(small, method="ensemble", method_options={}, members=None)
    metrics = train(dense, tmp_path / "five").metrics
    assert metrics is not None
    assert (metrics["nnz"], metrics["sparsity"]) == (5 * WEIGHTS, 0.0)
    told = members(small, method="ensemble", method_options={"members": 3}, epochs=1, members=None)
    train(told, tmp_path / "three")
    assert len(gs.load(tmp_path / "three").members) == 3


def test_refusals(small: RunConfig, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="csghmc samples"):
        train(members(small, method="csghmc", method_options={}), tmp_path / "a")
    twice = members(small, method="ensemble", method_options={"members": 3})
    with pytest.raises(InvalidValue, match=r"method_options.members = 3: contradicts members = 2"):
        train(twice, tmp_path / "b")
    with pytest.raises(InvalidValue, match="member_sparsity"):
        train(members(small, members=None, member_sparsity=0.9), tmp_path / "c")
    with pytest.raises(InvalidValue, match="members"):
        members(small, members=0)
    assert not list(tmp_path.iterdir()), "no folder before the settings are right"
    x, y = torch.randn(40, 3), torch.randint(2, (40,))
    with pytest.raises(InvalidValue, match="member_start"):
        fit((x, y), "sgd", nn.Linear(3, 2), epochs=1, batch_size=8, members=2)
    built = gs.build("sgd", nn.Linear(3, 2), num_data=40, total_steps=1)
    with pytest.raises(InvalidValue, match="members = 2: cannot change a method that is built"):
        fit((x, y), built, epochs=1, batch_size=8, members=2)


def test_options_of_the_command() -> None:
    config = settings.apply(RunConfig(), ["method=rigl", "members=2", "member_sparsity=0.9"])
    assert (config.members, config.member_sparsity, config.harvest) == (2, 0.9, "runs")
    assert default_out(config).name == "digits-mlp-rigl-0.95-x2-s0"
    assert settings.apply(config, ["harvest=cycles", "members=none"]).members is None
    assert RunConfig.from_json({"data": "digits"}).members is None, "a run of before"


def test_a_state_goes_to_another_device() -> None:
    """What is saved with the backends of one kind of device leaves them behind on another."""
    torch.manual_seed(0)
    given = {"num_data": 9, "total_steps": 4, "members": 2, "sparsity": 0.5}
    for harvest, inner in (("runs", "members"), ("cycles", "training")):
        method = gs.build("rigl", nn.Linear(8, 8), harvest=harvest, **given)
        assert isinstance(method, Members) == (harvest == "runs")
        state = method.state_dict()
        moved = portable(state, "cuda:0", torch.device("cpu"))
        parts = [one["state"] for one in moved[inner]] if inner == "members" else [moved[inner]]
        assert all(part["backends"] == {} for part in parts)
        assert same(portable(state, "cpu", torch.device("cpu")), state)
        method.load_state_dict(moved)
