"""The diary of a new user with 25 tables, replayed on generated ones: every friction, by number.

What went wrong without a word comes first. Shapes are those of the diary; fits are short where the
question is not how good they are.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.errors import InvalidData
from gossamer.selection import screen
from gossamer.sklearn import SparseBayesClassifier, SparseBayesRegressor
from gossamer.train import fit

Call = Callable[..., Any]
QUICK = ("--method", "ssvi", "--sparsity", "0.5", "--epochs", "2", "--set", "hidden=[16]")
SHORT = (*QUICK, "--no-report", "--json")


def houses(rows: int = 300, seed: int = 0) -> pd.DataFrame:
    """Area, city, day of sale and price: the price is linear, with a noise of 20,000."""
    draw = np.random.default_rng(seed)
    area = draw.uniform(40.0, 200.0, rows)
    city = draw.choice(["Bern", "Basel", "Genf"], rows)
    days = pd.to_timedelta(draw.integers(0, 900, rows), unit="D")
    price = 3000.0 * area + 80_000.0 * (city == "Basel") + draw.normal(0.0, 20_000.0, rows)
    sold = (pd.Timestamp("2022-01-01") + days).strftime("%Y-%m-%d")
    return pd.DataFrame({"area": area.round(1), "city": city, "sold": sold, "price": price.round()})


def written(frame: pd.DataFrame, name: str = "t.csv", **options: Any) -> Path:
    path = Path(name)
    frame.to_csv(path, index=options.pop("index", False), **options)
    return path


def trained(gossamer: Call, data: Path, *words: object, target: str = "price") -> Any:
    answer = gossamer("train", "--data", data, "--target", target, *words, "--out", "run")
    assert answer.code == 0, answer.err
    return answer


def notes() -> str:
    return "\n".join(json.loads(Path("run/preparation.json").read_text())["notes"])


# Silent wrong answers


def test_1_the_best_state_is_kept_not_the_last() -> None:
    x = np.random.default_rng(0).normal(size=(250, 4))
    y = x[:, 0] + 0.5 * np.random.default_rng(1).normal(size=250)
    options = {"weight_decay": 0.0}
    model = SparseBayesRegressor("sgd", hidden=(64, 64), method_options=options, random_state=0)
    model.fit(x, y)
    losses = [epoch["val_nll"] for epoch in model.history_ if "val_nll" in epoch]
    best = int(np.argmin(losses))
    assert best < len(losses) - 5, "it did train past its best"
    assert losses[-1] > losses[best] + 0.1
    fresh = np.random.default_rng(2).normal(size=(2000, 4))
    error = np.sqrt(np.mean((model.predict(fresh) - fresh[:, 0]) ** 2))
    assert error < 0.45, "the state of least validation loss answers"


def test_2_a_chain_on_a_narrow_target_stays_in_its_bed() -> None:
    """10,741 rows, 16 inputs, two of them constant, a target of std 0.0147: 2,000 rows of it."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(2000, 16))
    x[:, [3, 7]] = 1.0
    y = 0.01 * x[:, 0] + 0.008 * np.sin(2.0 * x[:, 1]) + 0.005 * draw.normal(size=2000)
    model = SparseBayesRegressor("csghmc", random_state=0, max_steps=1200).fit(x[:1800], y[:1800])
    dist = model.predict_dist(x[1800:])
    low, high = dist.interval(0.9)
    assert np.mean(high - low) < 4.0 * y.std(), "540 times it in the diary"
    assert np.sqrt(np.mean((dist.mean - y[1800:]) ** 2)) < 0.8 * y.std()


@pytest.mark.parametrize("scale", [(5e5, 1e5), (0.0, 1e-3)])
def test_3_targets_that_were_not_standardised_are_remarked(scale: tuple[float, float]) -> None:
    x, net = torch.randn(64, 3), nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    y = scale[0] + scale[1] * torch.randn(64, 1)
    plan = {"num_data": 64, "total_steps": 10, "likelihood": "gaussian", "sparsity": 0.5}
    with pytest.warns(UserWarning, match="far from 0 and 1.*standardise"):
        gs.build("ssvi", net, **plan).step((x, y))


def test_4_the_noise_arrives_within_few_steps() -> None:
    frame = houses()
    model = SparseBayesRegressor("ssvi", max_steps=42, random_state=0)
    model.fit(frame.drop(columns="price"), frame["price"])
    aleatoric = model.predict_dist(houses(200, 1).drop(columns="price")).aleatoric
    assert 10_000.0 < np.median(aleatoric) < 60_000.0, "96,000 in the diary, where 20,000 is true"


