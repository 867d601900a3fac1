"""The study of moments: its figures by hand, on a network small enough to sample well."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch
from scipy import stats
from torch import nn

import gossamer as gs
from gossamer.experiments import Finished, Scope
from gossamer.experiments.gossamer.moments import (
    CONFIGS,
    compare_ways,
    conclude,
    spearman,
    trained,
)


@pytest.fixture(scope="module")
def method() -> object:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    return gs.build("dense_vi", net, num_data=50, total_steps=10, posterior_std=0.4)


def test_figures(method):
    x, y = torch.randn(40, 5), torch.randint(3, (40,))
    lines = []
    found = compare_ways(method, x, y, reference_samples=2000, told=lines.append)
    rows = {row.way: row for row in found}
    reference = rows["local noise, 2000 samples"]
    assert (reference.largest, reference.mean, reference.same_label) == (0.0, 0.0, 1.0)
    assert (reference.information, reference.ranking) == (1.0, pytest.approx(1.0))
    by_hand = gs.predict(method, x, 2000, noise="local")
    moments = gs.predict_moments(method, x)
    difference = (moments.probs - by_hand.probs).abs()
    assert rows["moments"].largest == pytest.approx(float(difference.max()), abs=1e-6)
    assert rows["moments"].mean == pytest.approx(float(difference.amax(1).mean()), abs=1e-6)
    wanted = (moments.label == y).float().mean()
    assert rows["moments"].accuracy == pytest.approx(float(wanted), abs=1e-6)
    assert rows["moments"].mean < rows["local noise, 10 samples"].mean
    assert rows["local noise, 100 samples"].mean < rows["local noise, 10 samples"].mean
    assert len(lines) == len(found)


def test_ranks_as_scipy():
    a, b = torch.randn(2, 200, generator=torch.Generator().manual_seed(0))
    assert spearman(a, a + b) == pytest.approx(stats.spearmanr(a, a + b).statistic, abs=1e-12)


def test_training(watch):
    config = replace(CONFIGS["mlp"], epochs=1, limit_train=100)
    method, x, y = trained(config, watch)
    assert gs.predict_moments(method, x[:3]).probs.shape == (3, 10)
    assert len(x) == len(y)


def test_the_page(method, tmp_path):
    x, y = torch.randn(10, 5), torch.randint(3, (10,))
    rows = [asdict(row) for row in compare_ways(method, x, y, reference_samples=20)]
    found = Finished("", Scope(), tmp_path, [], {"mlp": {"test images": rows}})
    outcome = conclude(found)
    assert outcome.values == {"mlp, test images": rows}
    title, table = outcome.parts
    assert title == "### mlp, test images"
    assert [row[0] for row in table.rows] == [row["way"] for row in rows]
    assert table.rows[1][6] == f"{rows[1]['accuracy']:.4f}"
    assert table.headings[6] == "accuracy"
