"""Figures under corruption: each by hand, their means, and that training never sees them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import norm
from sklearn.metrics import accuracy_score, log_loss

from gossamer.data import SHIFTS, InputScale, shifted
from gossamer.errors import InvalidValue
from gossamer.metrics import ece
from gossamer.train import RunConfig, evaluate, load_dataset, load_run, train


def test_classes_at_every_severity(tmp_path: Path, small: RunConfig) -> None:
    config = dataclasses.replace(
        small, limit_train=None, lr=0.01, method_options={"sparsity": 0.5}, shift=("all",)
    )
    reported = train(config, tmp_path).metrics
    assert reported is not None
    run, data = load_run(tmp_path), load_dataset(config)
    scale, by_key = InputScale.of(data), dict[str, list[float]]()
    for name in SHIFTS:
        for severity in range(1, 6):
            x = shifted(data.x_test, name, severity, scale, seed=config.seed)
            found: Any = run.posterior.predict(x, config.num_samples, seed=config.seed)
            probs = found.probs.double().numpy()
            wanted = {
                "accuracy": accuracy_score(data.y_test, probs.argmax(1)),
                "nll": log_loss(data.y_test, probs / probs.sum(1, keepdims=True), labels=range(10)),
                "ece": ece(found.probs, data.y_test),
            }
            for key, value in wanted.items():
                got = reported[f"shift_{name}_{severity}_{key}"]
                assert got == pytest.approx(value, rel=1e-5), (name, severity, key)  # float32
                by_key.setdefault(key, []).append(got)
    for key, values in by_key.items():
        assert len(values) == 20
        assert reported[f"shift_{key}"] == pytest.approx(np.mean(values), rel=1e-12)
    assert len({key for key in reported if key.startswith("shift_")}) == 63
    assert reported["shift_rotation_5_accuracy"] < reported["accuracy"] - 0.2


def test_values_in_original_units(small: RunConfig, tmp_path: Path) -> None:
    config = dataclasses.replace(
        small, data="diabetes", limit_train=None, epochs=2, shift=("noise",)
    )
    reported = train(config, tmp_path).metrics
    assert reported is not None
    run, data = load_run(tmp_path), load_dataset(config)
    target: Any = data.preparation.target
    x = shifted(data.x_test, "noise", 4, InputScale.of(data), seed=config.seed)
    found: Any = run.posterior.predict(x, config.num_samples, seed=config.seed)
    means = found.samples.double().numpy() * target.scale + target.mean
    stds = found.noise.double().numpy() * target.scale
    y = data.y_test.double().numpy() * target.scale + target.mean
    assert reported["shift_noise_4_rmse"] == pytest.approx(
        np.sqrt(np.mean((means.mean(0) - y) ** 2)), rel=1e-9
    )
    density = norm.pdf(y, means, stds).mean(0)
    assert reported["shift_noise_4_nll"] == pytest.approx(-np.log(density).mean(), rel=1e-9)
    below = norm.cdf(y, means, stds).mean(0)
    assert reported["shift_noise_4_coverage"] == np.mean(abs(below - 0.5) <= 0.45)
    rmses = [reported[f"shift_noise_{severity}_rmse"] for severity in range(1, 6)]
    assert reported["shift_rmse"] == pytest.approx(np.mean(rmses), rel=1e-12)
    assert not [key for key in reported if "rotation" in key or key.endswith("_ece")]


def test_training_never_sees_a_shift(small: RunConfig, tmp_path: Path) -> None:
    plain = train(small, tmp_path / "plain").metrics
    moved = train(dataclasses.replace(small, shift=("noise", "blur")), tmp_path / "moved").metrics
    assert plain is not None
    assert moved is not None
    for name in ("curves.json", "preparation.json"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "moved" / name).read_bytes()
    # The files differ in the checksum of the settings, and in nothing else.
    mine, theirs = (
        load_file(tmp_path / run / "posterior.safetensors") for run in ("plain", "moved")
    )
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    timed = ("seconds", "checkpoint_bytes", "predict_seconds")
    assert {k: v for k, v in moved.items() if not k.startswith("shift") and k not in timed} == {
        k: v for k, v in plain.items() if k not in timed
    }


def test_every_method_meets_the_same_inputs(small: RunConfig, tmp_path: Path) -> None:
    """What predicts is asked for the same rows, whatever it is."""
    data = load_dataset(small)
    asked: list[list[torch.Tensor]] = []
    for method in ("ssvi", "rigl"):
        train(dataclasses.replace(small, method=method, epochs=1), tmp_path / method)
        posterior = load_run(tmp_path / method).posterior
        seen: list[torch.Tensor] = []
        plain = posterior.predict

        def watched(x: torch.Tensor, *args: Any, plain: Any = plain, seen: Any = seen, **kw: Any):
            seen.append(x)
            return plain(x, *args, **kw)

        posterior.predict = watched  # type: ignore[method-assign]
        evaluate(posterior, data, num_samples=2, seed=3, shift=["noise"])
        asked.append(seen)
    assert len(asked[0]) == len(asked[1]) == 6
    assert all(torch.equal(a, b) for a, b in zip(*asked, strict=True))
    assert torch.equal(asked[0][0], data.x_test)


def test_both_kinds_of_noise_and_another_part(small: RunConfig, tmp_path: Path) -> None:
    train(dataclasses.replace(small, epochs=1), tmp_path)
    posterior, data = load_run(tmp_path).posterior, load_dataset(small)
    both, _ = evaluate(posterior, data, part="val", noise="both", num_samples=2, shift=["noise"])
    weight, _ = evaluate(posterior, data, part="val", num_samples=2, shift=["noise"])
    test, _ = evaluate(posterior, data, num_samples=2, shift=["noise"])
    assert both["shift_noise_2_nll"] == weight["shift_noise_2_nll"] != test["shift_noise_2_nll"]
    assert both["shift_noise_2_nll_local"] != both["shift_noise_2_nll"]
    assert "shift_nll_local" in both


def test_what_does_not_fit_is_told_before_anything_is_predicted(small: RunConfig) -> None:
    data = load_dataset(dataclasses.replace(small, data="diabetes", limit_train=None))
    with pytest.raises(InvalidValue, match="shift = rotation: is for images, this is a table"):
        evaluate(None, data, shift=["rotation"])  # type: ignore[arg-type]


def test_a_run_from_before_shifts_is_evaluated_under_them(small: RunConfig, tmp_path: Path) -> None:
    train(dataclasses.replace(small, epochs=1), tmp_path)
    before = load_run(tmp_path).posterior
    del before.about["files"]  # which is younger than shifts
    before.save(tmp_path / "posterior.safetensors")
    path = tmp_path / "config.json"
    stored = json.loads(path.read_text())
    del stored["shift"]
    path.write_text(json.dumps(stored))
    run = load_run(tmp_path)
    assert run.config.shift == ()
    metrics, _ = evaluate(run.posterior, load_dataset(run.config), shift=["blur"])
    assert "shift_blur_1_accuracy" in metrics