def test_5_few_rows_of_many_columns() -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(240, 600))
    y = x[:, [10, 20, 30, 40, 50]].sum(1) + 0.5 * draw.normal(size=240)
    found = screen(torch.tensor(x[:200]), torch.tensor(y[:200])[:, None], "regression", 0)
    assert list(found.columns) == [10, 20, 30, 40, 50]


def test_6_a_text_date_is_no_category(gossamer: Call) -> None:
    frame = houses(900)
    frame["sold"] = pd.date_range("2020-01-01", periods=900).strftime("%Y-%m-%d")
    trained(gossamer, written(frame), *SHORT)
    assert "column 'sold': dates as YYYY-MM-DD, read as year, month, weekday" in notes()
    facts = json.loads(Path("run/config.json").read_text())["facts"]
    assert facts["input_shape"][0] < 20, "900 dummies in the diary"
    new = pd.DataFrame({"area": [90.0], "city": ["Bern"], "sold": ["2031-05-06"]})
    answer = gossamer("predict", "run", written(new, "new.csv"), "--json")
    assert answer.code == 0, answer.err


def test_7_a_constant_target_and_an_id_are_remarked(gossamer: Call) -> None:
    frame = houses(120).assign(id=range(120), price=7.0)
    answer = trained(gossamer, written(frame), *SHORT)
    assert "warning: the target 'price' is constant" in answer.err
    assert "warning: column 'id': a different whole number in every training row" in answer.err


# Refusals that stopped the work


@pytest.mark.parametrize("rule", ["mean", "drop"])
def test_8_missing_cells_are_read_by_a_rule(gossamer: Call, rule: str) -> None:
    frame = houses()
    frame["area"] = frame["area"].astype(object)
    frame.loc[[5, 17, 80], "area"] = ["", "?", "NA"]
    frame.loc[[8, 9], "city"] = None
    trained(gossamer, written(frame), *SHORT, "--missing", rule)
    said = "column 'area' (" if rule == "mean" else "rows have missing cells and are left out"
    assert said in notes()
    gap = pd.DataFrame({"area": [None], "city": ["Bern"], "sold": ["2022-02-02"]})
    words = ("predict", "run", written(gap, "gap.csv"), "--json")
    if rule == "mean":
        assert gossamer(*words).code == 0
    else:
        assert "is missing" in gossamer(*words).error


def test_9_a_new_level_is_answered_with_a_remark(gossamer: Call) -> None:
    trained(gossamer, written(houses()), *SHORT)
    new = houses(3, 1).assign(city=["Lugano", "Bern", "Bern"]).drop(columns="price")
    answer = gossamer("predict", "run", written(new, "new.csv"), "--json")
    assert answer.code == 0
    assert "Lugano" in answer.err or "other" in answer.err
    assert "was never seen" in answer.err or "that training never saw" in answer.err


@pytest.mark.parametrize("rows", [12, 58, 88])
def test_10_few_rows_have_a_batch_that_fits(gossamer: Call, rows: int) -> None:
    trained(gossamer, written(houses(rows)), *SHORT)


def test_11_every_row_may_train(gossamer: Call) -> None:
    data, test = written(houses(691)), written(houses(50, 1), "test.csv")

    def count(*words: object) -> int:
        trained(gossamer, data, *SHORT, *words)
        facts = json.loads(Path("run/config.json").read_text())["facts"]
        Path("run").rename(f"run{time.monotonic_ns()}")
        return int(facts["num_data"])

    assert count("--validation-fraction", "0", "--test-fraction", "0") == 691
    assert count("--validation-fraction", "0", "--test", test) == 691
    assert count() == 498, "the usual parts"


def test_12_a_labelled_file_is_measured(gossamer: Call) -> None:
    trained(gossamer, written(houses()), *SHORT)
    found = gossamer("evaluate", "run", "--data", written(houses(40, 1), "new.csv"), "--json").json
    assert found["rows"] == 40
    assert found["rmse"] > 0.0


def test_13_and_14_likelihoods_have_names(gossamer: Call) -> None:
    said = gossamer("train", "--help").out
    for name in ("heteroscedastic", "student_t", "poisson", "negative_binomial"):
        assert name in said
    frame = houses().drop(columns="price")
    frame["visits"] = np.random.default_rng(0).poisson(4.0, len(frame))
    data = written(frame)
    trained(gossamer, data, *SHORT, "--likelihood", "poisson", target="visits")
    Path("run").rename("counts")
    trained(gossamer, data, *SHORT, "--likelihood", "heteroscedastic", "--task", "regression",
            target="visits")  # fmt: skip
    Path("run").rename("noise")
    trained(gossamer, data, *SHORT, "--quiet", target="visits")
    assert "task classification, inferred: 'visits' holds" in notes(), "kept, also when quiet"


