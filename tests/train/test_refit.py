"""A second fit on all rows: what it learns from, for how long, and what it takes over."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import gossamer
from gossamer.errors import InvalidValue
from gossamer.inference import build
from gossamer.sklearn import SparseBayesClassifier, SparseBayesRegressor
from gossamer.train import Examples, RunConfig, fit, load_run, train
from gossamer.train.assembly import assemble
from gossamer.train.refit import StopAfter, all_rows, refitted

CONFIG = RunConfig(
    data="digits",
    limit_train=300,
    method="rigl",
    model_options={"hidden": [16]},
    epochs=6,
    checkpoint_every=1,
    select="best",
    finish="temperature",
    refit=True,
)


def test_all_rows_are_those_of_both_parts():
    x, y = torch.arange(10.0)[:, None], torch.arange(10.0)
    examples = Examples(x[:7], y[:7], (x[7:], y[7:]), weight=torch.full((7,), 2.0))
    found = all_rows(examples)
    assert torch.equal(found.x, x)
    assert torch.equal(found.y, y)
    assert found.weight.tolist() == [2.0] * 7 + [1.0] * 3
    assert found.validation is None
    assert all_rows(found) is found
    told = Examples(
        x[:7], y[:7], (x[7:], y[7:]), weight=torch.full((7,), 2.0), validation_weight=0.5
    )
    assert all_rows(told).weight.tolist() == [2.0] * 7 + [0.5] * 3


@pytest.mark.parametrize("epochs", [1, 3, 5])
def test_it_ends_where_it_is_told_on_the_schedule_of_the_whole(epochs):
    x, y = torch.randn(40, 2), torch.randn(40, 1)
    options = {"epochs": 5, "batch_size": 10, "sparsity": 0.0, "model": torch.nn.Linear(2, 1)}
    whole = fit((x, y), "rigl", **options)
    part = fit((x, y), "rigl", observers=[StopAfter(epochs)], **options)
    assert len(part.history) == epochs
    assert part.history[-1].lr == whole.history[epochs - 1].lr
    if epochs == 5:
        assert part.ending == "finished"


def test_the_finish_is_that_of_held_out_rows_and_the_weights_are_those_of_all():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 3, generator=generator)
    y = x[:, :1] + 0.3 * torch.randn(120, 1, generator=generator)
    net = torch.nn.Linear(3, 1)
    examples = Examples(x[:80], y[:80], (x[80:], y[80:]))
    options = {"epochs": 4, "batch_size": 20, "sparsity": 0.0, "model": net}
    first = fit(examples, "rigl", **options).method
    seen = []

    def again(rows, ends):
        seen.append(len(rows.x))
        return fit(rows, "rigl", observers=ends, **options)

    look = {"num_samples": 1, "seed": 0}
    found = refitted(first, examples, again, epochs=2, finishes=True, conformal=True, look=look)
    assert seen == [120]
    held_out = (x[80:], y[80:])
    expected = gossamer.prediction.calibrated(
        gossamer.tempered(first, held_out, **look), held_out, **look
    )
    assert found.finish.temperature == expected.finish.temperature
    assert torch.equal(found.finish.calibration.scores, expected.finish.calibration.scores)
    alone = fit((x, y), "rigl", observers=[StopAfter(2)], **options).method.posterior()
    new = torch.randn(9, 3)
    assert torch.equal(found.predict(new, 1).mean, alone.predict(new, 1).mean)
    plain = refitted(first, examples, again, epochs=2, finishes=False, conformal=False, look=look)
    assert plain.finish.is_plain


def test_a_run_predicts_by_its_second_fit(tmp_path):
    train(CONFIG, tmp_path / "run")
    loaded = load_run(tmp_path / "run").posterior
    assembly = assemble(CONFIG)
    kept = int(loaded.about["step"]) // assembly.facts.steps_per_epoch
    rows = all_rows(assembly.examples)
    count = len(rows.x)
    assert count == 300 + len(assembly.dataset.x_val) > 300
    per_epoch = -(-count // CONFIG.batch_size)
    torch.manual_seed(CONFIG.seed)
    settings = {k: v for k, v in assembly.facts.method_settings.items() if k != "lr"}
    method = build(
        "rigl",
        lambda: gossamer.models.build_model(
            "mlp", input_shape=(1, 8, 8), output_size=10, hidden=[16]
        ),
        num_data=count,
        total_steps=6 * per_epoch,
        **settings,
    )
    expected = fit(rows, method, epochs=6, seed=CONFIG.seed, observers=[StopAfter(kept)])
    x = assembly.dataset.x_test[:20]
    found = loaded.network()(x)
    torch.testing.assert_close(found, expected.method.posterior().network()(x))
    assert loaded.finish.temperature != 1.0


def test_an_interrupted_run_comes_to_the_same(tmp_path):
    whole = train(CONFIG, tmp_path / "a").metrics
    calls = iter(range(100))

    class Stop:
        def is_set(self):
            return next(calls) >= 7

    assert train(CONFIG, tmp_path / "b", stop=Stop()).status == "interrupted"
    resumed = train(CONFIG, tmp_path / "b", resume=True).metrics
    skip = ("seconds", "predict_seconds", "checkpoint_bytes")
    assert {k: v for k, v in resumed.items() if k not in skip} == {
        k: v for k, v in whole.items() if k not in skip
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"validation_fraction": 0.0, "finish": "none", "select": "last"}, "no validation rows"),
        ({"evaluate_on": "validation"}, "would train on the rows that are to be measured"),
    ],
)
def test_what_leaves_nothing_to_refit_is_refused_before_training(tmp_path, change, words):
    config = RunConfig.from_json({**CONFIG.to_json(), **change})
    with pytest.raises(InvalidValue, match=words):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_estimators_refit():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200, 3))
    y = np.where(x[:, 0] + 0.3 * draw.normal(size=200) > 0.0, "a", "b")
    small = {"hidden": (16,), "sparsity": 0.5, "max_steps": 120, "random_state": 0}
    plain, again = (
        SparseBayesClassifier(refit=refit, **small).fit(x, y) for refit in (False, True)
    )
    assert not np.array_equal(plain.predict_proba(x), again.predict_proba(x))
    assert again.posterior_.finish.head is None
    assert again.posterior_.finish.calibration is not None
    assert again.score(x, y) > 0.85
    model = SparseBayesRegressor("sgd", refit=True, **{**small, "max_steps": 300})
    target = x[:, 0] + x[:, 1]
    assert model.fit(x, target).score(x, target) > 0.5


def test_the_command_line_has_it(tmp_path, monkeypatch):
    from gossamer.cli.main import main

    monkeypatch.chdir(tmp_path)
    words = ["--limit-train", "200", "--epochs", "1", "--set", "hidden=[8]", "--method", "sgd"]
    assert main(["train", *words, "--refit", "--no-report", "--quiet", "--out", "run"]) == 0
    assert json.loads(Path("run/config.json").read_text())["refit"] is True
