"""The recommended presets as settings of a run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gossamer import models
from gossamer.errors import UnknownName
from gossamer.inference import METHODS
from gossamer.train import RunConfig, RunFolder, SilentProgress, train
from gossamer.train.quality import DEFAULT, QUALITIES, normalises, settled, with_quality


def test_qualities_are_valid_and_in_order_of_cost():
    costs = [quality.cost for quality in QUALITIES.values()]
    assert costs == sorted(costs)
    assert next(iter(QUALITIES)) == DEFAULT
    for name, quality in QUALITIES.items():
        config = with_quality(RunConfig(), name)
        METHODS[config.method].config(**config.method_options)  # checks every setting
        assert config.num_samples == quality.members == round(quality.cost)
        assert (config.members or 1) == quality.members


def test_the_data_decide_the_method(tmp_path):
    assert with_quality(RunConfig(data="digits"), "fast").method == "ngvi"
    assert with_quality(RunConfig(data="diabetes"), "fast").method == "rigl"
    table = tmp_path / "table.csv"
    table.write_text("a,b\n" + "\n".join(f"{n},{n * 0.37}" for n in range(40)))
    assert with_quality(RunConfig(data=str(table), target="b"), "fast").method == "rigl"
    told = RunConfig(data=str(table), target="a", task="classification")
    assert with_quality(told, "fast").method == "ngvi"
    with pytest.raises(UnknownName, match="target column"):
        with_quality(RunConfig(data=str(table), target="c"), "fast")


@pytest.mark.parametrize(("model", "method"), [("lenet", "ngvi"), ("resnet20", "rigl")])
def test_batch_normalisation_decides_too(model, method):
    before = torch.get_rng_state()
    assert with_quality(RunConfig(data="fashion_mnist", model=model), "fast").method == method
    assert torch.equal(torch.get_rng_state(), before)
    has_it = any("BatchNorm" in type(m).__name__ for m in getattr(models, model)().modules())
    assert normalises(model) == has_it == (method == "rigl")


def test_what_was_set_before_stays():
    base = RunConfig(data="digits", seed=4, method_options={"sparsity": 0.8, "average": 0.1})
    config = with_quality(base, "best")
    assert (config.seed, config.data) == (4, "digits")
    assert config.method_options["sparsity"] == config.member_sparsity == 0.8
    assert config.method_options["average"] == 0.1


def test_members_follow_a_sparsity_that_is_set_later():
    config = with_quality(RunConfig(), "good")
    later = replace(config, method_options={**config.method_options, "sparsity": 0.7})
    assert settled(later, "good").member_sparsity == 0.7
    one = replace(with_quality(RunConfig(), "fast"), method_options={"sparsity": 0.7})
    assert settled(one, "fast").member_sparsity is None


def test_unknown():
    with pytest.raises(UnknownName, match="quality"):
        with_quality(RunConfig(), "superb")


@pytest.mark.parametrize("name", QUALITIES)
def test_a_run_of_each(name, tmp_path):
    config = with_quality(RunConfig(data="digits", epochs=3, limit_train=400), name)
    result = train(config, tmp_path / name, progress=SilentProgress())
    members = config.members or 1
    weights = 64 * 256 + 256 * 256 + 256 * 10
    assert result.metrics["nnz"] == members * round(0.05 * weights)
    assert result.metrics["temperature"] > 0
    assert RunFolder(tmp_path / name).posterior.exists()
