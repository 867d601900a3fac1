"""A run's finishing step: the validation part chooses, and never judges what it chose."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

import gossamer as gs
import gossamer.train.assembly
from gossamer.errors import InvalidValue
from gossamer.train import Examples, RunConfig, evaluate, fit, load_dataset, load_run, train
from gossamer.train.finishing import judged_by_left_out


@pytest.mark.parametrize("finish", ["temperature", "last_layer"])
def test_the_posterior_of_a_run_is_finished_by_its_validation_part(
    tmp_path: Path, small: RunConfig, finish: str
) -> None:
    bare = train(small, tmp_path / "bare").metrics
    config = dataclasses.replace(small, finish=finish)
    metrics = train(config, tmp_path / "run").metrics
    dataset, plain = load_dataset(config), load_run(tmp_path / "bare").posterior
    rows = (dataset.x_val, dataset.y_val)
    if finish == "temperature":
        expected = gs.tempered(plain, rows, num_samples=2)
    else:
        expected = gs.last_layer(plain, rows, num_data=len(dataset.x_train), num_samples=2)
    stored = load_run(tmp_path / "run").posterior
    assert stored.finish_figures == expected.finish_figures
    one, two = stored.predict(dataset.x_test, 2), expected.predict(dataset.x_test, 2)
    assert torch.equal(one.probs, two.probs)
    assert metrics is not None
    assert bare is not None
    assert metrics["temperature"] == stored.finish.temperature
    assert ("last_layer_scale" in metrics) == (finish == "last_layer")
    assert "temperature" not in bare
    assert metrics["nll"] == evaluate(stored, dataset, num_samples=2)[0]["nll"]
    assert metrics["nll"] != bare["nll"]


def test_rows_that_chose_do_not_judge(tmp_path: Path, small: RunConfig) -> None:
    config = dataclasses.replace(small, finish="temperature", evaluate_on="validation")
    metrics = train(config, tmp_path / "run").metrics
    dataset, stored = load_dataset(config), load_run(tmp_path / "run").posterior
    half = len(dataset.x_val) // 2
    x, y = dataset.x_val, dataset.y_val
    plain = stored.finished(type(stored.finish)())
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(config.seed))
    first = order[:half].sort().values
    again = gs.tempered(plain, (x[first], y[first]), num_samples=2)
    assert again.finish.temperature == stored.finish.temperature
    rest = order[half:].sort().values
    probs = stored.predict(x[rest], 2).probs
    nll = -probs.double()[torch.arange(len(probs)), y[rest]].log().mean()
    assert metrics is not None
    assert metrics["nll"] == pytest.approx(float(nll), rel=1e-5)


def test_a_run_for_real_targets(tmp_path: Path) -> None:
    config = RunConfig(
        data="diabetes",
        model_options={"hidden": [8]},
        method="rigl",
        method_options={"sparsity": 0.5},
        epochs=2,
        finish="last_layer",
    )
    metrics = train(config, tmp_path / "run").metrics
    assert metrics is not None
    assert metrics["epistemic"] > 0
    stored = load_run(tmp_path / "run").posterior
    assert metrics["aleatoric"] == pytest.approx(
        stored.preparation.scale_to_original(stored.finish.head.noise.double()).item()
        * stored.finish.temperature,
        rel=1e-4,
    )


def test_the_parts_of_a_spread_are_told_in_the_target_s_units(tmp_path: Path) -> None:
    config = RunConfig(
        data="diabetes",
        model_options={"hidden": [8]},
        method="rigl",
        method_options={"sparsity": 0.5},
        members=4,
        leave_out=2,
        harvest="abreast",
        epochs=2,
        validation_fraction=0.0,
        num_samples=4,
        finish="left_out",
    )
    metrics = train(config, tmp_path / "run").metrics
    assert metrics is not None
    stored, dataset = load_run(tmp_path / "run").posterior, load_dataset(config)
    found = stored.predict(dataset.x_test, 4, seed=config.seed)
    for name in ("epistemic", "aleatoric"):
        part = stored.preparation.scale_to_original(getattr(found, name).double())
        assert metrics[name] == pytest.approx(float(part.square().mean().sqrt()), rel=1e-6)
        assert metrics[name] > 1.0
    assert "aurc_epistemic" in metrics


@pytest.mark.parametrize("weight", [0.0, 1e-6])
def test_rows_judge_in_proportion_to_their_weight(weight: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 2, generator=generator)
    y = x[:, :1] + 0.1 * torch.randn(200, 1, generator=generator)
    bad = torch.arange(200) % 4 == 0
    y[bad] += 20.0 * torch.randn(50, 1, generator=generator)
    examples = Examples(x, y, weight=torch.where(bad, weight, 1.0)).dealt(4, 2, 0)
    result = fit(
        examples,
        "rigl",
        lambda: torch.nn.Linear(2, 1),
        likelihood="gaussian",
        sparsity=0.0,
        members=4,
        leave_out=2,
        epochs=40,
        batch_size=50,
        lr=0.03,
    )
    found = judged_by_left_out(result.method.posterior(), examples, 0)
    # The good rows are 0.1 from the line, the others 20.
    assert 0.05 < float(found.posterior.predict(x, 4).std.mean()) < 0.3
    assert found.figures["left_out_rmse"] < 0.3
    assert found.standardised is not None
    assert float(found.standardised.abs().max()) < 6.0


def test_without_rows_to_choose_by_nothing_is_trained(tmp_path: Path, small: RunConfig) -> None:
    config = dataclasses.replace(small, finish="temperature", validation_fraction=1e-9)
    dataset = load_dataset(config)
    if dataset.validation is None or len(dataset.x_val) < 2:
        with pytest.raises(InvalidValue, match="needs 2 validation rows or more"):
            train(config, tmp_path / "run")
        assert not (tmp_path / "run").exists()
    with pytest.raises(InvalidValue, match="finish"):
        dataclasses.replace(small, finish="banana")


def test_what_cannot_be_finished_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = RunConfig(data="diabetes", likelihood_options={"noise_std": "head"}, finish="last_layer")
    with pytest.raises(InvalidValue, match="a noise of its own; set finish=temperature"):
        train(real, tmp_path / "run")
    build = gossamer.train.assembly.build_model

    def squashed(*args, **options):
        return torch.nn.Sequential(build(*args, **options), torch.nn.LogSoftmax(1))

    monkeypatch.setattr(gossamer.train.assembly, "build_model", squashed)
    with pytest.raises(InvalidValue, match="does not end in a linear layer"):
        train(RunConfig(data="digits", finish="last_layer"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_alone_is_told_to_be_unfinished(tmp_path: Path, small: RunConfig) -> None:
    config = dataclasses.replace(small, finish="temperature")
    train(config, tmp_path / "run")
    (tmp_path / "run" / "posterior.safetensors").unlink()
    loaded = load_run(tmp_path / "run")
    assert loaded.notice is not None
    assert "without the run's finishing step" in loaded.notice
    assert loaded.posterior.finish_figures == {}
