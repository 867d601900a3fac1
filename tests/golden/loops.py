"""Loops without a method: a user's own over the pieces, and a run folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

import gossamer as gs
from golden.cases import LOOPS, RUNS
from golden.places import find, predictor_of
from golden.problems import NETWORKS, ROWS, batch, unseen
from golden.runs import NOISES, Note, network_values, prediction_values

STEPS = 10
NOT_COMPARED = ("seconds", "epoch_seconds", "checkpoint_bytes", "predict_seconds")
"""Times, and the bytes that their digits take."""


def run_loop(option: str, backend: str, note: Note) -> None:
    """The loop of the README, with an optimiser of torch."""
    kind, make = NETWORKS["conv"]
    torch.manual_seed(0)
    bnn = gs.to_bayesian(make(), 0.7, backend=backend)
    name, settings = LOOPS[option]
    groups = gs.parameter_groups(bnn, lr=5e-3, std_lr=1e-2, weight_decay=1e-3)
    optimizer = getattr(torch.optim, name)(groups, **settings)
    elbo = gs.ELBO(bnn, ROWS, gs.linear_warmup(5, end=0.02))
    subspace = gs.Subspace(bnn, optimizer, total_steps=STEPS, update_every=3, end_fraction=1.0)
    bnn.train()
    for step in range(1, STEPS + 1):
        x, y = batch(kind, "categorical", step, torch.float32)
        loss = elbo(F.cross_entropy(bnn(x), y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        swap = subspace.step()
        values = {
            "loss": loss,
            "kl": gs.kl_divergence(bnn),
            "swap": swap,
            "gradients": {n: p.grad for n, p in bnn.named_parameters()},
            "model": network_values(bnn),
            "optimizer": optimizer.state_dict(),
            "elbo": elbo.state_dict(),
            "subspace": subspace.state_dict(),
            "generator": torch.get_rng_state(),
        }
        note(f"step {step}", values)
    note("end", _end_of_loop(bnn, unseen(kind, 20, torch.float32)))


def _end_of_loop(bnn: torch.nn.Module, x: torch.Tensor) -> dict[str, object]:
    bnn.eval()
    found: dict[str, object] = {"mean": bnn(x), "nnz": gs.summary(bnn).nnz}
    for noise in NOISES:
        with gs.sampling(bnn, seed=3, noise=noise):
            found[f"sampling/{noise}"] = [bnn(x), bnn(x)]
        found[f"predict/{noise}"] = prediction_values(gs.predict(bnn, x, 3, noise=noise))
    found["moments"] = prediction_values(gs.predict_moments(bnn, x))
    plain = gs.to_deterministic(bnn)
    found["deterministic"] = {**network_values(plain), "output": plain(x)}
    found["training"] = bnn.train()(x)
    return found


class _After:
    """Asks a run to stop after so many steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def is_set(self) -> bool:
        self.left -= 1
        return self.left <= 0


def run_folder(method: str, backend: str, note: Note, out: Path) -> None:
    """A run that is stopped and resumed: its files, and the predictions of what is loaded."""
    train: Callable[..., Any] = find("train")
    config = find("RunConfig")(
        data="digits",
        limit_train=220,
        model_options={"hidden": [16]},
        method=method,
        method_options=dict(RUNS[method]),
        epochs=4,
        num_samples=3,
        noise="both",
        backend=backend,
        seed=7,
    )
    first = train(config, out, stop=_After(6))
    second = train(None, out, resume=True)
    note("sittings", {"first": (first.status, first.step), "second": (second.status, second.step)})
    note("metrics.json", _untimed(json.loads((out / "metrics.json").read_text())))
    note("curves.json", json.loads((out / "curves.json").read_text()))
    lines = (out / "record.jsonl").read_text().splitlines()
    note("record.jsonl", [_untimed(json.loads(line)) for line in lines])
    loaded = predictor_of(find("load_run")(out))
    x = unseen("images", 20, torch.float32)
    for noise in NOISES:
        note(f"predict {noise}", prediction_values(gs.predict(loaded, x, 3, noise=noise, seed=1)))


def _untimed(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in NOT_COMPARED}
