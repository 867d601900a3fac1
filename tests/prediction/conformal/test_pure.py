"""Ranks by enumeration, coverage by simulation, label sets by definition."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from gossamer.errors import InvalidData, InvalidValue, UnknownName
from gossamer.prediction.conformal.classes import ClassCalibration, LabelScore, most_probable
from gossamer.prediction.conformal.cross import cv_plus, cv_plus_guarantee
from gossamer.prediction.conformal.rank import conformal_quantile, rank_of, rows_needed
from gossamer.prediction.conformal.real import RealCalibration, standardised
from gossamer.prediction.conformal.report import coverage_report
from gossamer.prediction.conformal.scale import std_factor


@pytest.mark.parametrize("count", range(1, 6))
@pytest.mark.parametrize("coverage", [0.07, 0.25, 0.5, 0.7, 0.8])
def test_the_rank_is_the_smallest_that_covers_by_enumeration(count, coverage) -> None:
    """Of n + 1 exchangeable scores every order is equally likely: count those that cover."""

    def covered(rank: int) -> Fraction:
        orders = list(itertools.permutations(range(count + 1)))
        inside = sum(order[-1] <= sorted(order[:-1])[rank - 1] for order in orders)
        return Fraction(inside, len(orders))

    wanted = Fraction(str(coverage))
    enough = [rank for rank in range(1, count + 1) if covered(rank) >= wanted]
    scores = torch.arange(1.0, count + 1.0).flip(0)
    if enough:
        assert rank_of(count, coverage) == enough[0]
        assert float(conformal_quantile(scores, coverage)) == enough[0]
    else:
        assert count < rows_needed(coverage)
        with pytest.raises(InvalidValue, match=f"needs {rows_needed(coverage)} held-out rows"):
            conformal_quantile(scores, coverage)


def test_ranks_do_not_follow_binary_rounding() -> None:
    for count, percent in itertools.product(range(1, 300), range(1, 100)):
        assert rank_of(count, percent / 100) == -(-(count + 1) * percent // 100)


@pytest.mark.parametrize(("count", "coverage"), [(9, 0.9), (25, 0.8), (40, 0.95), (19, 0.5)])
@pytest.mark.parametrize("kind", ["symmetric", "signed"])
def test_marginal_coverage_lies_between_its_bounds(count, coverage, kind) -> None:
    """Skewed residuals of a misjudged std; four standard errors of the binomial."""
    if kind == "signed" and count < rows_needed((1 + coverage) / 2):
        with pytest.raises(InvalidValue, match=f"coverage = {coverage}: needs 19 held-out rows"):
            RealCalibration.of(torch.randn(count), kind).require(coverage)
        return
    repeats = 20_000
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(repeats, count + 1, generator=generator, dtype=torch.float64) + 0.5
    noise = -torch.rand(repeats, count + 1, generator=generator, dtype=torch.float64).log()
    mean, std, y = 2.0 * x, 0.3 * x, 2.0 * x + 1.7 * x * noise
    # A repetition is a column: every column has its own calibration and its own new row.
    z = standardised(mean[:, :-1], std[:, :-1], y[:, :-1]).T
    low, high = RealCalibration.of(z, kind).interval(mean[:, -1], std[:, -1], coverage)
    found = float(((low <= y[:, -1]) & (y[:, -1] <= high)).double().mean())
    error = 4.0 * math.sqrt(coverage * (1 - coverage) / repeats)
    step = 1 / (count + 1) if kind == "symmetric" else 2 / (count + 1)
    assert coverage - error <= found <= coverage + step + error
    tails = 1 if kind == "symmetric" else 2
    rank = rank_of(count, coverage if tails == 1 else (1 + Fraction(str(coverage))) / 2)
    expected = rank / (count + 1) if tails == 1 else 2 * rank / (count + 1) - 1
    assert found == pytest.approx(expected, abs=error)


def test_the_predictive_distribution_is_uniform_for_new_rows() -> None:
    generator = torch.Generator().manual_seed(4)
    z = -torch.rand(20_001, 10, generator=generator, dtype=torch.float64).log().T
    calibration = RealCalibration.of(z[1:], "signed")
    tie = torch.rand(1, 20_001, generator=generator, dtype=torch.float64)
    u = calibration.cdf(z[:1], tie)[0].sort().values
    even = torch.arange(1, len(u) + 1, dtype=torch.float64) / len(u)
    assert float((u - even).abs().max()) < 1.95 / math.sqrt(len(u))  # Kolmogorov, 0.1 %


@pytest.mark.parametrize("kind", ["symmetric", "signed"])
def test_quantiles_intervals_and_cdf_agree(kind) -> None:
    z = torch.tensor([-3.0, -1.0, -0.5, 0.1, 0.4, 0.7, 2.0, 5.0, 6.0, 8.0, 9.0])
    mean, std = torch.tensor([10.0, 20.0]), torch.tensor([1.0, 2.0])
    found = RealCalibration.of(z, kind)
    low, high = found.interval(mean, std, 0.5)
    # n = 11: ranks 6 of |z|; 3 from either end of z.
    expected = (-2.0, 2.0) if kind == "symmetric" else (-0.5, 6.0)
    assert torch.equal(low, mean + expected[0] * std)
    assert torch.equal(high, mean + expected[1] * std)
    assert torch.equal(low, found.quantile(mean, std, 0.25))
    assert torch.equal(high, found.quantile(mean, std, 0.75))
    at = torch.linspace(-12, 12, 401)
    cdf = found.cdf(at)
    assert bool((cdf.diff() >= 0).all())
    for p in (0.2, 0.35, 0.65, 0.8):
        q = found.quantile(torch.zeros(1), torch.ones(1), p)
        outer = 1e-6 if p > 0.5 else -1e-6
        value = float(found.cdf(q + outer))
        assert value >= p if p > 0.5 else value <= p


def test_columns_are_calibrated_by_themselves() -> None:
    z = torch.randn(50, 3, dtype=torch.float64) * torch.tensor([1.0, 5.0, 0.1])
    mean, std = torch.zeros(4, 3), torch.ones(4, 3)
    low, high = RealCalibration.of(z).interval(mean, std, 0.9)
    for column in range(3):
        alone = RealCalibration.of(z[:, column])
        one = alone.interval(mean[:, column], std[:, column], 0.9)
        assert torch.equal(low[:, column], one[0])
        assert torch.equal(high[:, column], one[1])


def test_wrong_scores_are_refused() -> None:
    with pytest.raises(InvalidData, match="must be finite"):
        RealCalibration.of(torch.tensor([1.0, math.nan]))
    with pytest.raises(InvalidData, match="std = 0"):
        standardised(torch.zeros(2), torch.tensor([1.0, 0.0]), torch.zeros(2))
    with pytest.raises(InvalidData, match="target shape"):
        standardised(torch.zeros(2), torch.ones(2), torch.zeros(3))
    with pytest.raises(UnknownName):
        RealCalibration.of(torch.zeros(3), "both")
    with pytest.raises(InvalidValue, match="must lie in"):
        conformal_quantile(torch.zeros(3), 1.0)


@pytest.mark.parametrize("size", [0.2, 1.0, 4.0])
@pytest.mark.parametrize("count", [1, 5, 400])
def test_the_factor_of_the_std_is_scipys(count, size) -> None:
    z = size * torch.randn(count, dtype=torch.float64)

    def loss(u):
        squares = float(z.square().sum())
        return count * u + 0.5 * squares * math.exp(-2 * u) + 0.5 * u**2

    found = minimize_scalar(loss, bounds=(-15, 15), method="bounded", options={"xatol": 1e-10})
    assert std_factor(z) == pytest.approx(math.exp(found.x), rel=1e-5)
    with pytest.raises(InvalidData, match="no spread"):
        std_factor(torch.zeros(count))


def slow_cv_plus(y, fold, mean, new, coverage, std, new_std):
    """Equation 3.1, one point at a time with Python's own sort."""
    n, a = len(y), 1 - Fraction(str(coverage))
    ends = []
    for b in range(new.shape[1]):
        r = [abs(y[i] - mean[i]) / std[i] for i in range(n)]
        below = sorted(float(new[fold[i], b] - new_std[fold[i], b] * r[i]) for i in range(n))
        above = sorted(float(new[fold[i], b] + new_std[fold[i], b] * r[i]) for i in range(n))
        ends.append((below[math.floor(a * (n + 1)) - 1], above[math.ceil((1 - a) * (n + 1)) - 1]))
    return np.array(ends).T


