"""docs/custom-loops.md runs as it stands, from the first block to the last."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gossamer as gs
from documents.pages import run, snippets
from gossamer.nn import sparse_layers, state_kinds

STEPS = 24


@pytest.fixture
def names():
    """What the page takes for granted: a network, data and a number of steps."""
    torch.manual_seed(0)
    x = torch.randn(96, 8)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    train_set = TensorDataset(x, y)
    loader = list(islice(DataLoader(train_set, 16, shuffle=True), STEPS)) * (STEPS // 6)
    net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3))
    return {"net": net, "train_set": train_set, "loader": loader, "steps": STEPS, "x_new": x[:5]}


def test_every_block_runs(names, monkeypatch):
    monkeypatch.setattr(state_kinds, "_REGISTERED", {})  # what the page registers is for it alone
    blocks = snippets("custom-loops.md")
    assert len(blocks) == 6
    first = run(blocks[:1], names, "custom-loops.md")
    assert first["subspace"].steps == first["elbo"].calls == STEPS
    assert first["pred"].probs.shape == (5, 3)
    assert first["loss"].isfinite()
    last = run(blocks[1:], first, "custom-loops.md")
    assert last["info"].loss > 0
    assert last["method"].model is not None


def test_the_average_and_the_budget_are_those_of_the_text(names):
    blocks = snippets("custom-loops.md")
    at = run(blocks[:1], names, "custom-loops.md")
    ema_block, budget_block = (
        next(b for b in blocks if word in b) for word in ("AveragedModel(", "class ByScore")
    )
    run([ema_block], at, "custom-loops.md")
    ema, bnn = at["ema"].module, at["bnn"]
    for name, layer in sparse_layers(bnn).items():
        assert torch.equal(sparse_layers(ema)[name].indices, layer.indices)
    run([budget_block], at, "custom-loops.md")
    assert gs.summary(at["bnn"]).nnz == at["before"]
