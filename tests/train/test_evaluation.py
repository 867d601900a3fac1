from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from torch import nn

import gossamer.train.assembly
from gossamer.errors import CheckpointError, InvalidData, UnknownName
from gossamer.nn import sparse_layers
from gossamer.prediction import posterior_of, predict
from gossamer.train import (
    LoadedRun,
    RunConfig,
    RunFolder,
    evaluate,
    latest,
    load_checkpoint,
    load_dataset,
    load_ood_inputs,
    load_run,
    train,
)
from gossamer.train.assembly import build_method


@pytest.fixture
def classes(tmp_path: Path, small: RunConfig) -> LoadedRun:
    train(small, tmp_path / "run")
    return load_run(tmp_path / "run")


def test_classification_against_scikit_learn(classes: LoadedRun) -> None:
    dataset = load_dataset(classes.config)
    for part, x, y in (
        ("test", dataset.x_test, dataset.y_test),
        ("val", dataset.x_val, dataset.y_val),
    ):
        metrics, curves = evaluate(classes.posterior, dataset, part=part, num_samples=3, seed=5)  # type: ignore[arg-type]
        probs = predict(classes.posterior, x, 3, seed=5).probs.double().numpy()  # type: ignore[union-attr]
        right = probs.argmax(1) == y.numpy()
        assert metrics["accuracy"] == accuracy_score(y, probs.argmax(1))
        # float32 probabilities against their float64 copies, renormalised by scikit-learn.
        expected = log_loss(y, probs / probs.sum(1, keepdims=True), labels=range(10))
        assert metrics["nll"] == pytest.approx(expected, rel=1e-6)
        entropy = curves["entropy"]
        assert (sum(entropy["right"]), sum(entropy["wrong"])) == (right.sum(), (~right).sum())
        assert entropy["edges"][-1] == pytest.approx(math.log(10), rel=1e-15)
        assert entropy["ood"] is None
        assert sum(curves["reliability"]["count"]) == len(y)
        assert curves["selective"]["coverage"][-1] == 1.0
        assert curves["selective"]["accuracy"][-1] == pytest.approx(right.mean(), rel=1e-12)
        assert curves["selective"]["risk"][-1] == pytest.approx(1 - right.mean(), rel=1e-12)


class Packed(nn.Module):
    """Whose logits are a field, of one row or of many positions."""

    def __init__(self, network: nn.Module, positions: int) -> None:
        super().__init__()
        self.network, self.positions = network, positions

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.network(x)
        return {"logits": logits[:, None].expand(-1, self.positions, -1).squeeze(1)}


def test_outputs_of_several_tensors(classes: LoadedRun) -> None:
    dataset, network = load_dataset(classes.config), classes.posterior.network()
    wanted, _ = evaluate(posterior_of(network), dataset, num_samples=2)
    found, _ = evaluate(posterior_of(Packed(network, 1), output="logits"), dataset, num_samples=2)
    assert found == wanted


def test_what_metrics_cannot_read_is_refused(classes: LoadedRun) -> None:
    dataset, network = load_dataset(classes.config), classes.posterior.network()
    tokens = posterior_of(Packed(network, 4), output="logits", class_dim=-1)
    with pytest.raises(InvalidData, match=r"4, 10\): must be \[B, C\]: metrics are of one label"):
        evaluate(tokens, dataset, num_samples=1)
    several: Any = {"other": {"x": dataset.x_test}}
    with pytest.raises(InvalidData, match=r"inputs = dict: must be a tensor.*use predict"):
        evaluate(classes.posterior, dataset, num_samples=1, ood=several)


def test_both_noise_modes(classes: LoadedRun) -> None:
    dataset = load_dataset(classes.config)
    both, _ = evaluate(classes.posterior, dataset, noise="both", num_samples=2)
    weight, _ = evaluate(classes.posterior, dataset, noise="weight", num_samples=2)
    local, _ = evaluate(classes.posterior, dataset, noise="local", num_samples=2)
    scores = [k for k in weight if k not in ("nnz", "sparsity")]
    assert both == {**weight, **{f"{k}_local": local[k] for k in scores}}
    assert both["nll"] != both["nll_local"]


def test_out_of_distribution_inputs(classes: LoadedRun) -> None:
    dataset = load_dataset(classes.config)
    inputs = {"noise": torch.rand(50, 1, 8, 8), "zeros": torch.zeros(20, 1, 8, 8)}
    metrics, curves = evaluate(classes.posterior, dataset, ood=inputs, num_samples=2)
    inside = predict(classes.posterior, dataset.x_test, 2).entropy  # type: ignore[union-attr]
    for name, suffix in (("noise", ""), ("zeros", "_zeros")):
        outside = predict(classes.posterior, inputs[name], 2).entropy  # type: ignore[union-attr]
        labels = [0] * len(inside) + [1] * len(outside)
        expected = roc_auc_score(labels, torch.cat([inside, outside]).numpy())
        # torchmetrics integrates in float32.
        assert metrics[f"auroc{suffix}"] == pytest.approx(expected, abs=1e-5)
        assert {f"aupr{suffix}", f"fpr95{suffix}"} <= set(metrics)
    assert sum(curves["entropy"]["ood"]) == 50