@pytest.mark.parametrize("folds", [4, 30])
def test_cv_plus_is_its_equation(folds) -> None:
    fold = torch.arange(30) % folds
    y, mean, new = torch.randn(30).double(), torch.randn(30).double(), torch.randn(folds, 7)
    std, new_std = torch.rand(30).double() + 0.5, torch.rand(folds, 7) + 0.5
    for coverage in (0.5, 0.9, 0.93):
        found = cv_plus(y, fold, mean, new, coverage, std=std, new_std=new_std)
        truth = slow_cv_plus(y, fold, mean, new.double(), coverage, std, new_std.double())
        np.testing.assert_allclose(torch.stack(found).numpy(), truth, rtol=0, atol=1e-12)
    with pytest.raises(InvalidValue, match="needs 99 held-out rows"):
        cv_plus(y, fold, mean, new, 0.99)
    with pytest.raises(InvalidData, match="whole numbers from 0"):
        cv_plus(y, fold + 1, mean, new, 0.9)
    with pytest.raises(InvalidData, match="both or neither"):
        cv_plus(y, fold, mean, new, 0.9, std=std)


def test_jackknife_plus_keeps_its_guarantee() -> None:
    """The mean of the others as the model, 30 rows: 1 - 2α is promised, about 1 - α is seen."""
    generator = torch.Generator().manual_seed(5)
    inside, repeats, n = 0, 2_000, 20
    for _ in range(repeats):
        y = torch.randn(n + 1, generator=generator, dtype=torch.float64).exp()
        without = (y[:-1].sum() - y[:-1]) / (n - 1)
        low, high = cv_plus(y[:-1], torch.arange(n), without, without[:, None], 0.9)
        inside += int(low <= y[-1] <= high)
    error = 4 * math.sqrt(0.09 / repeats)
    assert inside / repeats >= cv_plus_guarantee(n, n, 0.9) - error
    assert inside / repeats == pytest.approx(0.9, abs=error + 1 / (n + 1))
    assert cv_plus_guarantee(n, n, 0.9) == pytest.approx(0.8)


