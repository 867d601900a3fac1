"""What ``screen`` finds, leaves alone and refuses; the network on what it found."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

import gossamer
from gossamer.errors import InvalidData, InvalidValue, UnknownName
from gossamer.models import mlp
from gossamer.report.selection_figures import draw_inclusion
from gossamer.selection import Selection, importances, is_wide, on_selected, screen
from gossamer.selection.comparing import winner_of
from gossamer.selection.screening import chosen_at

EXAMPLE = Path(__file__).parents[2] / "examples" / "wide_table.py"


def table(seed: int, n: int = 120, p: int = 150) -> tuple[np.ndarray, np.random.Generator]:
    draw = np.random.default_rng([7, seed])
    return draw.standard_normal((n, p)), draw


def test_lines_bends_and_classes_are_found() -> None:
    x, draw = table(0)
    noise = 0.4 * draw.standard_normal(len(x))
    found = screen(x, x[:, 3] - 2.0 * x[:, 8] + x[:, 20] ** 2 + noise, "regression", steps=200)
    assert found.columns == found.inputs == (3, 8, 20)
    line = screen(x, x[:, 20] ** 2 + noise, "regression", nonlinear=False, steps=200, folds=0)
    assert 20 not in line.columns  # by lines alone a square is not to be seen
    two = screen(x, x[:, 3] - 2.0 * x[:, 8] + noise > 0.0, "classification", steps=200)
    assert two.columns == (3, 8)
    several = np.digitize(2.0 * x[:, 5] + noise, [-1.0, 1.0])
    assert screen(x, several, "classification", steps=200).columns == (5,)
    outputs = np.stack([x[:, 1] + noise, x[:, 2] - noise], 1)
    assert screen(torch.tensor(x), torch.tensor(outputs), "regression", steps=200).columns == (1, 2)


def test_noise_gives_no_column_in_most_repetitions() -> None:
    chosen = []
    for seed in range(20):
        x, draw = table(seed, n=60, p=100)
        y = draw.standard_normal(60)
        chosen.append(screen(x, y, "regression", seed, steps=100, folds=0))
    assert sum(len(s.columns) > 0 for s in chosen) <= 3
    assert all(len(s.inputs) >= 1 for s in chosen)  # a network has to read something


def test_dense_effects_keep_all_columns() -> None:
    x, draw = table(1, n=200, p=100)
    y = x @ draw.standard_normal(100) + draw.standard_normal(200)
    found = screen(x, y, "regression", steps=100)
    assert found.is_whole
    assert found.losses["all"] < found.losses["chosen"]


def test_a_tie_is_decided_by_the_shape_of_the_table() -> None:
    spread = np.array([-1.0, 1.0] * 50)  # of standard error 0.1005
    cases = [(-0.11, "chosen", "chosen"), (-0.09, "all", "chosen"), (0.0, "all", "chosen")]
    cases += [(0.09, "all", "chosen"), (0.11, "all", "all")]
    for mean, tall, wide in cases:
        assert winner_of(spread + mean, more_columns=False) == tall
        assert winner_of(spread + mean, more_columns=True) == wide


def test_level_is_the_mean_of_what_may_be_false() -> None:
    inclusion = np.array([0.2, 1.0, 0.55, 0.9, 0.98])
    assert chosen_at(inclusion, 0.05).tolist() == [1, 3, 4]  # 0.12/3; with 0.55: 0.57/4
    assert chosen_at(inclusion, 0.15).tolist() == [1, 2, 3, 4]
    assert chosen_at(np.full(3, 0.4), 0.9).tolist() == []


def test_ordinary_tables_are_not_wide() -> None:
    assert [is_wide(*shape) for shape in [(691, 8), (50, 13), (398, 30), (5000, 800)]] == [
        False
    ] * 4
    assert is_wide(240, 2000)
    assert is_wide(100_000, 1000)


def test_a_selection_survives_json_and_is_drawn() -> None:
    x, _ = table(2)
    first, second = (screen(x, x[:, 4], "regression", 5, steps=100) for _ in range(2))
    assert first == second
    assert Selection.from_json(json.loads(json.dumps(first.to_json()))) == first
    figure = draw_inclusion(first.to_json(), [f"c{j}" for j in range(150)])
    (ax,) = figure.axes
    assert [text.get_text() for text in ax.texts] == ["c4"]
    assert "1 of 150" in ax.get_title()


def test_knockoffs_find_many() -> None:
    x, draw = table(3, n=300, p=100)
    y = x[:, :25].sum(1) + draw.standard_normal(300)
    found = screen(x, y, "regression", by="knockoffs", level=0.2, folds=0)
    assert len(set(found.columns) & set(range(25))) >= 20
    assert len(found.columns) <= 35


def test_refusals_name_the_place() -> None:
    x, _ = table(4)
    y = x[:, 0].copy()
    for changed, error in [({"level": 0.0}, InvalidValue), ({"folds": 1}, InvalidValue)]:
        with pytest.raises(error, match=next(iter(changed))):
            screen(x, y, "regression", **changed)
    with pytest.raises(UnknownName, match="task"):
        screen(x, y, "ranking")  # type: ignore[arg-type]
    x[5, 7] = np.nan
    with pytest.raises(InvalidData, match="row 5, column 7"):
        screen(x, y, "regression")


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("name", ["ssvi", "rigl", "csghmc"])
def test_network_on_selected_columns_is_archived(tmp_path: Path, name: str, skip: bool) -> None:
    numbers, _ = table(5)
    x = torch.tensor(numbers, dtype=torch.float32)
    y = x[:, 3] - x[:, 9]

    def make(columns: tuple[int, ...] | None) -> torch.nn.Module:
        torch.manual_seed(1)
        return mlp(input_shape=(150,), output_size=1, hidden=[8], columns=columns, skip=skip)

    network, found = on_selected(x, y, "regression", make, steps=100)
    assert found.inputs == (3, 9)
    options = {} if name == "csghmc" else {"sparsity": 0.3}
    posterior = gossamer.fit((x, y), name, network, epochs=4, **options).method.posterior()
    posterior.about["model"] = {
        "name": "mlp",
        "input_shape": [150],
        "output_size": 1,
        "options": {"hidden": [8], "columns": [3, 9], "skip": skip},
    }
    posterior.save(tmp_path / "p.safetensors")
    again = gossamer.load(tmp_path / "p.safetensors")
    moved = x.clone()
    moved[:, [j for j in range(150) if j not in (3, 9)]] = 5.0  # what is not read changes nothing
    before, after = (p.predict(x[:20]).mean for p in (posterior, again))
    assert torch.equal(before, after)
    assert torch.equal(before, again.predict(moved[:20]).mean)
    if name == "ssvi":
        many = posterior.predict(x[:20], 4000, noise="local").mean
        assert torch.allclose(posterior.predict_moments(x[:20]).mean, many, atol=0.05)
    assert importances(again)[[3, 9]].sum() == pytest.approx(1.0, abs=1e-12)


def test_importances_are_path_weights() -> None:
    """Of a network without hidden units the path weight is the coefficient itself."""
    torch.manual_seed(0)
    x = torch.randn(300, 6)
    y = 2.0 * x[:, 1] - x[:, 4]
    net = mlp(input_shape=(6,), output_size=1, hidden=[])
    linear = gossamer.fit((x, y), "sgd", net, epochs=60, lr=0.05).method.posterior()
    found = importances(linear)
    assert found[1] / found[4] == pytest.approx(2.0, rel=0.1)
    scaled = importances(linear, torch.tensor([1.0, 1.0, 1.0, 1.0, 2.0, 1.0]))
    assert scaled[4] / scaled[1] == pytest.approx(2.0 * float(found[4] / found[1]), rel=1e-6)
    for skip in (False, True):
        deep = mlp(input_shape=(6,), output_size=1, hidden=[16, 16], skip=skip)
        fitted = gossamer.fit((x, y), "ssvi", deep, epochs=60, sparsity=0.5).method.posterior()
        assert set(importances(fitted).argsort(descending=True)[:2].tolist()) == {1, 4}
    with pytest.raises(InvalidValue, match="Conv2d"):
        importances(
            gossamer.fit((x[:, None, None], y), "sgd", _Image(), epochs=1).method.posterior()
        )


class _Image(torch.nn.Sequential):
    def __init__(self) -> None:
        super().__init__(torch.nn.Conv2d(1, 1, 1), torch.nn.Flatten(), torch.nn.Linear(6, 1))


def test_one_seed_of_the_wide_table() -> None:
    row = runpy.run_path(str(EXAMPLE))["measure"](0)
    assert row["rmse"] <= 1.0
    assert (row["true_found"], row["others"]) == (5, 0)
    assert row["coverage"] >= 0.8  # of 60 rows
    assert row["important_first"]


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [True, False])
def test_ten_seeds_of_the_wide_table(estimator: bool) -> None:
    rows = runpy.run_path(str(EXAMPLE))["main"](seeds=10, estimator=estimator)
    assert all(row["rmse"] <= 1.0 and row["true_found"] == 5 and row["others"] <= 1 for row in rows)
    assert 0.85 <= np.mean([row["coverage"] for row in rows]) <= 0.95