def test_15_files_as_people_have_them(gossamer: Call) -> None:
    trained(gossamer, written(houses(), index=True), *SHORT)
    assert "the first column has no name and counts the rows" in notes()
    rows = houses(20, 1).drop(columns="price")
    more = rows.assign(extra=1.0)
    latin = rows.assign(city="Zürich")
    files = [
        written(more, "extra.csv"),
        written(rows, "t.tsv", sep="\t"),
        written(latin, "latin.csv", encoding="cp1252"),
        written(rows, "index.csv", index=True),
    ]
    Path("t.csv.gz").write_bytes(gzip.compress(rows.to_csv(index=False).encode()))
    for path in [*files, Path("t.csv.gz")]:
        answer = gossamer("predict", "run", path, "--json")
        assert answer.code == 0, (path, answer.err)
    assert "extra" in gossamer("predict", "run", "extra.csv", "--json").err


def test_15_and_16_decimal_commas_and_money(gossamer: Call) -> None:
    frame = houses()
    frame["area"] = [f"{v:.1f}".replace(".", ",") for v in frame["area"]]
    frame["price"] = [f"${v:,.0f}" for v in frame["price"]]
    found = trained(gossamer, written(frame, sep=";"), *SHORT).json
    assert "target 'price': numbers are read as $1,234" in notes()
    assert 1000.0 < found["rmse"] < 300_000.0, "in dollars"


# Slow or missing


def test_18_the_budget_is_in_steps(gossamer: Call) -> None:
    """60 epochs of 100,000 rows were 67,500 steps, and 60 of 500 were 480."""
    from gossamer.train.budget import default_epochs
    from gossamer.train.tables import table_recipe

    assert default_epochs(8, (13,), labels=False) * 8 == 4000
    assert default_epochs(1407, (13,), labels=False) == 20
    assert table_recipe(100_000).steps == 6000
    assert table_recipe(500).steps == 2000


def test_20_levels_and_digits_are_told(gossamer: Call) -> None:
    frame = houses()
    frame["price"] = frame["price"] * 1e-9
    trained(gossamer, written(frame), *QUICK, "--no-report")
    table = gossamer("evaluate", "run").out
    for said in ("coverage of 90 %", "width of 90 %", "R²", "MAE"):
        assert said in table
    shown = next(line for line in table.splitlines() if line.startswith("RMSE"))
    assert float(shown.split()[-1]) > 0.0, "0.0000 in the diary"


def test_21_rare_classes_have_their_figures_and_weights(gossamer: Call) -> None:
    frame = houses(400)
    frame["price"] = np.where(frame["price"] > frame["price"].quantile(0.95), "dear", "cheap")
    found = trained(gossamer, written(frame), *SHORT).json
    assert {"roc_auc", "average_precision", "confusion_matrix"} <= set(found)
    x, y = frame.drop(columns="price"), frame["price"]
    shares = []
    for weight in (None, "balanced"):
        model = SparseBayesClassifier(random_state=0, max_steps=200, class_weight=weight)
        shares.append(model.fit(x, y).predict_proba(x)[:, 1].mean())
    assert shares[1] > 1.5 * shares[0]


def test_22_what_an_estimator_gives() -> None:
    frame = houses()
    x, y = frame.drop(columns="price"), frame[["price"]].assign(half=frame["price"] / 2.0)
    model = SparseBayesRegressor(random_state=0, max_steps=100, members=8)
    model.fit(x, y, sample_weight=np.ones(len(x)))
    low, high = model.predict_interval(x, coverage=0.8)
    assert low.shape == high.shape == (300, 2), "several targets, a level of one's own"
    assert model.feature_importances_.shape == (3,)
    assert set(model.coverage_) == {0.5, 0.9, 0.95}
    assert model.calibrate(x, y).predict(x).shape == (300, 2)


def test_23_python_by_hand() -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40.0)
    method = gs.build("ssvi", nn.Linear(3, 1), num_data=40, total_steps=2, sparsity=0.0,
                      likelihood="gaussian")  # fmt: skip
    with pytest.raises(InvalidData, match="must be a tensor; torch"):
        method.step((x, y))
    with pytest.raises(InvalidData, match=r"x\.to\(torch\.float32\)"):
        method.step((torch.tensor(x), torch.tensor(y) / 40.0))
    plain = gs.build("ssvi", nn.Linear(3, 1), num_data=40, total_steps=2, sparsity=0.0)
    with pytest.raises(InvalidData, match="give likelihood='gaussian'"):
        plain.step((torch.tensor(x).float(), torch.tensor(y).float()))
    assert gs.summary(method.model).nnz == 3
    result = fit((torch.tensor(x).float(), torch.tensor(y).float()[:, None] / 40.0), "ssvi",
                 nn.Linear(3, 1), epochs=2, sparsity=0.0)  # fmt: skip
    assert result.method.likelihood.name == "gaussian", "numbers are no labels"