def slow_scores(p, kind, share, penalty, free):
    """Labels by falling probability; the mass before each, and a share of its own."""
    found = np.empty(len(p))
    order = sorted(range(len(p)), key=lambda c: (-p[c], c))
    for place, c in enumerate(order):
        before = sum(p[d] for d in order[:place])
        extra = penalty * max(0, place + 1 - free) if kind == "raps" else 0.0
        found[c] = 1 - p[c] if kind == "lac" else before + share * p[c] + extra
    return found


@pytest.mark.parametrize("kind", ["lac", "aps", "raps"])
@pytest.mark.parametrize("randomised", [False, True])
def test_label_sets_are_their_definition(kind, randomised) -> None:
    if kind == "lac" and randomised:
        with pytest.raises(InvalidValue, match="nothing random"):
            ClassCalibration.of(
                torch.ones(3, 2) / 2, torch.zeros(3), LabelScore(), torch.Generator()
            )
        return
    score = LabelScore(kind, 0.05, 1)
    probs = (2 * torch.randn(60, 5, dtype=torch.float64)).softmax(1)
    labels = torch.multinomial(probs, 1)[:, 0]
    seeds = [torch.Generator().manual_seed(s) if randomised else None for s in (1, 2)]
    shares = [
        torch.rand(n, generator=torch.Generator().manual_seed(s), dtype=torch.float64).numpy()
        if randomised
        else np.ones(n)
        for s, n in ((1, 40), (2, 20))
    ]
    found = ClassCalibration.of(probs[:40], labels[:40], score, seeds[0])
    sets = found.sets(probs[40:], 0.8, seeds[1]).numpy()
    p = probs.numpy()
    own = sorted(
        slow_scores(p[i], kind, shares[0][i], 0.05, 1)[labels[i]].item() for i in range(40)
    )
    threshold = own[33 - 1]  # ⌈41 · 0.8⌉
    for row in range(20):
        truth = slow_scores(p[40 + row], kind, shares[1][row], 0.05, 1) <= threshold + 1e-12
        assert sets[row].tolist() == truth.tolist()
    with pytest.raises(InvalidValue, match="generator"):
        found.sets(probs[40:], 0.8, None if randomised else torch.Generator())


