"""What evaluation makes of an uncertainty, against scikit-learn and slow second computations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

import gossamer as gs
from gossamer.data import DataSet, from_arrays
from gossamer.errors import InvalidValue
from gossamer.likelihoods import Likelihood
from gossamer.prediction import Posterior, posterior_of
from gossamer.train import evaluate

FLOAT32 = 1e-5  # torchmetrics integrates in float32


def classes(num_classes: int = 3) -> DataSet:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(150, 4))
    y = np.arange(150) % num_classes
    return from_arrays(x[:60], y[:60], validation_fraction=0, x_test=x[60:], y_test=y[60:])


def values(columns: int = 1) -> DataSet:
    """Targets whose columns have scales a thousand apart."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(140, 4))
    y = x[:, :columns] * 1000.0 ** np.arange(columns) + draw.normal(size=(140, columns))
    y = y.squeeze(1) if columns == 1 else y
    return from_arrays(x[:60], y[:60], validation_fraction=0, x_test=x[60:], y_test=y[60:])


def bayesian(outputs: int, likelihood: str | Likelihood = "categorical") -> Posterior:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, outputs))
    return posterior_of(gs.to_bayesian(net, 0.3, posterior_std=0.3), likelihood)


def deterministic(outputs: int, likelihood: str | Likelihood = "categorical") -> Posterior:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, outputs))
    return posterior_of(net, likelihood)


def area(uncertainty: Any, loss: Any) -> float:
    """Mean over coverages of the mean loss of the surest rows, one coverage after the other."""
    order = np.argsort(np.asarray(uncertainty, dtype=np.float64), kind="stable")
    return float(np.mean([np.mean(loss[order[: i + 1]]) for i in range(len(loss))]))


def detected(inside: Any, outside: Any) -> float:
    labels = [0] * len(inside) + [1] * len(outside)
    return float(roc_auc_score(labels, torch.cat([inside, outside]).double().numpy()))


def test_classes_by_every_score() -> None:
    data, posterior = classes(), bayesian(3)
    foreign = {"far": 4 * torch.randn(40, 4), "near": data.x_test[:30] + 0.3, "same": data.x_test}
    metrics, curves = evaluate(posterior, data, num_samples=7, seed=3, ood=foreign)
    asked: Any = posterior.predict(data.x_test, 7, seed=3)
    wrong = (asked.label != data.y_test).double().numpy()
    assert 0.1 < wrong.mean() < 0.9
    assert metrics["aurc"] == pytest.approx(area(-asked.confidence, wrong), abs=1e-9)
    best = area(wrong, wrong)
    assert metrics["eaurc"] == pytest.approx(metrics["aurc"] - best, abs=1e-9)
    for score in ("entropy", "mutual_information", "energy"):
        inside = getattr(asked, score)
        assert metrics[f"aurc_{score}"] == pytest.approx(area(inside, wrong), abs=1e-9), score
        for place, (name, inputs) in enumerate(foreign.items()):
            found: Any = posterior.predict(inputs, 7, seed=3)
            key = "auroc" + ("" if score == "entropy" else f"_{score}")
            key += f"_{name}" if place else ""
            wanted = detected(inside, getattr(found, score))
            assert metrics[key] == pytest.approx(wanted, abs=FLOAT32), key
    assert metrics["auroc_mutual_information"] != metrics["auroc"] != metrics["auroc_energy"]
    assert {"auroc_epistemic", "aurc_epistemic", "epistemic", "aleatoric"}.isdisjoint(metrics)
    assert not [key for key in metrics if key.startswith(("aupr_energy", "fpr95_energy"))]
    selective = curves["selective"]
    assert np.mean(selective["risk"]) == pytest.approx(metrics["aurc"], abs=1e-9)  # 90 rows: all
    assert np.mean(selective["best_risk"]) == pytest.approx(best, abs=1e-9)
    assert selective["accuracy"] == [1 - risk for risk in selective["risk"]]


def test_a_deterministic_classifier_has_no_figures_by_mutual_information() -> None:
    foreign = {"far": 4 * torch.randn(40, 4), "near": torch.randn(40, 4)}
    metrics, _ = evaluate(deterministic(3), classes(), num_samples=7, ood=foreign)
    assert {"auroc", "auroc_energy", "auroc_near", "auroc_energy_near"} <= set(metrics)
    assert {"aurc", "eaurc", "aurc_entropy", "aurc_energy"} <= set(metrics)
    assert not [key for key in metrics if "mutual_information" in key]
    one, _ = evaluate(bayesian(3), classes(), num_samples=1, ood=foreign)
    assert not [key for key in one if "mutual_information" in key], "nor has a single sample"


def test_both_kinds_of_noise_and_further_sets_have_keys_of_their_own() -> None:
    foreign = {"far": 4 * torch.randn(40, 4), "near": torch.randn(40, 4)}
    metrics, _ = evaluate(bayesian(3), classes(), num_samples=4, noise="both", ood=foreign)
    for score in ("auroc", "auroc_mutual_information", "auroc_energy", "aupr", "fpr95"):
        assert {score, f"{score}_near", f"{score}_local", f"{score}_near_local"} <= set(metrics)
    assert {"aurc_local", "eaurc_local", "aurc_energy_local"} <= set(metrics)


