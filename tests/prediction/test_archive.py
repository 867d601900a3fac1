"""One file holds all that predicts; damage is refused by the file's name; no code, no trainer."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import gossamer as gs
from cases.zoo import BACKENDS, MODELS, ids, mlp
from gossamer.data import Preparation
from gossamer.data.prepare import ClassTarget, NumberColumn, TableInput, ValueTarget
from gossamer.errors import CheckpointError, InvalidData, InvalidValue, NonFinite
from gossamer.likelihoods import Gaussian
from gossamer.models import build_model
from gossamer.prediction import GaussianDraws, Posterior, StoredDraws, load, posterior_of
from gossamer.train import RunConfig, load_run, train

MODEL = {"name": "mlp", "input_shape": [6], "output_size": 3, "options": {"hidden": [8]}}


def named(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return build_model("mlp", input_shape=[6], output_size=3, hidden=[8])


def trained(name: str, net: nn.Module, likelihood="categorical", **options):
    torch.manual_seed(1)
    method = gs.build(name, net, num_data=40, total_steps=12, likelihood=likelihood, **options)
    x = torch.randn(40, 6)
    y = torch.arange(40) % 3 if likelihood == "categorical" else torch.randn(40, 3)
    for _ in range(12):
        method.step((x, y))
    return method


def same(one: Posterior, two: Posterior, x: torch.Tensor) -> bool:
    fields = ("samples", "energy") if one.likelihood.has_labels else ("samples",)
    found = [
        (one.predict(x, 4, noise=noise, seed=2), two.predict(x, 4, noise=noise, seed=2))
        for noise in ("weight", "local")
    ]
    return all(torch.equal(getattr(a, f), getattr(b, f)) for a, b in found for f in fields)


@pytest.mark.parametrize("engine", BACKENDS)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ssvi", {"sparsity": 0.5}),
        ("dense_vi", {}),
        ("sgd", {}),
        ("mc_dropout", {"rate": 0.3}),
        ("swag", {"sparsity": 0.3}),
        ("cv_adam", {"sparsity": 0.3}),
        ("csghmc", {"cycles": 3, "sparsity": 0.5}),
        ("em_mcmc", {"cycles": 3, "target_sparsity": 0.6, "pruning": "dfp"}),
        ("em_mcmc", {"cycles": 3, "target_sparsity": 0.6, "pruning": "dpf"}),
    ],
)
def test_every_method_predicts_the_same_bits_from_its_file(tmp_path, name, options, engine):
    method = trained(name, named(), backend=engine, **options)
    posterior = method.posterior()
    posterior.about["model"] = MODEL
    path = tmp_path / "p.safetensors"
    posterior.save(path)
    noise = torch.get_rng_state()
    again = load(path)
    assert torch.equal(torch.get_rng_state(), noise)
    assert type(again.draws) is type(posterior.draws)
    assert again.max_samples == posterior.max_samples
    assert again.size == posterior.size
    assert same(posterior, again, torch.randn(300, 6))
    again.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("engine", BACKENDS)
@pytest.mark.parametrize("case", MODELS, ids=ids(MODELS))
def test_a_network_of_ones_own_needs_its_architecture(tmp_path, case, engine):
    torch.manual_seed(0)
    bnn = gs.to_bayesian(case.build(), 0.4, posterior_std=0.3, backend=engine).eval()
    path = tmp_path / "p.safetensors"
    posterior = posterior_of(bnn, gs.Categorical())  # outputs of any shape: classes on axis 1
    posterior.save(path)
    with pytest.raises(InvalidValue, match=r"load\(path, network="):
        load(path)
    plain = case.build()
    before = {k: v.clone() for k, v in plain.state_dict().items()}
    again = load(path, network=plain)
    x = case.input()
    assert same(posterior, again, x)
    for key, value in plain.state_dict().items():
        assert torch.equal(value, before[key]), "the given network is left as it is"
    with pytest.raises((InvalidData, CheckpointError)):
        load(path, network=nn.Sequential(nn.Linear(2, 2)))


@pytest.mark.parametrize("noise_std", ["learn", "head", 0.3])
def test_the_likelihood_comes_back(tmp_path, noise_std):
    net = nn.Linear(6, 6 if noise_std == "head" else 3)
    method = trained("sgd", net, Gaussian(noise_std))
    path = tmp_path / "p.safetensors"
    method.posterior().save(path)
    again, x = load(path, network=net), torch.randn(5, 6)
    one, two = method.posterior().predict(x), again.predict(x)
    assert torch.equal(one.mean, two.mean)
    assert torch.equal(one.noise, two.noise)


def test_likelihoods_and_values_that_a_file_cannot_hold(tmp_path):
    class Mine(Gaussian):
        pass

    with pytest.raises(InvalidValue, match="is not one of Gossamer's"):
        posterior_of(nn.Linear(2, 1), Mine()).save(tmp_path / "p")
    posterior = posterior_of(nn.Linear(2, 1))
    posterior.about["when"] = object()
    with pytest.raises(InvalidValue, match="must hold JSON values"):
        posterior.save(tmp_path / "p")
    assert not list(tmp_path.iterdir())


def test_each_distinct_tensor_once_and_nothing_of_training(tmp_path):
    method = trained("csghmc", named(), cycles=3)
    posterior = method.posterior()
    posterior.about["model"] = MODEL
    posterior.save(tmp_path / "p")
    with safe_open(tmp_path / "p", "pt") as file:
        keys = list(file.keys())
    contents = {
        t.numpy().tobytes() + str(t.dtype).encode()
        for i in range(posterior.max_samples)
        for t in posterior.draws.state(i).values()
    }
    assert len(keys) == len(contents), "no optimiser, and what samples share is there once"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    method = trained("ssvi", named(), sparsity=0.5)
    posterior = method.posterior()
    posterior.about.update(model=MODEL, seed=7)
    path = tmp_path / "p.safetensors"
    posterior.save(path)
    return path


def test_any_flipped_bit_is_refused_by_the_files_name(saved):
    whole = saved.read_bytes()
    places = list(range(12)) + random.Random(0).sample(range(len(whole)), 400)
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        saved.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"p.safetensors: is damaged or foreign") as error:
            load(saved)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 9, 100, 1000, -1])
def test_a_truncated_file_is_refused(saved, kept):
    saved.write_bytes(saved.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"p.safetensors: is damaged or foreign"):
        load(saved)


def test_what_is_no_posterior(tmp_path, saved):
    with pytest.raises(CheckpointError, match=r"cannot be read \(No such file"):
        load(tmp_path / "none")
    shutil.copy(__file__, tmp_path / "text")
    with pytest.raises(CheckpointError, match="is damaged or foreign"):
        load(tmp_path / "text")
    deep = ("[" * 200_000).encode()
    (tmp_path / "deep").write_bytes(len(deep).to_bytes(8, "little") + deep)
    with pytest.raises(CheckpointError, match="is damaged or foreign"):
        load(tmp_path / "deep")


def test_a_file_whose_content_does_not_fit_together(saved):
    """Made right again by its checksum: a hostile file, which may not end in a bug."""
    posterior = load(saved)
    network = posterior.draws.network
    for damage in (
        {"0.indices": torch.tensor([5, 3, 1], dtype=torch.int32)},
        {"model": {**MODEL, "name": "telepathy"}},
        {"model": {**MODEL, "input_shape": [7]}},
        {"model": {**MODEL, "options": {"hidden": [10**9]}}},
    ):
        about = {**posterior.about, **{k: v for k, v in damage.items() if k == "model"}}
        bad = Posterior(posterior.draws, posterior.likelihood, None, about)
        first = next(n for n, m in network.named_modules() if hasattr(m, "indices"))
        layer, held = network.get_submodule(first), network.get_submodule(first).indices
        layer._buffers["indices"] = damage.get("0.indices", held)
        bad.save(saved)
        layer._buffers["indices"] = held
        with pytest.raises(CheckpointError, match=r"p.safetensors: is damaged or foreign"):
            load(saved)


def test_a_failed_write_leaves_the_old_file(saved, monkeypatch):
    before = saved.read_bytes()
    posterior = load(saved)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gossamer.prediction.archive.os.fsync", full)
    with pytest.raises(CheckpointError, match="No space left"):
        posterior.save(saved)
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


def test_weights_that_are_not_finite_do_not_answer(saved):
    posterior = load(saved)
    name, parameter = next(posterior.draws.network.named_parameters())
    parameter.data[0] = torch.inf
    with pytest.raises(NonFinite, match=f"{name} = inf: a weight that predicts must be finite"):
        posterior.predict(torch.ones(2, 6))
    posterior.save(saved)
    with pytest.raises(NonFinite, match=name):
        load(saved).predict(torch.ones(2, 6))


def test_tables_come_with_names_units_and_intervals(tmp_path):
    columns = tuple(NumberColumn(f"x{i}", "float") for i in range(6))
    names = Preparation(TableInput(columns), ClassTarget("kind", ("0", "1", "2"), ("a", "b", "c")))
    posterior = posterior_of(named())
    posterior.preparation, posterior.about = names, {"model": MODEL, "num_samples": 3, "seed": 5}
    posterior.save(tmp_path / "p")
    again = load(tmp_path / "p")
    assert again.preparation == names
    rows = {f"x{i}": np.linspace(-1, 1, 4) * i for i in range(6)}
    table = again.predict_table(rows)
    assert list(table)[:4] == ["label", "prob_a", "prob_b", "prob_c"]
    assert set(table["label"]) <= {"a", "b", "c"}
    assert table == posterior.predict_table(rows)
    values = ValueTarget("y", (10.0, 0.0, 0.0), (2.0, 1.0, 1.0), vector=True)
    real = Posterior(
        posterior.draws, Gaussian(0.5), Preparation(TableInput(columns), values)
    ).predict_table(rows, level=0.5)
    plain = posterior_of(posterior.draws.network, Gaussian(0.5)).predict(names.prepare(rows))
    assert real["mean_0"] == pytest.approx((10 + 2 * plain.mean[:, 0].double()).tolist())
    # Half of a normal lies within 0.6745 standard deviations.
    assert np.subtract(real["upper_50_1"], real["mean_1"]) == pytest.approx(0.67449 * 0.5, rel=1e-4)
    with pytest.raises(InvalidValue, match="does not know how raw rows"):
        posterior_of(named()).predict_table(rows)


def test_a_finished_run_leaves_its_posterior(tmp_path):
    config = RunConfig(data="digits", model="mlp", method="ssvi", epochs=1, limit_train=200)
    result = train(config, tmp_path / "run")
    run = load_run(tmp_path / "run")
    found = load(tmp_path / "run")
    x = torch.randn(5, *found.preparation.input_shape)
    assert torch.equal(run.posterior.predict(x).probs, found.predict(x).probs)
    assert found.about["step"] == run.step
    assert found.about["seed"] == config.seed
    (tmp_path / "run" / "posterior.safetensors").unlink()
    slow = load_run(tmp_path / "run")
    assert torch.equal(slow.posterior.predict(x).samples, found.predict(x).samples)
    assert slow.posterior.about == found.about
    assert result.metrics["nnz"] == found.size["nnz"]
    with pytest.raises(CheckpointError, match=r"gossamer.train.load_run takes any run"):
        load(tmp_path / "run")


@pytest.mark.parametrize("content", [b"", b"something else"])
def test_a_run_with_a_damaged_posterior_goes_back_to_its_checkpoint(tmp_path, content):
    train(RunConfig(data="digits", epochs=1, limit_train=200), tmp_path / "run")
    (tmp_path / "run" / "posterior.safetensors").write_bytes(content)
    run = load_run(tmp_path / "run")
    assert "posterior is damaged" in run.notice
    x = torch.randn(2, *run.preparation.input_shape)
    assert run.posterior.predict(x).probs.shape == (2, 10)


def test_another_preparation_beside_it_is_noticed(tmp_path):
    """preparation.json has no checksum of its own; the posterior's has one."""
    train(RunConfig(data="digits", epochs=1, limit_train=200), tmp_path / "run")
    path = tmp_path / "run" / "preparation.json"
    values = json.loads(path.read_text())
    values["target"]["names"][0] = "another"
    path.write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=r"preparation.json.*is not the one"):
        load_run(tmp_path / "run")


def test_copies_stand_alone():
    for name, kind in (("csghmc", StoredDraws), ("cv_adam", GaussianDraws)):
        method = trained(name, mlp())
        x = torch.randn(4, 6)
        live = method.posterior()
        frozen, moved = live.frozen(), live.to("cpu")
        assert isinstance(frozen.draws, kind)
        wanted = live.predict(x, 3).samples
        with torch.no_grad():
            for p in method.model.parameters():
                p.add_(1.0)
            for state in method.optimizer.state.values():
                for value in state.values():
                    value.add_(1.0)
        for copied in (frozen, moved):
            assert torch.equal(copied.predict(x, 3).samples, wanted)
        assert torch.equal(frozen.network(0)(x), frozen.network(0)(x))
