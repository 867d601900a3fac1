"""No answer from, nor with, a number that is not finite: files, statistics, mixtures, tables."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gossamer as gs
from gossamer.cli.main import main
from gossamer.data import Preparation
from gossamer.data.prepare import NumberColumn, TableInput, ValueTarget
from gossamer.errors import NonFinite
from gossamer.likelihoods import Gaussian
from gossamer.models import build_model
from gossamer.prediction import (
    Finish,
    GaussianDraws,
    Mixture,
    Posterior,
    StoredDraws,
    load,
    mixture,
    posterior_of,
)
from gossamer.prediction.low_rank import LowRankDraws
from gossamer.train import RunConfig, load_run, train
from gossamer.train.checkpoint import latest, load_checkpoint, save_checkpoint

MODEL = {"name": "mlp", "input_shape": [6], "output_size": 3, "options": {"hidden": [8]}}
BAD = (math.nan, math.inf, -math.inf)


def trained(name: str, **options: Any) -> Posterior:
    torch.manual_seed(0)
    net = build_model("mlp", input_shape=[6], output_size=3, hidden=[8])
    method = gs.build(name, net, num_data=40, total_steps=12, likelihood="categorical", **options)
    for _ in range(12):
        method.step((torch.randn(40, 6), torch.arange(40) % 3))
    posterior = method.posterior().frozen()
    posterior.about["model"] = MODEL
    return posterior


def a_tensor(posterior: Posterior) -> Tensor:
    """One that a single sample, or the last number of a Gaussian, depends on."""
    draws = posterior.draws
    if isinstance(draws, StoredDraws):
        first = draws.samples[0]
        return next(t for n, t in first.items() if n.endswith("weight_values"))
    if isinstance(draws, GaussianDraws):
        return draws.centres[-1].rho
    if isinstance(draws, LowRankDraws):
        return draws.centres[-1].points[-1]
    return list(draws.network.parameters())[-1].data


KINDS = {
    "ssvi": {"sparsity": 0.5},
    "sgd": {},
    "mc_dropout": {"rate": 0.3},
    "swag": {"sparsity": 0.3},
    "cv_adam": {},
    "csghmc": {"cycles": 3},
    "em_mcmc": {"cycles": 3, "target_sparsity": 0.6},
}


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("name", KINDS)
def test_no_archive_of_such_weights_is_loaded(tmp_path: Path, name: str, value: float) -> None:
    """Right checksum, whatever the kind; also where only a late sample would use the weight."""
    posterior = trained(name, **KINDS[name])
    a_tensor(posterior).view(-1)[0] = value
    posterior.save(tmp_path / "p.safetensors")
    with pytest.raises(NonFinite, match=r"in .*p\.safetensors = .*must be finite") as caught:
        load(tmp_path / "p.safetensors")
    assert "\n" not in str(caught.value)
    both = mixture([trained(name, **KINDS[name]), posterior])
    both.save(tmp_path / "m.safetensors")
    with pytest.raises(NonFinite, match=r"in .*m\.safetensors"):
        load(tmp_path / "m.safetensors")


@pytest.mark.parametrize("kind", ["noise", "stored"])
def test_running_statistics_are_weights(kind: str) -> None:
    """What an infinite variance divides is 0, so that no answer would show it."""
    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    net[1].running_var[2] = math.inf
    draws = gs.prediction.NoiseDraws(net)
    posterior = Posterior(
        draws if kind == "noise" else StoredDraws(net, [net.state_dict()]), gs.Categorical()
    )
    assert torch.isfinite(net.eval()(torch.ones(2, 6))).all(), "the network hides it"
    with pytest.raises(NonFinite, match=r"1\.running_var = inf"):
        posterior.predict(torch.ones(2, 6))


@pytest.mark.parametrize("kind", ["noise", "stored"])
def test_masks_may_hold_infinities(kind: str) -> None:
    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)
            self.register_buffer("mask", torch.tensor([0.0, -math.inf, 0.0]))

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) + self.mask

    net = Causal()
    draws = gs.prediction.NoiseDraws(net)
    posterior = Posterior(
        draws if kind == "noise" else StoredDraws(net, [net.state_dict()]), gs.Categorical()
    )
    posterior.require_finite()
    assert posterior.predict(torch.ones(2, 6)).probs[:, 1].tolist() == [0.0, 0.0]


def real(shift: float) -> Posterior:
    net = nn.Linear(1, 1)
    nn.init.zeros_(net.weight)
    nn.init.constant_(net.bias, shift)
    return posterior_of(net, Gaussian())


def test_what_members_differ_by_is_asked_too() -> None:
    """Every member answers 3e38 or less; the deviations of both, widened, do not fit."""
    far = mixture([real(3e38), real(-3e38)]).finished(Finish(temperature=3.0))
    assert isinstance(far, Mixture)
    for member in far.members:
        member.predict(torch.zeros(1, 1))
    with pytest.raises(NonFinite, match=r"of row 0 = inf"):
        far.predict(torch.zeros(1, 1))


def test_tables_are_finite_in_original_units() -> None:
    posterior = real(5.0)
    target = ValueTarget("y", (0.0,), (1e308,), vector=False)
    posterior.preparation = Preparation(TableInput((NumberColumn("x", "float"),)), target)
    with pytest.raises(NonFinite, match=r"mean of row 0 = inf.*original units"):
        posterior.predict_table({"x": torch.zeros(1).numpy()})


def test_a_likelihood_of_noise_that_is_not_finite() -> None:
    posterior = real(0.0)
    parameter = next(posterior.likelihood.parameters())
    with torch.no_grad():
        parameter.fill_(math.nan)
    with pytest.raises(NonFinite, match="likelihood"):
        posterior.require_finite()
    with pytest.raises(NonFinite):
        posterior.predict(torch.zeros(1, 1))


@pytest.mark.parametrize("method", ["ssvi", "csghmc", "cv_adam"])
@pytest.mark.parametrize("where", ["checkpoint", "posterior"])
def test_no_command_answers_from_such_a_run(
    tmp_path: Path, method: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    config = RunConfig(
        data="digits",
        limit_train=300,
        method=method,
        model_options={"hidden": [8]},
        method_options={} if method == "ssvi" else {"cycles": 2},
        epochs=2,
        num_samples=2,
    )
    train(config, run)
    file = run / "posterior.safetensors"
    if where == "posterior":
        posterior = load(file)
        a_tensor(posterior).view(-1)[0] = math.nan
        posterior.save(file)
    else:
        file.unlink()
        found = latest(run / "checkpoints")
        assert found is not None
        state = load_checkpoint(found)
        _spoil(state["method"])
        stated = json.loads((found.path / "checksum.json").read_text())
        for path in found.path.iterdir():
            path.unlink()
        found.path.rmdir()
        again = save_checkpoint(run / "checkpoints", found.step, state)
        sums = json.loads((again / "checksum.json").read_text())["sha256"]
        (again / "checksum.json").write_text(json.dumps({**stated, "sha256": sums}))
    with pytest.raises(NonFinite, match="must be finite"):
        load_run(run)
    rows = tmp_path / "rows.csv"
    rows.write_text("x\n1\n")
    for words in (["predict", str(run), str(rows)], ["evaluate", str(run)]):
        assert main(words) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert "must be finite" in err


def _spoil(state: Any) -> None:
    """Every floating tensor of a state gets a NaN."""
    if isinstance(state, Tensor):
        if state.is_floating_point() and state.numel():
            state.view(-1)[0] = math.nan
    elif isinstance(state, dict):
        for value in state.values():
            _spoil(value)
    elif isinstance(state, list | tuple):
        for value in state:
            _spoil(value)
