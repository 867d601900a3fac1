"""How sparse small networks are, and what is said of those that keep too little."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from torch import nn

from gossamer import summary
from gossamer.errors import InvalidValue
from gossamer.sklearn import SparseBayesClassifier, SparseBayesRegressor
from gossamer.sklearn.sparsity import resolved, widths


def _rows() -> tuple[NDArray[Any], NDArray[Any]]:
    x = np.random.default_rng(0).normal(size=(200, 3))
    return x, (x[:, 0] + x[:, 1] > 0).astype(int)


def _kept(model: Any) -> int:
    return summary(model.posterior_.network()).nnz


@pytest.mark.parametrize("inputs", [1, 3, 50, 4000])
@pytest.mark.parametrize("outputs", [1, 10])
def test_the_usual_network_has_the_usual_sparsity(inputs: int, outputs: int) -> None:
    assert resolved("auto", (256, 256), inputs, outputs) == 0.95


@pytest.mark.parametrize("hidden", [(1,), (16,), (50, 50), (128, 128), (256,), (8, 8, 8)])
def test_small_ones_keep_four_weights_for_a_unit_or_all(hidden: tuple[int, ...]) -> None:
    sizes = (3, *hidden, 2)
    weights = sum(a * b for a, b in pairwise(sizes))
    sparsity = resolved("auto", hidden, 3, 2)
    kept = round((1.0 - sparsity) * weights)
    assert kept == max(min(4 * sum(hidden), weights), round(0.05 * weights))
    assert resolved(0.9, hidden, 3, 2) == 0.9
    assert resolved("auto", (), 3, 2) == 0.0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_small_network_is_not_constant_by_default(seed: int) -> None:
    x, y = _rows()
    model = SparseBayesClassifier(hidden=(16,), random_state=seed).fit(x, y)
    assert model.score(x, y) > 0.9
    assert _kept(model) == 64
    assert any("small network: sparsity is 0.2," in note for note in model.notes_)
    assert model.get_params()["sparsity"] == "auto"
    assert clone(model).sparsity == "auto"


def test_every_method_with_a_sparsity_has_it_and_files_keep_the_word(tmp_path: Path) -> None:
    x, y = _rows()
    settings: dict[str, Any] = {"hidden": (16,), "max_steps": 20, "random_state": 0}
    model = SparseBayesRegressor("ssvi", **settings).fit(x, y)
    assert _kept(model) == 64
    model.save(tmp_path / "model.safetensors")
    found = SparseBayesRegressor.load(tmp_path / "model.safetensors")
    assert found.sparsity == "auto"
    without = SparseBayesRegressor("dense_vi", **settings).fit(x, y)
    assert not any("small network" in note for note in without.notes_)
    told = {"sparsity": 0.5}
    chosen = SparseBayesRegressor("rigl", **settings, method_options=told).fit(x, y)
    assert _kept(chosen) == 32
    assert not any("small network" in note for note in chosen.notes_)


def test_what_was_told_is_done_and_said_to_be_too_little() -> None:
    x, y = _rows()
    settings: dict[str, Any] = {"hidden": (16,), "max_steps": 20, "random_state": 0}
    model = SparseBayesClassifier(sparsity=0.95, **settings).fit(x, y)
    assert _kept(model) == 4
    said = "; ".join(model.notes_)
    assert "keeps 4 weights for 16 hidden units" in said
    assert "no column has a way to the output of the network" in said
    assert len(set(model.predict(x))) == 1
    many = SparseBayesRegressor(sparsity=0.95, members=4, **settings).fit(x, y)
    assert any("of 4 networks" in note for note in many.notes_)
    enough = SparseBayesClassifier(sparsity=0.5, **settings).fit(x, y)
    assert enough.notes_ == ()
    assert len(set(enough.predict(x))) == 2


def test_a_module_is_as_sparse_as_ever() -> None:
    x, y = _rows()
    module = nn.Sequential(nn.Linear(3, 40), nn.ReLU(), nn.Linear(40, 2))
    model = SparseBayesClassifier("ssvi", module=module, max_steps=20, random_state=0).fit(x, y)
    assert _kept(model) == 10


def test_widths_may_be_one_number_and_must_be_numbers() -> None:
    x, y = _rows()
    settings: dict[str, Any] = {"max_steps": 20, "random_state": 0}
    model = SparseBayesClassifier(hidden=16, **settings).fit(x, y)
    same = SparseBayesClassifier(hidden=(16,), **settings).fit(x, y)
    assert np.array_equal(model.predict_proba(x), same.predict_proba(x))
    assert model.get_params()["hidden"] == 16
    assert widths(np.int64(8)) == widths(np.array([8])) == (8,)
    for wrong in (0, 2.5, "64", (16, 0), (16, None), True):
        with pytest.raises(InvalidValue, match=r"hidden = .*widths.*; write e\.g\."):
            SparseBayesClassifier(hidden=wrong, **settings).fit(x, y)
    with pytest.raises(InvalidValue, match=r'sparsity = high.*"auto"'):
        SparseBayesClassifier(sparsity="high", **settings).fit(x, y)
