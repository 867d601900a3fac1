"""Predictions from moments: exact where they can be, near sampling elsewhere, without traces."""

from __future__ import annotations

import copy
import importlib

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import nn

import gossamer as gs
from gossamer.errors import InvalidData, InvalidValue
from gossamer.models import build_model
from gossamer.prediction import ClassPrediction, Posterior, RealPrediction, StoredDraws
from gossamer.prediction.passes import ROW_BLOCK

module = importlib.import_module("gossamer.prediction.moments.predict")


class TestReal:
    def test_a_linear_model_is_exact(self):
        """Mean μ x + b, epistemic variance σ² x²: the posterior predictive in closed form."""
        torch.manual_seed(0)
        bnn = gs.to_bayesian(nn.Linear(5, 2).double(), posterior_std=0.3).eval()
        x = torch.randn(ROW_BLOCK + 9, 5).double()
        pred = gs.predict_moments(bnn, x, likelihood=gs.Gaussian(0.2))
        assert isinstance(pred, RealPrediction)
        std = bnn.weight_std.view(2, 5)
        epistemic = (x.square() @ std.square().T).sqrt()
        torch.testing.assert_close(pred.mean, x @ bnn.weight.T + bnn.bias, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(pred.epistemic, epistemic, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(pred.std, (epistemic**2 + 0.04).sqrt(), rtol=1e-10, atol=0)
        low, high = pred.interval(0.9)
        wanted = stats.norm.ppf(0.95) * pred.std
        torch.testing.assert_close(high - pred.mean, wanted, rtol=0.01, atol=0)
        torch.testing.assert_close(pred.mean - low, wanted, rtol=0.01, atol=0)

    def test_counts(self):
        """Log-normal rates: E e^X = e^(m + v/2)."""
        bnn = gs.to_bayesian(nn.Linear(3, 1).double(), posterior_std=0.3).eval()
        x = torch.randn(4, 3).double()
        pred = gs.predict_moments(bnn, x, likelihood="poisson")
        spread = x.square() @ bnn.weight_std.view(1, 3).square().T
        wanted = (x @ bnn.weight.T + bnn.bias + 0.5 * spread).exp().squeeze(1)
        torch.testing.assert_close(pred.mean, wanted, rtol=3e-3, atol=0)
        assert pred.counts


class TestClasses:
    def test_one_logit_by_quadrature(self):
        bnn = gs.to_bayesian(nn.Linear(1, 1, bias=False).double(), posterior_std=1.5)
        with torch.no_grad():
            bnn.weight_mean.fill_(0.7)
        x = torch.tensor([[1.0], [-2.0]]).double()
        pred = gs.predict_moments(bnn, x, likelihood="bernoulli")
        for row, value in enumerate((1.0, -2.0)):
            wanted = stats.norm(0.7, 1.5).expect(lambda t, x=value: special.expit(t * x))
            assert float(pred.probs[row, 1]) == pytest.approx(wanted, abs=1e-3)

    def test_entropy_and_mutual_information(self):
        """Of two classes with independent logits, by integration over their difference."""
        bnn = gs.to_bayesian(nn.Linear(1, 2, bias=False).double(), posterior_std=0.8)
        pred = gs.predict_moments(bnn, torch.ones(1, 1).double())
        m, s = (bnn.weight_mean[1] - bnn.weight_mean[0]).item(), 2**0.5 * 0.8
        density = stats.norm(m, s).pdf

        def average(f):
            return integrate.quad(lambda t: f(special.expit(t)) * density(t), m - 9 * s, m + 9 * s)[
                0
            ]

        p = average(lambda p: p)
        total = float(special.entr(p) + special.entr(1 - p))
        expected = average(lambda p: special.entr(p) + special.entr(1 - p))
        assert float(pred.probs[0, 1]) == pytest.approx(p, abs=2e-3)
        assert float(pred.entropy) == pytest.approx(total, abs=2e-3)
        assert float(pred.mutual_information) == pytest.approx(total - expected, abs=4e-3)

    def test_energy_by_integration(self):
        """−E log(e^a + e^b) over two independent Gaussian logits; of one logit, −E log(1 + e^z)."""
        bnn = gs.to_bayesian(nn.Linear(1, 2, bias=False).double(), posterior_std=0.8)
        pred = gs.predict_moments(bnn, torch.ones(1, 1).double())
        a, b = (stats.norm(m, 0.8) for m in bnn.weight_mean.tolist())

        def joint(y, x):
            return np.logaddexp(x, y) * a.pdf(x) * b.pdf(y)

        wanted, _ = integrate.dblquad(
            joint, a.mean() - 6, a.mean() + 6, b.mean() - 6, b.mean() + 6, epsabs=1e-6
        )
        assert pred.energy.shape == (1,)
        assert float(pred.energy) == pytest.approx(-wanted, abs=2e-3)
        one = gs.to_bayesian(nn.Linear(1, 1, bias=False).double(), posterior_std=1.5)
        with torch.no_grad():
            one.weight_mean.fill_(0.7)
        found = gs.predict_moments(one, torch.tensor([[-2.0]]).double(), likelihood="bernoulli")
        wanted = stats.norm(-1.4, 3.0).expect(lambda z: np.logaddexp(0.0, z))
        # The standard deviation is 3: 256 points leave a thousandth of it.
        assert float(found.energy) == pytest.approx(-wanted, abs=4e-3)

    @pytest.mark.parametrize(
        ("name", "shape", "options"),
        [
            ("mlp", (7,), {}),
            ("mlp", (7,), {"activation": "silu"}),
            ("lenet", (1, 16, 16), {}),
            ("vgg11", (3, 32, 32), {}),
            ("resnet20", (3, 8, 8), {}),
            ("resnet18", (3, 8, 8), {}),
            ("wide_resnet", (3, 8, 8), {"depth": 10, "width": 1}),
        ],
    )
    def test_every_kind_of_model_is_near_sampling(self, name, shape, options):
        torch.manual_seed(0)
        net = build_model(name, input_shape=shape, output_size=4, **options)
        bnn = gs.to_bayesian(net, 0.5, posterior_std=0.03)
        x = torch.randn(3, *shape)
        pred = gs.predict_moments(bnn, x)
        drawn = gs.predict(bnn, x, 200, noise="local")
        assert isinstance(pred, ClassPrediction)
        assert pred.samples is None
        error = drawn.samples.std(0) / 200**0.5
        assert ((pred.probs - drawn.probs).abs() < 5 * error + 0.02).all()
        torch.testing.assert_close(pred.probs.sum(1), torch.ones(3), rtol=0, atol=1e-5)
        # Three standard errors of 200 samples of a residual network, whose logits spread most.
        assert ((pred.energy - drawn.energy).abs() < 0.15).all()
        # Activations of a deep network are not independent, and 200 samples leave a tenth.
        ratio = (pred.mutual_information / drawn.mutual_information).log().abs()
        assert (ratio < 0.4).all()

    def test_pixels_and_blocks(self, monkeypatch):
        """Outputs [B, C, H, W]; however many rows are expanded at a time."""
        bnn = gs.to_bayesian(nn.Conv2d(1, 3, 3, padding=1), posterior_std=0.1)
        x = torch.randn(5, 1, 4, 6)
        whole = gs.predict_moments(bnn, x, keep_samples=True)
        assert whole.probs.shape == (5, 3, 4, 6)
        assert whole.samples.shape == (module.POINTS, 5, 3, 4, 6)
        monkeypatch.setattr(module, "_MOST_VALUES", 1)
        torch.testing.assert_close(gs.predict_moments(bnn, x).probs, whole.probs)

    def test_a_deterministic_network_has_one_sample(self):
        net, x = nn.Linear(5, 3), torch.randn(4, 5)
        pred = gs.predict_moments(net, x, keep_samples=True)
        assert pred.samples.shape == (1, 4, 3)
        torch.testing.assert_close(pred.probs, net(x).softmax(-1), rtol=1e-6, atol=1e-7)


class TestPoints:
    @pytest.mark.parametrize("columns", [1, 2, 10, 200])
    def test_standardised_and_spread(self, columns):
        points = module.normal_points(module.POINTS, columns)
        torch.testing.assert_close(
            points.mean(0), torch.zeros(columns).double(), rtol=0, atol=1e-12
        )
        torch.testing.assert_close(points.var(0, correction=0), torch.ones(columns).double())
        for column in points.T[:5]:
            assert stats.kstest(column.numpy(), "norm").statistic < 0.01

    @pytest.mark.parametrize(("scale", "bound"), [(1.0, 0.004), (3.0, 0.02)])
    def test_softmax_against_many_draws(self, scale, bound):
        generator = torch.Generator().manual_seed(0)
        mean = 3 * torch.randn(20, 10, generator=generator).double()
        std = scale * torch.rand(20, 10, generator=generator).double()
        wanted = torch.zeros_like(mean)
        for _ in range(100):
            noise = torch.randn(2000, 20, 10, generator=generator).double()
            wanted += (mean + std * noise).softmax(-1).mean(0) / 100
        points = module.normal_points(module.POINTS, 10)[:, None]
        got = (mean + std * points).softmax(-1).mean(0)
        assert (got - wanted).abs().max() < bound


class TestManners:
    @pytest.mark.parametrize("training", [True, False])
    def test_model_and_generator_stay(self, training):
        net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
        bnn = gs.to_bayesian(net, posterior_std=0.3).train(training)
        before, rng = copy.deepcopy(bnn.state_dict()), torch.get_rng_state()
        one, two = (gs.predict_moments(bnn, torch.ones(4, 5)) for _ in range(2))
        assert torch.equal(torch.get_rng_state(), rng)
        assert torch.equal(one.probs, two.probs)
        assert all(m.training == training for m in bnn.modules())
        for name, value in bnn.state_dict().items():
            assert torch.equal(value, before[name]), name
        assert not one.probs.requires_grad

    def test_a_method_brings_its_likelihood(self):
        method = gs.build(
            "dense_vi", nn.Linear(5, 1), num_data=5, total_steps=5, likelihood=gs.Gaussian(0.3)
        )
        pred = gs.predict_moments(method, torch.randn(4, 5))
        torch.testing.assert_close(pred.aleatoric, torch.full((4,), 0.3), rtol=1e-6, atol=0)

    def test_refusals(self):
        net = nn.Linear(5, 3)
        stored = Posterior(StoredDraws(net, [net.state_dict()]), gs.Categorical())
        with pytest.raises(InvalidValue, match="no Gaussian posterior"):
            gs.predict_moments(stored, torch.randn(2, 5))
        with pytest.raises(InvalidValue, match="a model, a method or a posterior"):
            gs.predict_moments("bnn", torch.randn(2, 5))
        with pytest.raises(InvalidData, match="at least one row"):
            gs.predict_moments(nn.Linear(5, 3), torch.randn(0, 5))