def test_a_run_scores_its_out_of_distribution_sets(tmp_path: Path, small: RunConfig) -> None:
    np.savez(tmp_path / "other.npz", x=np.zeros((30, 8, 8), dtype=np.float32))
    config = dataclasses.replace(small, ood=(str(tmp_path / "other.npz"),))
    metrics = train(config, tmp_path / "run").metrics
    assert metrics is not None
    assert {"auroc", "aupr", "fpr95"} <= set(metrics)
    curves = json.loads((tmp_path / "run" / "curves.json").read_text())
    assert sum(curves["entropy"]["ood"]) == 30
    run = load_run(tmp_path / "run")
    inputs = load_ood_inputs(run.config, run.preparation)
    assert [tuple(x.shape) for x in inputs.values()] == [(30, 1, 8, 8)]


@pytest.mark.parametrize("noise_std", ["learn", "head", 0.5])
def test_regression_in_original_units_against_scipy(
    tmp_path: Path, small: RunConfig, noise_std: Any
) -> None:
    config = dataclasses.replace(
        small,
        data="diabetes",
        limit_train=None,
        likelihood_options={"noise_std": noise_std},
        epochs=2,
    )
    reported = train(config, tmp_path).metrics
    run = load_run(tmp_path)
    dataset = load_dataset(config)
    prediction: Any = predict(run.posterior, dataset.x_test, 2, seed=config.seed)
    scale, centre = dataset.preparation.target.scale, dataset.preparation.target.mean  # type: ignore[union-attr]
    means = prediction.samples.double().numpy() * scale + centre
    stds = prediction.noise.double().numpy() * scale
    target = dataset.y_test.double().numpy() * scale + centre
    assert 100 < target.mean() < 200  # the disease score itself, not its standardised form
    assert reported is not None
    # The same float64 arithmetic in another order.
    rmse = np.sqrt(np.mean((means.mean(0) - target) ** 2))
    assert reported["rmse"] == pytest.approx(rmse, rel=1e-9)
    density = norm.pdf(target, means, stds).mean(0)
    assert reported["nll"] == pytest.approx(-np.log(density).mean(), rel=1e-9)
    below = norm.cdf(target, means, stds).mean(0)
    assert reported["coverage"] == np.mean(abs(below - 0.5) <= 0.45)
    assert "crps" in reported
    curves = json.loads((tmp_path / "curves.json").read_text())
    observed = [float(np.mean(abs(below - 0.5) <= p / 2)) for p in curves["intervals"]["nominal"]]
    assert curves["intervals"]["observed"] == observed
    assert "reliability" not in curves
    far = 100 * torch.randn(9, 10)
    metrics, _ = evaluate(run.posterior, dataset, num_samples=2, ood={"far": far})
    outside: Any = predict(run.posterior, far, 2)
    labels = [0] * len(target) + [1] * len(far)
    expected = roc_auc_score(labels, torch.cat([prediction.std, outside.std]).numpy())
    assert metrics["auroc"] == pytest.approx(expected, abs=1e-5)  # torchmetrics: float32


def test_two_classes_from_one_logit(tmp_path: Path, small: RunConfig) -> None:
    config = dataclasses.replace(
        small, data="breast_cancer", likelihood="bernoulli", limit_train=None, epochs=2
    )
    metrics = train(config, tmp_path).metrics
    assert metrics is not None
    assert 0.5 < metrics["accuracy"] <= 1.0
    run = load_run(tmp_path)
    dataset = load_dataset(config)
    assert predict(run.posterior, dataset.x_test, 1).probs.shape == (len(dataset.x_test), 2)  # type: ignore[union-attr]


def test_a_deterministic_method_has_no_std_histogram(tmp_path: Path, small: RunConfig) -> None:
    train(dataclasses.replace(small, method="rigl"), tmp_path)
    weights = json.loads((tmp_path / "curves.json").read_text())["weights"]
    assert set(weights) == {"mean_hist"}


@pytest.mark.parametrize("options", [{"noise": "some"}, {"part": "train"}])
def test_unknown_words_are_refused(classes: LoadedRun, options: dict[str, Any]) -> None:
    with pytest.raises(UnknownName):
        evaluate(classes.posterior, load_dataset(classes.config), **options)


