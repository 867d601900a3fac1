"""300 rows, 2,000 columns, 5 of them true: screen, train on what was found, measure.

python examples/wide_table.py --seeds 10 --kind linear
python examples/wide_table.py --seeds 10 --estimator           # SparseBayesRegressor, no settings
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
import torch

import gossamer
from gossamer.models import mlp
from gossamer.selection import importances, on_selected
from gossamer.sklearn import SparseBayesRegressor

ROWS, TRAINED, COLUMNS, TRUE, NOISE = 300, 240, 2000, 5, 0.5


def task(seed: int, kind: str) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Inputs [300, 2000], targets [300] and the true columns."""
    draw = np.random.default_rng([2026, seed])
    x = draw.standard_normal((ROWS, COLUMNS))
    true = np.sort(draw.choice(COLUMNS, TRUE, replace=False))
    size = draw.uniform(1.0, 3.0, TRUE) * draw.choice([-1.0, 1.0], TRUE)
    z = x[:, true]
    effect = z if kind == "linear" else z + 0.4 * np.sin(2.0 * z) + 0.2 * (z**2 - 1.0)
    return x, effect @ size + NOISE * draw.standard_normal(ROWS), true.tolist()


def measure(
    seed: int, kind: str = "linear", epochs: int = 400, method: str = "ssvi"
) -> dict[str, Any]:
    """What one seed gives: RMSE and coverage of 90 % intervals on 60 rows, and the columns."""
    x, y, true = task(seed, kind)
    centre, scale = y[:TRAINED].mean(), y[:TRAINED].std()
    inputs = torch.tensor(x, dtype=torch.float32)
    targets = torch.tensor((y - centre) / scale, dtype=torch.float32)

    def make(columns: tuple[int, ...] | None) -> torch.nn.Module:
        shape = (COLUMNS,)
        return mlp(input_shape=shape, output_size=1, hidden=[128, 128], columns=columns, skip=True)

    torch.manual_seed(seed)
    train = (inputs[:TRAINED], targets[:TRAINED])
    network, found = on_selected(*train, "regression", make, seed)
    trained = gossamer.fit(train, method, network, epochs=epochs, seed=seed, sparsity=0.9).method
    posterior = trained.posterior()
    answer = posterior.predict(inputs[TRAINED:], 32)
    held = targets[TRAINED:]
    lower, upper = (bound.reshape(-1) for bound in answer.interval(0.9))
    first = importances(posterior).argsort(descending=True)[:TRUE]
    return {
        "seed": seed,
        "rmse": float((answer.mean.reshape(-1) - held).square().mean().sqrt() * scale),
        "coverage": float(((held >= lower) & (held <= upper)).float().mean()),
        "true_found": len(set(found.columns) & set(true)),
        "others": len(set(found.columns) - set(true)),
        "important_first": sorted(first.tolist()) == true,
    }


def measure_estimator(seed: int, kind: str = "linear") -> dict[str, Any]:
    """The same of the estimator with its defaults."""
    x, y, true = task(seed, kind)
    model = SparseBayesRegressor(random_state=seed).fit(x[:TRAINED], y[:TRAINED])
    held = y[TRAINED:]
    lower, upper = model.predict_interval(x[TRAINED:], 0.9)
    found = set(np.flatnonzero(model.selected_features_).tolist())
    first = np.argsort(-model.feature_importances_)[:TRUE]
    return {
        "seed": seed,
        "rmse": float(np.sqrt(np.mean((model.predict(x[TRAINED:]) - held) ** 2))),
        "coverage": float(np.mean((lower <= held) & (held <= upper))),
        "true_found": len(found & set(true)),
        "others": len(found - set(true)),
        "important_first": sorted(first.tolist()) == true,
    }


def main(
    seeds: int = 10,
    kind: str = "linear",
    epochs: int = 400,
    method: str = "ssvi",
    *,
    estimator: bool = False,
) -> list[dict[str, Any]]:
    """Print a line for each seed, and the means."""
    rows = []
    for seed in range(seeds):
        found = measure_estimator(seed, kind) if estimator else measure(seed, kind, epochs, method)
        rows.append(found)
        print(json.dumps(rows[-1]), flush=True)
    means = {name: float(np.mean([row[name] for row in rows])) for name in ("rmse", "coverage")}
    print(json.dumps({"kind": kind, "seeds": seeds, **means}))
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--kind", choices=("linear", "mild"), default="linear")
    parser.add_argument("--method", choices=("ssvi", "rigl"), default="ssvi")
    parser.add_argument("--estimator", action="store_true", help="the estimator with its defaults")
    main(**vars(parser.parse_args()))