@pytest.mark.parametrize("kind", ["lac", "aps"])
def test_label_sets_cover(kind) -> None:
    """Randomised APS and LAC hold coverage to 1/(n + 1), with probabilities that are wrong."""
    generator, n, repeats = torch.Generator().manual_seed(6), 19, 4_000
    own = None if kind == "lac" else generator
    logits = 2 * torch.randn(repeats, n + 1, 4, generator=generator, dtype=torch.float64)
    chances = (logits / 3).softmax(2).flatten(0, 1)
    labels = torch.multinomial(chances, 1, generator=generator).view(repeats, n + 1)
    probs, inside = logits.softmax(2), 0
    for p, y in zip(probs, labels, strict=True):
        found = ClassCalibration.of(p[:-1], y[:-1], LabelScore(kind), own)
        inside += int(found.sets(p[-1:], 0.9, own)[0, y[-1]])
    error = 4 * math.sqrt(0.09 / repeats)
    assert 0.9 - error <= inside / repeats <= 0.9 + 1 / (n + 1) + error


def test_most_probable_labels_by_brute_force() -> None:
    probs = torch.randn(30, 4).softmax(1)
    found = most_probable(probs, 0.8)
    for p, chosen in zip(probs.double(), found, strict=True):
        fewest = min(
            (s for k in range(1, 5) for s in itertools.combinations(range(4), k)
             if sum(float(p[c]) for c in s) >= 0.8),
            key=lambda s: (len(s), -sum(float(p[c]) for c in s)),
        )  # fmt: skip
        assert tuple(chosen.nonzero()[:, 0].tolist()) == tuple(sorted(fewest))
    tokens = probs.view(5, 6, 4)
    assert torch.equal(most_probable(tokens, 0.8, 2), found.view(5, 6, 4))


@pytest.mark.parametrize("kind", ["symmetric", "signed"])
def test_no_row_is_judged_by_itself(kind) -> None:
    z = (torch.randn(60).double() * 3).round()  # with ties
    for found in coverage_report(z, kind=kind):
        inside, level = 0, found.level
        for row in range(60):
            others = RealCalibration.of(torch.cat([z[:row], z[row + 1 :]]), kind)
            low, high = others.interval(torch.zeros(1), torch.ones(1), level)
            inside += int(low <= z[row] <= high)
        assert found.held_out == inside / 60
    by_row = coverage_report(z, kind=kind, fold=torch.arange(60))
    assert [r.held_out for r in by_row] == [r.held_out for r in coverage_report(z, kind=kind)]


def test_the_report_by_folds_and_its_other_figures() -> None:
    z = torch.cat([0.5 * torch.randn(50), 2.0 * torch.randn(50)]).double()
    fold = (torch.arange(100) >= 50).long()
    (found,) = coverage_report(z, (0.9,), fold=fold)
    halves = [z[:50].abs().sort().values[45], z[50:].abs().sort().values[45]]
    inside = (z[:50].abs() <= halves[1]).sum() + (z[50:].abs() <= halves[0]).sum()
    assert found.held_out == int(inside) / 100
    assert found.before == int((z.abs() <= 1.6448536269514722).sum()) / 100
    assert found.factor == float(z.abs().sort().values[90])
    # Coverage of new rows is Beta(91, 10).
    assert found.spread == pytest.approx(math.sqrt(91 * 10 / (101**2 * 102)))
    distinct = coverage_report(torch.randn(37).double())
    assert [r.held_out for r in distinct] == [math.ceil(37 * r.level) / 37 for r in distinct]
    few = coverage_report(torch.randn(5).double(), (0.95,))[0]
    assert math.isnan(few.held_out)
    assert math.isnan(few.factor)
