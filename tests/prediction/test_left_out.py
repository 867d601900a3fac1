"""The spread of predictions by rows that members left out: laws, and a known task."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, minimize_scalar
from scipy.special import logsumexp
from scipy.stats import kstest, norm
from torch import nn

import gossamer
from gossamer.core.disagreement import VarianceLaw
from gossamer.errors import InvalidData, InvalidValue
from gossamer.inference.batch import Batch
from gossamer.inference.leaving import left_out
from gossamer.prediction import RealPrediction
from gossamer.prediction.finish.left_out import _normal_scores, averaged_error, judged
from gossamer.prediction.finish.spread import Spread, fit_spread


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def prediction(samples: torch.Tensor) -> RealPrediction:
    mean = samples.mean(0)
    noise = torch.full_like(samples, 0.1)
    return RealPrediction(mean, samples.std(0, unbiased=False), noise[0], samples, noise)


def test_the_variance_is_that_of_the_formula():
    samples = torch.randn(7, 5, 2, generator=seeded(), dtype=torch.float64)
    spread = Spread(torch.tensor([0.3, 0.7]), torch.tensor([1.5, 0.0]))
    found = spread.of(prediction(samples))
    expected = spread.level**2 + spread.factor**2 * samples.var(0)
    torch.testing.assert_close(found.std**2, expected.double(), rtol=1e-6, atol=0.0)
    torch.testing.assert_close(found.samples.mean(0), samples.mean(0), rtol=0.0, atol=1e-12)
    mixture = found.samples.var(0, unbiased=False) + found.noise.square().mean(0)
    torch.testing.assert_close(mixture, expected.double(), rtol=1e-6, atol=0.0)


def test_departures_are_those_of_networks_at_the_epistemic_scale():
    samples = torch.randn(7, 5, 2, generator=seeded(), dtype=torch.float64)
    samples[:, 2, 1] = 0.5  # of one mind
    spread = Spread(torch.tensor([0.3, 0.7]), torch.tensor([1.5, 0.4]))
    found = spread.of(prediction(samples))
    assert found.departures is not None
    torch.testing.assert_close(found.departures.std(0, correction=0), found.epistemic)
    torch.testing.assert_close(found.departures.mean(0), torch.zeros(5, 2, dtype=torch.float64))
    assert float(found.departures[:, 2, 1].abs().max()) == 0.0
    signs = torch.sign(samples - samples.mean(0))
    torch.testing.assert_close(torch.sign(found.departures)[:, :2], signs[:, :2])
    first = Spread(torch.tensor([0.3]), torch.tensor([1.5]))
    moved = first.of(prediction(samples[..., 0])).to_scale(3.0, 2.0)
    torch.testing.assert_close(moved.departures, 2.0 * found.departures[..., 0])


def test_the_density_is_normal_where_members_stand_apart():
    samples = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    found = Spread(torch.tensor([1e-3]), torch.tensor([1.0])).of(prediction(samples))
    std = math.sqrt(2.0 + 1e-6)
    for value in (0.0, 0.4, 2.5):
        target = torch.tensor([value], dtype=torch.float64)
        assert float(found.log_prob(target)) == pytest.approx(
            norm(0.0, std).logpdf(value), rel=1e-6
        )
        assert float(found.cdf(target)) == pytest.approx(norm(0.0, std).cdf(value), rel=1e-6)


LAW = VarianceLaw(df=5.0, scale=0.3)


def drawn(rows: int, degrees: int, seed: int = 0):
    """Estimates of variances by the law, and residuals: noise of 0.2, and twice the variance."""
    generator = np.random.default_rng(seed)
    true = LAW.df * LAW.scale / generator.chisquare(LAW.df, size=rows)
    seen = true * generator.chisquare(degrees, size=rows) / degrees
    residual = np.sqrt(0.04 + 2.0 * true) * generator.normal(size=rows)
    return (torch.from_numpy(part)[:, None] for part in (seen, residual))


def test_a_noisy_disagreement_does_not_make_predictions_wide():
    """Residuals are large where four networks agree by chance: a plain fit takes it for noise."""
    between, residual = drawn(20_000, 3)
    found, plain = fit_spread(residual, between, 3), fit_spread(residual, between)
    assert float(found.factor) == pytest.approx(math.sqrt(2.0), rel=0.04)
    assert found.laws[0].df == pytest.approx(LAW.df, rel=0.1)
    assert float(found.level) == pytest.approx(0.2, abs=0.1)
    assert float(plain.level) > 0.6
    # Twenty networks tell better: what four taught holds for them.
    between, residual = drawn(20_000, 19, seed=1)
    mean = torch.zeros(len(between), dtype=torch.float64)
    prediction = RealPrediction(mean, mean, mean, mean[None], mean[None])
    answer = found.around(prediction, between[:, 0], 19)
    for level in (0.5, 0.9, 0.95):
        low, high = answer.interval(level)
        inside = (low <= residual[:, 0]) & (residual[:, 0] <= high)
        assert float(inside.double().mean()) == pytest.approx(level, abs=0.01)


def test_the_fit_with_a_law_is_the_maximum_that_another_search_finds():
    between, residual = drawn(300, 3)
    found = fit_spread(residual, between, 3)
    variances = found.laws[0].given(between[:, 0], 3, 16).numpy()
    squares, typical = residual.numpy()[:, 0] ** 2, math.sqrt(float(residual.square().mean()))

    def loss(logs):
        variance = (math.exp(logs[0]) * typical) ** 2 + math.exp(2.0 * logs[1]) * variances + 1e-12
        likelihood = logsumexp(-0.5 * (squares / variance + np.log(variance)), axis=0).sum()
        return -likelihood + 0.5 * (logs[0] ** 2 + logs[1] ** 2) / 1.5**2

    best = minimize(loss, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
    assert float(found.level) == pytest.approx(math.exp(best.x[0]) * typical, rel=1e-4)
    assert float(found.factor) == pytest.approx(math.exp(best.x[1]), rel=1e-4)


def test_scores_are_normal_where_the_spread_is_right():
    between, residual = drawn(4000, 3, seed=2)
    spread = Spread(torch.tensor([0.2]), torch.tensor([math.sqrt(2.0)]), (LAW,))
    mean = torch.zeros(4000, dtype=torch.float64)
    plain = RealPrediction(mean, mean, mean, mean[None], mean[None])
    scores = _normal_scores(spread.around(plain, between[:, 0], 3), residual)[:, 0]
    assert kstest(scores.numpy(), "norm").pvalue > 0.01
    assert torch.equal(scores.sign(), residual[:, 0].sign())
    far = _normal_scores(plain_normal(2.0), torch.tensor([[60.0], [-80.0], [0.0]]))
    assert far[:, 0].tolist() == pytest.approx([30.0, -37.5, 0.0], rel=0.02)


def plain_normal(std: float):
    zeros = torch.zeros(3, dtype=torch.float64)
    return RealPrediction(zeros, zeros, zeros + std, zeros[None], zeros[None] + std)


def test_one_network_has_the_level_alone():
    found = Spread(torch.tensor([0.3]), torch.tensor([2.0])).of(prediction(torch.randn(1, 5)))
    torch.testing.assert_close(found.std, torch.full((5,), 0.3))


def test_the_fit_is_the_maximum_that_another_search_finds():
    between = torch.rand(300, 1, generator=seeded(), dtype=torch.float64) * 3.0
    noise = torch.randn(300, 1, generator=seeded(1), dtype=torch.float64)
    residual = (0.25 + 2.0 * between).sqrt() * noise
    squares, typical = residual.numpy() ** 2, math.sqrt(float(residual.square().mean()))

    def loss(logs):
        level, factor = math.exp(logs[0]) * typical, math.exp(logs[1])
        variance = level**2 + factor**2 * between.numpy() + 1e-12
        likelihood = 0.5 * (squares / variance + torch.tensor(variance).log().numpy()).sum()
        return likelihood + 0.5 * (logs[0] ** 2 + logs[1] ** 2) / 1.5**2

    best = minimize(loss, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
    found = fit_spread(residual, between)
    assert float(found.level) == pytest.approx(math.exp(best.x[0]) * typical, rel=1e-5)
    assert float(found.factor) == pytest.approx(math.exp(best.x[1]), rel=1e-5)


def test_networks_that_agree_leave_the_level_to_the_residuals():
    residual = torch.randn(50, 1, generator=seeded(), dtype=torch.float64)
    found = fit_spread(residual, torch.zeros(50, 1))
    assert float(found.factor) == 0.0
    assert float(found.level) == pytest.approx(float(residual.square().mean().sqrt()))


def test_targets_without_any_error_keep_a_finite_fit():
    found = fit_spread(torch.zeros(50, 1), torch.full((50, 1), 1e-3))
    assert 0.0 < float(found.level) < 1e-4


@pytest.mark.parametrize("members", [4, 20])
def test_averaging_more_members_is_foretold(members):
    """Errors of exchangeable members: a part that they share, and one of their own."""
    shared = 1.3 * torch.randn(200_000, generator=seeded(), dtype=torch.float64)
    own = 0.8 * torch.randn(members, 200_000, generator=seeded(1), dtype=torch.float64)
    errors = shared + own
    alone, together = errors[0].square().mean(), errors[:4].mean(0).square().mean()
    found = averaged_error(float(alone), float(together), 4, members)
    exact = 1.3**2 + 0.8**2 / members
    assert found == pytest.approx(exact, rel=0.02)  # 2 / sqrt(200,000) is 0.0045


def members(likelihood: str, columns: int, x: torch.Tensor, y: torch.Tensor, dealt: torch.Tensor):
    torch.manual_seed(1)
    method = gossamer.build(
        "rigl",
        lambda: nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, columns)),
        num_data=len(x),
        total_steps=300,
        likelihood=likelihood,
        members=8,
        leave_out=4,
        member_sparsity=0.5,
    )
    order = seeded(5)
    for _ in range(300):
        rows = torch.randperm(len(x), generator=order)[:50]
        method.step(Batch(x[rows], y[rows], None, dealt[rows]))
    return method


@pytest.fixture(scope="module")
def task():
    x = torch.randn(200, 3, generator=seeded())
    y = (2.0 * x[:, :1]).sin() + 0.3 * torch.randn(200, 1, generator=seeded(1))
    dealt = left_out(200, 8, 4, seeded(2))
    return members("gaussian", 1, x, y, dealt), x, y, dealt


def test_intervals_hold_what_they_say(task, tmp_path):
    method, x, y, dealt = task
    found = judged(method.posterior(), (x, y), dealt)
    new_x = torch.randn(4000, 3, generator=seeded(7))
    new_y = (2.0 * new_x[:, 0]).sin() + 0.3 * torch.randn(4000, generator=seeded(8))
    answer = found.posterior.predict(new_x)
    low, high = answer.interval(0.9)
    assert 0.86 < float(((new_y >= low) & (new_y <= high)).float().mean()) < 0.95
    rmse = float((answer.mean - new_y).square().mean().sqrt())
    assert found.figures["left_out_rmse"] == pytest.approx(rmse, rel=0.15)
    assert found.standardised is not None
    assert float(found.standardised.square().mean()) == pytest.approx(1.0, abs=0.1)
    file = tmp_path / "posterior.safetensors"
    found.posterior.save(file)
    network = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1))
    again = gossamer.load(file, network=network).predict(new_x)
    assert torch.equal(again.std, answer.std)
    assert torch.equal(again.mean, answer.mean)


def test_training_rows_alone_would_promise_too_much(task):
    """The control: members that learnt from a row are surer of it than they should be."""
    method, x, y, dealt = task
    others = dealt ^ 1  # the other member of each round, which learnt from the row
    dishonest = judged(method.posterior(), (x, y), others).figures["left_out_rmse"]
    assert dishonest < 0.97 * judged(method.posterior(), (x, y), dealt).figures["left_out_rmse"]


def test_classes_get_the_temperature_that_a_search_over_left_out_rows_finds(task):
    _, x, _, dealt = task
    y = (x[:, 0] + 0.5 * torch.randn(200, generator=seeded(3)) > 0).long()
    method = members("categorical", 2, x, y, dealt)
    found = judged(method.posterior(), (x, y), dealt)
    logits = torch.empty(200, 4, 2, dtype=torch.float64)
    with torch.no_grad():
        for row in range(200):
            for place, number in enumerate(dealt[row].tolist()):
                network = method.members[number].model.eval()
                logits[row, place] = network(x[row : row + 1])[0].double()

    def loss(log_temperature: float) -> float:
        probs = (logits / math.exp(log_temperature)).softmax(2).mean(1)
        nll = -probs[torch.arange(200), y].log().mean()
        std = 0.25 if log_temperature < 0 else 1.0
        return float(nll) + 0.5 * (log_temperature / std) ** 2 / 200

    best = minimize_scalar(loss, bounds=(-3.0, 3.0), method="bounded", options={"xatol": 1e-8})
    assert found.posterior.finish.temperature == pytest.approx(math.exp(best.x), rel=1e-4)
    assert found.standardised is None
    right = (logits / math.exp(best.x)).softmax(2).mean(1).argmax(1) == y
    assert found.figures["left_out_accuracy"] == pytest.approx(float(right.double().mean()))


def test_what_cannot_be_judged_is_refused(task):
    method, x, y, dealt = task
    with pytest.raises(InvalidValue, match="with T of 2 or more"):
        judged(method.posterior(), (x, y), dealt[:, :1])
    with pytest.raises(InvalidData, match="numbers of the 8 members"):
        judged(method.posterior(), (x, y), dealt + 5)
