"""The simulated examples against their stated law: formulas, moments and shares found elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtr

from gossamer.data import describe, load, load_ood, synthetic
from gossamer.data.readers.synthetic import EXAMPLES, make, truncated_normal
from gossamer.errors import InvalidData, InvalidValue, UnknownName

ONE, TWO, THREE = EXAMPLES
REGRESSIONS = [ONE, TWO]


def plain(name: str, row: Sequence[float], variant: str = "paper") -> float:
    """The formulas once more: one row, Python floats, variables counted from 1."""
    x = dict(enumerate((float(value) for value in row), start=1))
    if name == ONE:
        first, inside = math.tanh(2 * math.tanh(2 * x[1] - x[2])), math.tanh(x[3] - 2 * x[4])
        if variant == "script":
            return first + 2 * math.tanh(inside) - math.tanh(2 * x[5])
        return first + 2 * math.tanh(inside - math.tanh(2 * x[5]))
    if name == TWO:
        return 5 * x[2] / (1 + x[1] ** 2) + 5 * math.sin(x[3] * x[4]) + 2 * x[5]
    return math.exp(x[1]) + x[2] ** 2 + 5 * math.sin(x[3] * x[4])


def plain_all(name: str, x: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.array([plain(name, row) for row in x[:, :5]])


def test_the_table_is_the_papers() -> None:
    assert [(e.number, e.task, e.num_features) for e in EXAMPLES.values()] == [
        (1, "regression", 1000),
        (2, "regression", 2000),
        (3, "classification", 1000),
    ]
    assert [len(e.true_variables) for e in EXAMPLES.values()] == [5, 5, 4]
    assert EXAMPLES[ONE].widths() == (1000, 5, 3, 1)
    assert EXAMPLES[TWO].widths() == (2000, 6, 4, 3, 1)
    assert EXAMPLES[THREE].widths(2000) == (2000, 6, 4, 3, 1)


@pytest.mark.parametrize("name", EXAMPLES)
def test_formulas_on_given_rows(name: str) -> None:
    x = np.random.default_rng(5).uniform(-3, 3, (200, 7))
    np.testing.assert_allclose(EXAMPLES[name].signal(x), plain_all(name, x), rtol=0, atol=1e-12)


def test_formulas_at_rows_done_by_hand() -> None:
    unit = np.eye(5)
    t = math.tanh
    assert EXAMPLES[ONE].signal(unit) == pytest.approx(
        [t(2 * t(2)), t(2 * t(-1)), 2 * t(t(1)), 2 * t(t(-2)), 2 * t(-t(2))], abs=1e-15
    )
    two = EXAMPLES[TWO].signal(np.array([[2.0, 3.0, 0.5, math.pi, -1.0]]))
    assert two == pytest.approx([15 / 5 + 5 - 2], abs=1e-14)
    three = EXAMPLES[THREE].signal(np.array([[math.log(2), -3.0, 0.5, -math.pi]]))
    assert three == pytest.approx([2 + 9 - 5], abs=1e-14)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_target_depends_on_the_true_variables_and_no_other(name: str) -> None:
    example = EXAMPLES[name]
    x = np.random.default_rng(1).normal(size=(50, 9))
    before = example.signal(x)
    shifted = [example.signal(x + 0.3 * np.eye(9)[column]) for column in range(9)]
    moved = tuple(i for i, after in enumerate(shifted) if not np.array_equal(after, before))
    assert moved == example.true_variables


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("part", ["train", "test"])
def test_inputs_have_the_stated_law(name: str, part: str) -> None:
    count = 20_000
    drawn = make(name, num_train=count, num_test=count, num_features=7, seed=3)
    x = getattr(drawn, f"x_{part}").astype(np.float64)
    assert np.abs(x.mean(axis=0)).max() < 4 / math.sqrt(count)
    assert np.abs(x.var(axis=0) - 1).max() < 4 * math.sqrt(2 / count)
    correlation = np.corrcoef(x.T)
    pairs = [correlation[i, j] for i, j in combinations(range(7), 2)]
    # a sample correlation has the standard error (1 - ρ²)/√n
    assert np.abs(np.array(pairs) - 0.5).max() < 4 * 0.75 / math.sqrt(count)
    assert min(stats.kstest(x[:, i], "norm").pvalue for i in range(7)) > 1e-4
    # rows are independent: neighbours, and rows one block of drawing apart
    for lag in (1, 1024):
        assert abs(np.corrcoef(x[lag:, 0], x[:-lag, 0])[0, 1]) < 4 / math.sqrt(count - lag)
    assert len(np.unique(x[:, 0])) > 0.99 * count


@pytest.mark.parametrize("bound", [0.2, 1.0, 2.5])
def test_truncation_is_exact(bound: float) -> None:
    draws = truncated_normal(np.random.default_rng(0), (100, 300), bound)
    assert draws.shape == (100, 300)
    assert bound * 0.99 < np.abs(draws).max() <= bound
    assert stats.kstest(draws.ravel(), stats.truncnorm(-bound, bound).cdf).pvalue > 1e-3


def test_a_draw_outside_is_drawn_again_and_the_others_stay() -> None:
    class Scripted:
        def __init__(self) -> None:
            self.left = [[0.5, 11.0, -3.0, -10.5], [-12.0, 10.0], [9.0]]

        def standard_normal(self, shape: tuple[int, ...] | int) -> NDArray[np.float64]:
            return np.array(self.left.pop(0)).reshape(shape)

    draws = truncated_normal(Scripted(), (2, 2), 10.0)  # type: ignore[arg-type]
    assert draws.tolist() == [[0.5, 9.0], [-3.0, 10.0]]


def test_make_truncates_both_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    assert synthetic.BOUND == 10
    monkeypatch.setattr(synthetic, "BOUND", 0.5)
    x = make(ONE, num_train=20_000, num_features=5).x_train.astype(np.float64)
    variance = stats.truncnorm(-0.5, 0.5).var()
    # the sum of two such terms: largest 1/√2, variance that of one, correlation 1/2 as before
    assert 0.65 < np.abs(x).max() <= np.float32(1 / math.sqrt(2))
    assert x.var(axis=0) == pytest.approx(np.full(5, variance), rel=0.05)
    assert np.corrcoef(x.T)[0, 1] == pytest.approx(0.5, abs=4 * 0.75 / math.sqrt(20_000))


@pytest.mark.parametrize("name", REGRESSIONS)
@pytest.mark.parametrize("part", ["train", "test"])
def test_noise_is_standard_normal(name: str, part: str) -> None:
    count = 20_000
    drawn = make(name, num_train=count, num_test=count, num_features=6, seed=1)
    x, y = getattr(drawn, f"x_{part}"), getattr(drawn, f"y_{part}")
    noise = y - plain_all(name, x)
    assert abs(noise.mean()) < 4 / math.sqrt(count)
    assert abs(noise.var() - 1) < 4 * math.sqrt(2 / count)
    assert stats.kstest(noise, "norm").pvalue > 1e-3
    for column in range(6):
        assert abs(np.corrcoef(noise, x[:, column])[0, 1]) < 4 / math.sqrt(count)
    assert abs(np.corrcoef(noise[1:], noise[:-1])[0, 1]) < 4 / math.sqrt(count)


def test_classes_are_an_exact_function_of_the_inputs() -> None:
    drawn = make(THREE, num_train=3000, num_test=500, seed=2)
    for x, y in ((drawn.x_train, drawn.y_train), (drawn.x_test, drawn.y_test)):
        assert np.array_equal(y, [int(plain(THREE, row) > 3) for row in x[:, :5]])


def test_share_of_classes_by_quadrature() -> None:
    """Given e the variables are independent: integrate over e, x₂, x₃, x₄, exactly over x₁."""
    grid = np.arange(-5, 5.01, 0.25)  # 0.4935; a step of 1/8 up to 6 gives 0.4936
    weight = np.exp(-(grid**2) / 2)
    weight /= weight.sum()
    share = 0.0
    for e, weight_e in zip(grid, weight, strict=True):
        x = (e + grid) / math.sqrt(2)
        left = 3 - np.add.outer(x**2, 5 * np.sin(np.multiply.outer(x, x)))  # [x₂, x₃, x₄]
        lowest = np.log(np.maximum(left, 1e-300))  # x₁ must exceed it; always where left <= 0
        above = np.where(left > 0, ndtr(e - math.sqrt(2) * lowest), 1.0)
        share += weight_e * np.einsum("ijk,i,j,k", above, weight, weight, weight)
    count = 100_000
    y = make(THREE, num_train=count, num_features=4).y_train
    assert abs(y.mean() - share) < 4 * math.sqrt(share * (1 - share) / count)


def test_script_variant_differs_in_the_second_term_of_example_1_only() -> None:
    paper, script = (
        make(ONE, num_train=500, num_test=300, seed=4, variant=variant)
        for variant in ("paper", "script")
    )
    for part in ("train", "test"):
        x, y = getattr(paper, f"x_{part}"), getattr(paper, f"y_{part}")
        assert np.array_equal(x, getattr(script, f"x_{part}"))
        noise = y - plain_all(ONE, x)
        expected = np.array([plain(ONE, row, "script") for row in x[:, :5]]) + noise
        np.testing.assert_allclose(getattr(script, f"y_{part}"), expected, rtol=0, atol=2e-6)
        assert np.abs(expected - y).max() > 0.5
    for name in (TWO, THREE):
        paper, script = (make(name, 200, 100, variant=v) for v in ("paper", "script"))
        assert np.array_equal(paper.y_train, script.y_train)
        assert np.array_equal(paper.y_test, script.y_test)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_seed_decides_everything(name: str) -> None:
    parts = ("x_train", "y_train", "x_test", "y_test")
    one = make(name, 300, 200, 20, seed=7)
    again = make(EXAMPLES[name], 300, 200, 20, seed=7)
    other = make(name, 300, 200, 20, seed=8)
    for part in parts:
        assert np.array_equal(getattr(one, part), getattr(again, part))
        assert not np.array_equal(getattr(one, part), getattr(other, part))


@pytest.mark.parametrize("name", EXAMPLES)
def test_training_set_does_not_depend_on_the_test_set_or_back(name: str) -> None:
    one = make(name, 1500, 100, 20)
    more_test, more_train = make(name, 1500, 1700, 20), make(name, 1600, 100, 20)
    assert np.array_equal(one.x_train, more_test.x_train)
    assert np.array_equal(one.y_train, more_test.y_train)
    assert np.array_equal(one.x_test, more_train.x_test)
    assert np.array_equal(one.y_test, more_train.y_test)


@pytest.mark.parametrize("name", REGRESSIONS)
def test_training_and_test_set_are_independent(name: str) -> None:
    count = 10_000
    drawn = make(name, count, count, 6)
    limit = 4 / math.sqrt(count)
    for column in range(6):
        pair = np.corrcoef(drawn.x_train[:, column], drawn.x_test[:, column])
        assert abs(pair[0, 1]) < limit
    parts = ((drawn.x_train, drawn.y_train), (drawn.x_test, drawn.y_test))
    noise = [y - plain_all(name, x) for x, y in parts]
    assert abs(np.corrcoef(noise[0], noise[1])[0, 1]) < limit
    rows = [{row.tobytes() for row in x} for x, _ in parts]
    assert [len(one) for one in rows] == [count, count]
    assert not rows[0] & rows[1]


def test_examples_and_seeds_are_independent() -> None:
    count = 5000
    drawn = [make(n, count, 1, 5, seed=s).x_train[:, 0] for n in EXAMPLES for s in (0, 1, 2)]
    correlation = np.corrcoef(drawn) - np.eye(len(drawn))
    assert np.abs(correlation).max() < 4 / math.sqrt(count)


def test_shapes_dtypes_and_the_papers_sizes() -> None:
    drawn = make(ONE)
    assert (drawn.x_train.shape, drawn.x_test.shape) == ((10_000, 1000), (1_000, 1000))
    assert (drawn.y_train.shape, drawn.y_test.shape) == ((10_000,), (1_000,))
    assert drawn.x_train.dtype == drawn.x_test.dtype == drawn.y_train.dtype == np.float32
    small = make(THREE, 1, 1, 4)
    assert (small.x_train.shape, small.y_test.dtype) == ((1, 4), np.dtype(np.int64))
    assert make(TWO, 2, 3).num_features == 2000


def test_data_set_holds_the_same_numbers() -> None:
    drawn = make(TWO, 400, 100, 6, seed=5)
    data = drawn.dataset(validation_fraction=0.25, seed=1)
    assert (data.name, data.task, data.input_shape) == (TWO, "regression", (6,))
    assert (data.num_train, len(data.x_val), len(data.x_test)) == (300, 100, 100)
    assert data.preparation.to_json()["inputs"]["columns"][0]["name"] == "x1"
    assert torch.equal(data.x_test, data.preparation.prepare(drawn.x_test))
    original = data.preparation.target_to_original(data.y_test.double()).numpy()
    np.testing.assert_allclose(original, drawn.y_test, rtol=0, atol=1e-5)
    assert abs(float(data.y_train.double().mean())) < 1e-6  # standardised on the training part
    assert drawn.dataset(limit_train=50).num_train == 50


def test_by_name_a_split_is_a_draw() -> None:
    about = describe(THREE)
    assert (about.task, about.size, about.origin) == (
        "classification",
        "11,000 × 1,000",
        "embedded",
    )
    data = load(THREE, split=2, seed=6)
    drawn = make(THREE, seed=2)
    assert (data.num_train, len(data.x_val), len(data.x_test)) == (9000, 1000, 1000)
    assert data.class_names == ["0", "1"]
    assert np.array_equal(data.y_test, drawn.y_test)
    assert torch.equal(data.x_test, data.preparation.prepare(drawn.x_test))
    assert data.notes == ("drawn with seed 2",)
    assert torch.equal(load(THREE, split=2, seed=7).y_test, data.y_test)
    assert not torch.equal(load(THREE, split=1, seed=6).y_test, data.y_test)
    outside = load_ood(ONE, None, data.preparation)
    assert torch.equal(outside, data.preparation.prepare(make(ONE).x_test))
    with pytest.raises(InvalidValue, match="split = -1: must be 0 or more"):
        load(THREE, split=-1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_train": 0}, "num_train = 0: must be an integer >= 1"),
        ({"num_test": 0}, "num_test = 0: must be an integer >= 1"),
        ({"num_train": 10.0}, "num_train = 10.0: must be an integer"),
        ({"num_features": 4}, "num_features = 4: must be an integer >= 5; cvadam_example1 has 5"),
        ({"seed": -1}, "seed = -1: must be an integer >= 0"),
        ({"seed": True}, "seed = True: must be an integer"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        make(ONE, **settings)


def test_unknown_names_and_shapes_are_refused() -> None:
    with pytest.raises(UnknownName, match=r"example = example1: is not known.*cvadam_example1"):
        make("example1")
    with pytest.raises(UnknownName, match=r"variant = code: is not known.*paper, script"):
        make(ONE, variant="code")  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match=r"variant = code: is not known"):
        EXAMPLES[TWO].signal(np.zeros((1, 5)), "code")  # type: ignore[arg-type]
    with pytest.raises(InvalidData, match=r"x = shape \(3, 4\): must be \[N, p\] with p >= 5"):
        EXAMPLES[ONE].signal(np.zeros((3, 4)))