@pytest.mark.parametrize("name", ["energy", "mutual_information", "epistemic"])
def test_a_foreign_set_with_the_name_of_a_score_is_refused(name: str) -> None:
    """Its AUROC by entropy would have the key of the first set's AUROC by that score."""
    foreign = {"far": torch.randn(5, 4), name: torch.randn(5, 4)}
    said = f"ood = {name}: is also the name of a score; name this set first"
    with pytest.raises(InvalidValue, match=said):
        evaluate(bayesian(3), classes(), ood=foreign)
    metrics, _ = evaluate(bayesian(3), classes(), ood=dict(reversed(foreign.items())))
    assert {"auroc", "auroc_energy", "auroc_far", "auroc_energy_far"} <= set(metrics)


def test_real_targets_in_original_units() -> None:
    data, posterior = values(), bayesian(2, gs.Gaussian("head"))
    far = 4 * torch.randn(40, 4)
    metrics, curves = evaluate(posterior, data, num_samples=6, ood={"far": far, "too": far[:9]})
    asked: Any = posterior.predict(data.x_test, 6)
    target: Any = data.preparation.target
    (scale,), (centre,) = target.scale, target.mean
    means = asked.samples.double().numpy() * scale + centre
    noise = asked.noise.double().numpy() * scale
    y = data.y_test.double().numpy() * scale + centre
    error = (means.mean(0) - y) ** 2
    spread = means.std(0)
    total = np.sqrt(spread**2 + (noise**2).mean(0))
    assert metrics["aurc"] == pytest.approx(area(total, error), rel=1e-9)
    assert metrics["eaurc"] == pytest.approx(area(total, error) - area(error, error), rel=1e-9)
    assert metrics["aurc_epistemic"] == pytest.approx(area(spread, error), rel=1e-9)
    assert metrics["epistemic"] == pytest.approx(np.sqrt(np.mean(spread**2)), rel=1e-9)
    assert metrics["aleatoric"] == pytest.approx(np.sqrt(np.mean(noise**2)), rel=1e-9)
    foreign: Any = posterior.predict(far, 6)
    for key, field in (("auroc", "std"), ("auroc_epistemic", "epistemic")):
        inside, outside = getattr(asked, field), getattr(foreign, field)
        assert metrics[key] == pytest.approx(detected(inside, outside), abs=FLOAT32)
        assert metrics[f"{key}_too"] == pytest.approx(detected(inside, outside[:9]), abs=FLOAT32)
    assert metrics["auroc_epistemic"] != metrics["auroc"]
    risk = curves["selective"]["risk"]
    assert np.mean(risk) == pytest.approx(metrics["aurc"], rel=1e-9)
    assert risk[-1] == pytest.approx(error.mean(), rel=1e-9)
    assert "accuracy" not in curves["selective"]


def test_several_targets_are_chosen_by_their_mean_variance() -> None:
    """The loss is the mean squared error over columns; its expectation is the mean variance."""
    data, posterior = values(columns=2), bayesian(4, gs.Gaussian("head"))
    metrics, _ = evaluate(posterior, data, num_samples=6)
    asked: Any = posterior.predict(data.x_test, 6)
    means = data.preparation.target_to_original(asked.samples.double()).numpy()
    noise = data.preparation.scale_to_original(asked.noise.double()).numpy()
    y = data.preparation.target_to_original(data.y_test.double()).numpy()
    error = ((means.mean(0) - y) ** 2).mean(1)
    variance = (means.var(0) + (noise**2).mean(0)).mean(1)
    assert metrics["aurc"] == pytest.approx(area(variance, error), rel=1e-9)
    assert metrics["epistemic"] == pytest.approx(np.sqrt(means.var(0).mean()), rel=1e-9)
    assert metrics["aleatoric"] == pytest.approx(np.sqrt((noise**2).mean()), rel=1e-9)


def test_a_deterministic_regressor_has_no_figures_by_epistemic_std() -> None:
    metrics, _ = evaluate(
        deterministic(2, gs.Gaussian("head")), values(), ood={"far": 4 * torch.randn(40, 4)}
    )
    assert metrics["epistemic"] == 0.0
    assert metrics["aleatoric"] > 0.0
    assert {"aurc", "eaurc", "auroc"} <= set(metrics)
    assert {"aurc_epistemic", "auroc_epistemic"}.isdisjoint(metrics)


def test_equal_noise_everywhere_chooses_nothing() -> None:
    """A constant std has the mean squared error at every coverage, whatever the order of rows."""
    metrics, _ = evaluate(deterministic(1, gs.Gaussian(0.5)), values())
    assert metrics["aurc"] == pytest.approx(metrics["rmse"] ** 2, rel=1e-12)


def test_two_classes_from_one_logit() -> None:
    data = classes(2)
    posterior = bayesian(1, "bernoulli")
    far = 4 * torch.randn(40, 4)
    metrics, _ = evaluate(posterior, data, num_samples=5, ood={"far": far})
    inside: Any = posterior.predict(data.x_test, 5)
    outside: Any = posterior.predict(far, 5)
    wanted = detected(inside.energy, outside.energy)
    assert metrics["auroc_energy"] == pytest.approx(wanted, abs=FLOAT32)
