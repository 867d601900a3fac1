"""A chain that its large steps throw out gives no samples, says so, and goes back."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gossamer as gs
from gossamer.errors import NonFinite
from gossamer.inference import Batch
from gossamer.inference.divergence import Watch
from gossamer.inference.group import ALONE
from gossamer.likelihoods import Bernoulli, Categorical, Gaussian, Poisson
from gossamer.train import RunConfig, read_records, train

STEPS = 400


def task() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 8, generator=draw)
    y = torch.sin(x[:, :1]) + 0.1 * torch.randn(2000, 1, generator=draw)
    return x, (y - y.mean()) / y.std()


def chain(lr: float, name: str = "csghmc", **options: Any) -> Any:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    options = {"cycles": 4, "lr": lr, **options}
    return gs.build(name, net, num_data=2000, total_steps=STEPS, likelihood="gaussian", **options)


def walk(method: Any, first: int = 0, last: int = STEPS) -> list[Any]:
    """The steps from ``first`` to ``last``; every one has a batch and noise of its own."""
    x, y = task()
    infos = []
    for step in range(first, last):
        torch.manual_seed(step)
        rows = torch.randint(2000, (100,))
        infos.append(method.step((x[rows], y[rows])))
    return infos


def notes(infos: list[Any]) -> list[str]:
    return [info.note for info in infos if info.note is not None]


@pytest.fixture(scope="module")
def thrown() -> tuple[Any, list[Any]]:
    """A chain whose step of 0.1 throws some of its cycles out, not all."""
    method = chain(0.1)
    return method, walk(method)


def test_no_sample_of_a_lost_cycle_is_kept(thrown: tuple[Any, list[Any]]) -> None:
    method, infos = thrown
    told = notes(infos)
    assert 0 < len(told) < 4
    assert len(method.samples) == 3 * (4 - len(told))
    for note in told:
        assert "diverged: mean NLL" in note
        assert "a constant answer has 1.4" in note
    lost = [int(note.split()[1]) for note in told]
    halves = [[i.nll for i in infos[100 * c - 50 : 100 * c]] for c in lost]
    assert all(sum(half) / len(half) > 2.4 for half in halves), "by hand"
    x, y = task()
    found = method.posterior().predict(x, 12)
    assert float((found.mean - y[:, 0]).square().mean().sqrt()) < 1.0
    for sample in method.samples:
        net = copy.deepcopy(method.model)
        net.load_state_dict(sample)
        assert float((net(x) - y).detach().square().mean()) < 2.0


def test_it_goes_back_to_its_last_sample(thrown: tuple[Any, list[Any]]) -> None:
    """Network, noise and velocity; the next cycle begins there."""
    _, infos = thrown
    number = next(int(note.split()[1]) for note in notes(infos) if "1 of" not in note)
    method = chain(0.1)
    walk(method, 0, 100 * (number - 1))
    sample, noise = method.samples[-1], method.likelihood.raw_noise_std.clone()
    walk(method, 100 * (number - 1), 100 * number)
    assert all(torch.equal(t, sample[n]) for n, t in method.model.state_dict().items())
    assert torch.equal(method.likelihood.raw_noise_std, noise)
    buffers = [s["momentum_buffer"] for s in method.optimizer.state.values()]
    assert buffers
    assert not any(bool(buffer.any()) for buffer in buffers)


@pytest.mark.parametrize("at", [130, 185, 192, 230])
def test_a_stop_changes_nothing(thrown: tuple[Any, list[Any]], at: int) -> None:
    straight, infos = thrown
    first = chain(0.1)
    before = walk(first, 0, at)
    second = chain(0.1)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert notes(before + walk(second, at)) == notes(infos)
    for a, b in zip(straight.samples, second.samples, strict=True):
        assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_chain_without_any_sample_is_an_error() -> None:
    with pytest.raises(NonFinite, match=r"chain: gave no sample.*lower lr"):
        walk(chain(0.2))


@pytest.mark.parametrize("name", ["csghmc", "csgld", "cv_sghmc"])
def test_a_healthy_chain_is_as_if_nobody_watched(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, and nothing is told."""
    lr = {"csghmc": 0.01, "csgld": 0.01, "cv_sghmc": 0.003}[name]
    watched = chain(lr, name)
    infos = walk(watched)
    monkeypatch.setattr(Watch, "verdict", lambda self: None)
    alone = chain(lr, name)
    assert notes(infos) == []
    assert [i.nll for i in infos] == [i.nll for i in walk(alone)]
    assert len(watched.samples) == len(alone.samples) == 12
    for a, b in zip(watched.samples, alone.samples, strict=True):
        assert all(torch.equal(a[n], b[n]) for n in a)


