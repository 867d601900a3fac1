"""Run folders made on the fly, with the files that training writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.report.figures import PLOTS

LAYERS = (("1", (256, 64), 0.93), ("3", (256, 256), 0.962), ("5", (10, 256), 0.8))
MakeRun = Callable[..., Path]


def _config(method: str, seed: int, sparsity: float | None, **more: Any) -> dict[str, Any]:
    options = {} if sparsity is None else {"sparsity": sparsity}
    return {
        "data": "digits",
        "data_dir": None,
        "task": None,
        "model": "mlp",
        "model_options": {"hidden": [256, 256]},
        "method": method,
        "method_options": options,
        "epochs": 40,
        "batch_size": 64,
        "lr": None,
        "seed": seed,
        "noise": "weight",
        "ood": ["data/notmnist.npz"],
        "gossamer": "0.1.0",
        **more,
    }


def _histogram(values: np.ndarray, edges: np.ndarray) -> list[int]:
    return [int(count) for count in np.histogram(values, edges)[0]]


def _epochs(rng: np.random.Generator, count: int, method: str, regression: bool) -> list[dict]:
    lines = []
    for epoch in range(count):
        t = (epoch + 1) / count
        bayes = method in ("ssvi", "dense_vi")
        nll = 0.09 + 2.1 * np.exp(-6 * t) + rng.normal(0, 0.008)
        gap = 0.02 if bayes else 0.05 + 0.12 * t
        worst = 0.02 + {"ssvi": 0.004, "dense_vi": 0.0, "rigl": 0.012}.get(method, 0.008)
        quality = float(1 - 0.9 * np.exp(-6 * t) - worst - abs(rng.normal(0, 0.004)))
        train = {"loss": nll + 0.1, "nll": float(nll), "kl": 0.0, "kl_weight": 0.0}
        if bayes:
            scale = 1.0 if method == "ssvi" else 9.0
            kl = 9000 - 5200 * (1 - np.exp(-3 * t)) + rng.normal(0, 30)
            train |= {"kl": float(scale * kl), "kl_weight": min(1.0, 2 * t) * 0.2}
        val = {"nll": float(nll + gap)}
        if regression:
            val["rmse"] = float(0.7 + 0.6 * np.exp(-4 * t) + rng.normal(0, 0.01))
        else:
            train["accuracy"] = min(1.0, quality + 0.015)
            val |= {"accuracy": quality, "ece": float(0.02 + 0.15 * np.exp(-5 * t) + gap / 4)}
        record = {"kind": "epoch", "epoch": epoch + 1, "step": 23 * (epoch + 1), "train": train}
        lines.append(record | {"val": val, "sparsity": 0.95, "lr": 1e-3, "seconds": 0.4 * epoch})
    return lines


def _swaps(rng: np.random.Generator, layers: tuple, count: int) -> list[dict]:
    lines = []
    for swap in range(count):
        fraction = 0.15 * (1 + np.cos(np.pi * swap / count))
        table = {}
        for depth, (name, shape, sparsity) in enumerate(layers):
            nnz = round(shape[0] * shape[1] * (1 - sparsity))
            removed = round(fraction * nnz)
            won = rng.uniform(0.35, 0.5) + 0.06 * (depth % 4)
            table[name] = {"nnz": nnz, "removed": removed, "added": int(removed * min(won, 1.0))}
        step = 30 * (swap + 1)
        lines.append({"kind": "swap", "step": step, "fraction": float(fraction), "layers": table})
    return lines


def _curves(rng: np.random.Generator, method: str, layers: tuple, regression: bool) -> dict:
    dense = method in ("dense_vi", "sgd")
    found: dict[str, Any] = {
        "layers": [
            {
                "name": name,
                "shape": list(shape),
                "nnz": round(shape[0] * shape[1] * (1 if dense else 1 - sparsity)),
                "sparsity": 0.0 if dense else sparsity,
            }
            for name, shape, sparsity in layers
        ]
    }
    means = rng.normal(0, 0.12, 20_000)
    edges = np.linspace(-0.6, 0.6, 61)
    weights = {"mean_hist": {"edges": edges.tolist(), "counts": _histogram(means, edges)}}
    if method in ("ssvi", "dense_vi"):
        stds = np.exp(rng.normal(-3.4 if method == "ssvi" else -2.9, 0.45, 20_000))
        edges = np.geomspace(1e-3, 1, 61)
        weights["std_hist"] = {"edges": edges.tolist(), "counts": _histogram(stds, edges)}
    found["weights"] = weights
    if regression:
        nominal = np.arange(0.05, 1.0, 0.05)
        observed = np.clip(nominal + rng.normal(0, 0.015, nominal.size) - 0.03, 0, 1)
        found["intervals"] = {"nominal": nominal.tolist(), "observed": observed.tolist()}
        coverage = np.arange(1, 101) / 100
        found["selective"] = {
            "coverage": coverage.tolist(),
            "risk": (3000 * coverage).tolist(),
            "best_risk": (3000 * coverage**2).tolist(),
        }
        return found
    n = 1500
    confidence = rng.beta(9, 0.9, n)
    honesty = 1.0 if method == "ssvi" else 1.6
    right = rng.uniform(size=n) < np.clip(confidence**honesty, 0.1, 1)
    edges = np.linspace(0, 1, 16)
    place = np.clip(np.digitize(confidence, edges) - 1, 0, 14)
    count = np.bincount(place, minlength=15)

    def mean(values: np.ndarray) -> list[float | None]:
        return [float(values[place == m].mean()) if count[m] else None for m in range(15)]

    found["reliability"] = {
        "edges": edges.tolist(),
        "confidence": mean(confidence),
        "accuracy": mean(right.astype(float)),
        "count": count.tolist(),
    }
    entropy = np.clip((1 - confidence) * 3.2 + rng.normal(0, 0.04, n), 0, 2.3)
    edges = np.linspace(0, np.log(10), 25)
    found["entropy"] = {
        "edges": edges.tolist(),
        "right": _histogram(entropy[right], edges),
        "wrong": _histogram(entropy[~right] + 0.3, edges),
        "ood": _histogram(rng.normal(1.5, 0.35, 800), edges) if method == "ssvi" else None,
    }
    order = np.argsort(-confidence)
    accuracy = np.cumsum(right[order]) / np.arange(1, n + 1)
    found["selective"] = {
        "coverage": (np.arange(1, n + 1) / n).tolist(),
        "accuracy": accuracy.tolist(),
        "risk": (1 - accuracy).tolist(),
        "best_risk": (np.cumsum(np.sort(~right)) / np.arange(1, n + 1)).tolist(),
    }
    return found


def _shifted(names: tuple[str, ...], metrics: dict[str, float]) -> dict[str, float]:
    """Each metric grows by a tenth of itself with every severity."""
    found = {
        f"shift_{name}_{severity}_{key}": value * (1 + severity / 10)
        for name in names
        for severity in range(1, 6)
        for key, value in metrics.items()
    }
    return found | {f"shift_{key}": 1.3 * value for key, value in metrics.items()}


def write_run(
    folder: Path,
    method: str = "ssvi",
    seed: int = 0,
    *,
    sparsity: float | None = 0.95,
    regression: bool = False,
    layers: tuple = LAYERS,
    metrics: dict[str, Any] | None = None,
    epochs: int = 40,
    swaps: int = 20,
    config: dict[str, Any] | None = None,
) -> Path:
    rng = np.random.default_rng(seed + 97 * len(method))
    folder.mkdir(parents=True)
    if method in ("sgd", "dense_vi"):
        sparsity = None
    total = sum(shape[0] * shape[1] for _, shape, _ in layers)
    kept = round(total * (1 - (sparsity or 0.0)))
    measured: dict[str, Any] = {"nll": 0.21 + 0.01 * seed}
    if regression:
        measured |= {"rmse": 53.2, "crps": 30.1, "coverage": 0.89}
        measured |= {"aurc": 1512.25, "eaurc": 500.5, "epistemic": 12.5, "aleatoric": 50.25}
        measured |= _shifted(("noise",), {"rmse": 53.2, "nll": 0.21, "coverage": 0.89})
    else:
        measured |= {"accuracy": 0.97 + 0.004 * seed, "brier": 0.05, "ece": 0.03 + 0.002 * seed}
        measured |= {"adaptive_ece": 0.028, "marginal_calibration_error": 0.011}
        measured |= {"auroc": 0.93, "aupr": 0.91, "fpr95": 0.22, "auroc_energy": 0.915}
        if method in ("ssvi", "dense_vi"):
            measured |= {"auroc_mutual_information": 0.945}
        measured |= {"aurc": 0.00123, "eaurc": 0.00045}
        measured |= _shifted(("rotation", "noise"), {"accuracy": 0.6, "nll": 0.21, "ece": 0.03})
    measured |= {"nnz": kept, "sparsity": 1 - kept / total, "seconds": 12.5 + seed}
    measured |= {"checkpoint_bytes": 24 * kept}
    lines = _epochs(rng, epochs, method, regression)
    lines += _swaps(rng, layers, swaps) if method in ("ssvi", "rigl") else []
    environment = {"python": "3.11.9", "torch": "2.13.0", "gossamer": "0.1.0", "threads": 2}
    data = {"data": "diabetes"} if regression else {}
    files: dict[str, Any] = {
        "config.json": _config(method, seed, sparsity, **data, **(config or {})),
        "environment.json": environment,
        "metrics.json": measured | (metrics or {}),
        "curves.json": _curves(rng, method, layers, regression),
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "record.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of finished runs that no test changes: ssvi-s0, ssvi-s1, dense, sgd and table."""
    folder = tmp_path_factory.mktemp("finished")
    write_run(folder / "ssvi-s0", "ssvi", 0)
    write_run(folder / "ssvi-s1", "ssvi", 1)
    write_run(folder / "dense", "dense_vi")
    write_run(folder / "sgd", "sgd")
    write_run(folder / "table", regression=True)
    return folder


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Writes a run folder of a given name below tmp_path; arguments of ``write_run``."""

    def make(name: str, *arguments: Any, **settings: Any) -> Path:
        return write_run(tmp_path / name, *arguments, **settings)

    return make


@pytest.fixture
def only(monkeypatch):
    """Restricts the page to some plots: drawing is most of the time."""

    def restrict(*keys: str) -> None:
        chosen = tuple(plot for plot in PLOTS if plot.key in keys)
        assert len(chosen) == len(keys)
        monkeypatch.setattr("gossamer.report.html.PLOTS", chosen)

    return restrict