def test_a_loaded_run_needs_no_data_and_leaves_the_generator_alone(
    tmp_path: Path, small: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = train(small, tmp_path).metrics
    dataset = load_dataset(small)

    def gone(*args: object, **kwargs: object) -> None:
        raise AssertionError

    monkeypatch.setattr(gossamer.train.assembly, "load", gone)
    before = torch.get_rng_state()
    run = load_run(tmp_path)
    assert torch.get_rng_state().equal(before)
    assert (run.config, run.step, run.notice) == (small, 15, None)
    assert run.preparation == dataset.preparation
    metrics, _ = evaluate(run.posterior, dataset, num_samples=2, seed=small.seed)
    assert reported is not None
    assert metrics == {k: reported[k] for k in metrics}


def test_which_checkpoint_is_loaded(tmp_path: Path, small: RunConfig) -> None:
    train(dataclasses.replace(small, epochs=4, lr=0.3, select="best"), tmp_path)
    name = json.loads((tmp_path / "checkpoints" / "best.json").read_text())["name"]
    best_step = int(name.removeprefix("step-"))
    assert load_run(tmp_path).step == best_step
    assert load_run(tmp_path, select="best").step == best_step
    assert load_run(tmp_path, select="last").step == 20
    with pytest.raises(UnknownName):
        load_run(tmp_path, select="first")  # type: ignore[arg-type]


def test_a_damaged_checkpoint_is_passed_over_with_a_notice(
    tmp_path: Path, small: RunConfig
) -> None:
    train(small, tmp_path)
    (tmp_path / "checkpoints" / "step-00000015" / "state.json").write_text("")
    assert load_run(tmp_path).step == 15, "the posterior of a finished run needs no checkpoint"
    (tmp_path / "posterior.safetensors").unlink()
    run = load_run(tmp_path)
    assert run.step == 10
    assert run.notice is not None
    assert "step-00000015 is damaged" in run.notice


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "is this a run folder"),
        ("config.json", "{", "is damaged: not JSON"),
        ("config.json", "[]", "is damaged or of another version"),
        ("config.json", "{}", "is damaged or of another version"),
        ("preparation.json", "{}", "is damaged"),
        ("preparation.json", None, "cannot be read"),
    ],
)
def test_a_damaged_run_folder_is_one_line(
    tmp_path: Path, small: RunConfig, name: str, content: str | None, message: str
) -> None:
    train(dataclasses.replace(small, epochs=1), tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_run(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_run_of_another_version_with_another_setting_is_refused_by_name(
    tmp_path: Path, small: RunConfig
) -> None:
    train(dataclasses.replace(small, epochs=1), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "telepathy": True}))
    with pytest.raises(CheckpointError, match="setting = telepathy: is not known"):
        load_run(tmp_path)


def test_a_run_without_a_checkpoint_says_how_to_go_on(tmp_path: Path, small: RunConfig) -> None:
    train(dataclasses.replace(small, epochs=1), tmp_path)
    (tmp_path / "posterior.safetensors").unlink()
    for path in (tmp_path / "checkpoints").glob("step-*"):
        path.rename(tmp_path / path.name)
    with pytest.raises(CheckpointError, match="has no checkpoint yet; train on with: gossamer"):
        load_run(tmp_path)


@pytest.mark.parametrize("pruning", ["dfp", "dpf"])
def test_size_is_that_of_the_network_that_predicts(
    tmp_path: Path, small: RunConfig, pruning: str
) -> None:
    """DPF keeps all weights and predicts with few: metrics, curves and record tell of those."""
    options = {"pruning": pruning, "target_sparsity": 0.5, "group": "weight", "cycles": 1}
    config = dataclasses.replace(
        small, method="em_mcmc", method_options={**options, "prune_group": "weight"}
    )
    metrics = train(config, tmp_path / "run").metrics
    assert metrics is not None
    network = load_run(tmp_path / "run").posterior.network()
    layers = [m for m in network.modules() if hasattr(m, "weight_values")]
    kept = sum(int(layer.weight.count_nonzero()) for layer in layers)
    total = sum(layer.weight.numel() for layer in layers)
    assert kept == total / 2
    assert (metrics["nnz"], metrics["sparsity"]) == (kept, 0.5)
    assert sum(layer.weight_values.numel() for layer in layers) == kept
    method = build_method(*RunFolder(tmp_path / "run").read_config())
    found = latest(tmp_path / "run" / "checkpoints")
    assert found is not None
    method.load_state_dict(load_checkpoint(found.path)["method"])
    held = sum(layer.leading().numel() for layer in sparse_layers(method.model).values())
    assert held == (kept if pruning == "dfp" else total)
    curves = json.loads((tmp_path / "run" / "curves.json").read_text())
    assert sum(layer["nnz"] for layer in curves["layers"]) == kept
    assert sum(curves["weights"]["mean_hist"]["counts"]) == kept
    lines = (tmp_path / "run" / "record.jsonl").read_text().splitlines()
    sizes = [one["nnz"] for line in lines if (one := json.loads(line))["kind"] == "epoch"]
    assert len(sizes) == config.epochs
    assert sizes[0] >= sizes[-1] == kept