def test_states_of_earlier_versions_go_on() -> None:
    method = chain(0.01)
    walk(method, 0, 130)
    state = copy.deepcopy(method.state_dict())
    for key in ("watch", "lost", "likelihood_then"):
        del state[key]
    again = chain(0.01)
    again.load_state_dict(state)
    walk(method, 130, 220)
    walk(again, 130, 220)
    for a, b in zip(method.samples, again.samples, strict=True):
        assert all(torch.equal(a[n], b[n]) for n in a)


class TestConstant:
    """The threshold: the best constant answer, and a nat per target or twice its errors."""

    @pytest.mark.parametrize("likelihood", ["labels", "logit", "noise", "fixed"])
    def test_just_below_and_just_above(self, likelihood: str) -> None:
        draw = torch.Generator().manual_seed(3)
        y = torch.randint(3, (600,), generator=draw)
        kinds: dict[str, tuple[Any, Tensor, float]] = {
            "labels": (Categorical(), y, 0.0),
            "logit": (Bernoulli(), (y == 0).float(), 0.0),
            "noise": (Gaussian(), torch.randn(600, 2, generator=draw), 0.0),
            "fixed": (Gaussian(0.1), torch.randn(600, generator=draw), 0.0),
        }
        kind, target, _ = kinds[likelihood]
        if likelihood == "labels":
            share = torch.bincount(target) / 600
            constant = -float((share * share.log()).sum())
        elif likelihood == "logit":
            p = float(target.mean())
            constant = -p * math.log(p) - (1 - p) * math.log(1 - p)
        else:
            scale = target.std(0, correction=0) if likelihood == "noise" else torch.tensor(0.1)
            normal = torch.distributions.Normal(target.mean(0), scale)
            constant = -float(normal.log_prob(target).reshape(600, -1).sum(1).mean())
        # A noise of 0.1 given for targets that vary more: twice the errors of the constant.
        margin = {"noise": 2.0, "fixed": 50.0 * float(target.double().var(correction=0))}.get(
            likelihood, 1
        )
        for excess, is_lost in ((0.999, False), (1.001, True)):
            watch = Watch(kind, ALONE)
            for rows in torch.arange(600).split(50):
                watch.note(Batch(torch.zeros(50, 1), target[rows]), constant + excess * margin)
            assert (watch.verdict() is not None) is is_lost

    def test_weights_count(self) -> None:
        y = torch.tensor([0, 1, 1, 1])
        weight = torch.tensor([6.0, 2.0, 0.0, 0.0])
        entropy = -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
        watch = Watch(Categorical(), ALONE)
        watch.note(Batch(torch.zeros(4, 1), y, weight), 2.0 * (entropy + 0.99))  # mean weight 2
        assert watch.verdict() is None
        watch.note(Batch(torch.zeros(4, 1), y, weight), 2.0 * (entropy + 1.02))
        assert watch.verdict() is not None

    def test_counts_have_no_such_answer(self) -> None:
        watch = Watch(Poisson(), ALONE)
        watch.note(Batch(torch.zeros(4, 1), torch.ones(4)), 1e9)
        assert watch.verdict() is None


def test_a_run_tells_and_records_it(tmp_path: Path) -> None:
    x, y = task()
    np.savez(
        tmp_path / "d.npz",
        x_train=x[:1500],
        y_train=y[:1500, 0],
        x_test=x[1500:],
        y_test=y[1500:, 0],
    )
    config = RunConfig(
        data=str(tmp_path / "d.npz"),
        task="regression",
        method="csghmc",
        method_options={"cycles": 4, "lr": 0.1},
        model_options={"hidden": [32]},
        epochs=32,
        batch_size=100,
        num_samples=4,
    )
    train(config, tmp_path / "run")
    records = read_records(tmp_path / "run" / "record.jsonl")
    told = [record["text"] for record in records if record["kind"] == "note"]
    assert any("diverged: mean NLL" in text for text in told)
