"""Posterior prediction: the average by hand, its noise, and what it must leave alone."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import nn

import gossamer as gs
from gossamer.errors import InvalidData, InvalidValue, UnknownName
from gossamer.likelihoods import Likelihood
from gossamer.nn import BayesianLayer
from gossamer.ops import fold_seed
from gossamer.prediction import ClassPrediction, RealPrediction
from gossamer.prediction.passes import PASS_ROWS, ROW_BLOCK

every_noise = pytest.mark.parametrize("noise", ["weight", "local"])


def classifier(**options) -> nn.Module:
    net = nn.Sequential(nn.Linear(5, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 4))
    return gs.to_bayesian(net, 0.4, posterior_std=0.3, **options)


class Tied(nn.Module):
    """One layer under two names: its uses share one draw."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.again = self.first

    def forward(self, x):
        return self.again(torch.tanh(self.first(x)))


class TestAverages:
    def test_by_hand(self):
        """The mean over sampling contexts whose seeds are folded from (seed, s)."""
        bnn, x = classifier(), torch.randn(2 * ROW_BLOCK + 7, 5)
        pred = gs.predict(bnn, x, 6, seed=11)
        bnn.eval()
        wanted = torch.empty(6, len(x), 4)
        for s in range(6):
            with torch.no_grad(), gs.sampling(bnn, seed=fold_seed(11, s)):
                wanted[s] = bnn(x).softmax(-1)
        torch.testing.assert_close(pred.samples, wanted, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(pred.probs, wanted.mean(0), rtol=1e-5, atol=1e-6)

    def test_entropy_and_mutual_information_as_scipy(self):
        pred = gs.predict(classifier(), 3 * torch.randn(50, 5), 7)
        samples = pred.samples.double().numpy()
        total = stats.entropy(samples.mean(0), axis=-1)
        expected = stats.entropy(samples, axis=-1).mean(0)
        # float32 probabilities and logs on our side; scipy normalises them again in float64.
        np.testing.assert_allclose(pred.entropy.numpy(), total, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(pred.mutual_information, total - expected, atol=2e-6, rtol=0)
        np.testing.assert_allclose(pred.aleatoric.numpy(), expected, rtol=1e-5, atol=2e-6)
        assert (pred.mutual_information >= 0).all()
        assert pred.mutual_information.max() > 0.05
        assert torch.equal(pred.label, pred.probs.argmax(1))
        assert torch.equal(pred.confidence, pred.probs.max(1).values)

    @pytest.mark.parametrize("classes", [2, 4, 37, 1000])
    def test_mutual_information_of_one_sample_is_zero(self, classes):
        """To the last bit: evaluation tells a deterministic network by it."""
        bnn = gs.to_bayesian(nn.Linear(5, classes), posterior_std=0.3)
        pred = gs.predict(bnn, 3 * torch.randn(ROW_BLOCK + 20, 5), 1)
        assert pred.mutual_information.abs().max() == 0.0

    def test_energy_by_hand(self):
        """Minus the mean over samples of scipy's log-sum-exp of that sample's logits."""
        bnn, x = classifier(), 3 * torch.randn(2 * ROW_BLOCK + 7, 5)
        pred = gs.predict(bnn, x, 6, seed=11)
        bnn.eval()
        wanted = np.zeros(len(x))
        for s in range(6):
            with torch.no_grad(), gs.sampling(bnn, seed=fold_seed(11, s)):
                wanted -= special.logsumexp(bnn(x).double().numpy(), axis=1) / 6
        assert pred.energy.shape == (len(x),)
        assert pred.energy.dtype == torch.float32
        np.testing.assert_allclose(pred.energy, wanted, rtol=1e-5, atol=1e-5)  # float32 logits

    def test_energy_is_no_function_of_the_probabilities(self):
        """A constant added to all logits of a row leaves its probabilities and moves its energy."""
        logits = torch.tensor([[1.0, 2.0, -1.0], [0.0, 0.5, 4.0]]).double()
        shift = torch.tensor([[3.0], [-7.0]]).double()
        net = nn.Identity()
        base, moved = gs.predict(net, logits), gs.predict(net, logits + shift)
        torch.testing.assert_close(moved.probs, base.probs, rtol=1e-12, atol=0)
        gap = base.energy - moved.energy
        torch.testing.assert_close(gap, shift.squeeze(1), rtol=1e-12, atol=0)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_energy_of_one_logit_is_that_of_the_logits_0_and_z(self, dtype):
        z = torch.tensor([-800.0, -30.0, -1.0, 0.0, 2.0, 25.0, 800.0], dtype=dtype)
        pred = gs.predict(nn.Identity(), z[:, None], likelihood="bernoulli")
        both = gs.predict(nn.Identity(), torch.stack([torch.zeros_like(z), z], 1))
        wanted = -special.logsumexp(np.stack([np.zeros(7), z.double().numpy()], 1), axis=1)
        rtol = 1e-6 if dtype == torch.float32 else 1e-14
        np.testing.assert_allclose(pred.energy, wanted, rtol=rtol, atol=0)
        np.testing.assert_allclose(both.energy, wanted, rtol=rtol, atol=1e-7)
        assert pred.energy.dtype == dtype

    def test_energy_in_half_precision_is_single(self):
        logits = torch.tensor([[8.0, 8.0625], [-3.0, 1.0]], dtype=torch.bfloat16)
        for likelihood, rows in (("categorical", logits), ("bernoulli", logits[:, :1])):
            pred = gs.predict(nn.Identity(), rows, likelihood=likelihood)
            exact = gs.predict(nn.Identity(), rows.double(), likelihood=likelihood)
            assert pred.energy.dtype == torch.float32
            np.testing.assert_allclose(pred.energy, exact.energy, rtol=1e-6)

    def test_against_quadrature(self):
        """One Bayesian weight, many samples: E sigmoid(θ x) by numerical integration."""
        bnn = gs.to_bayesian(nn.Linear(1, 1, bias=False), posterior_std=1.5)
        with torch.no_grad():
            bnn.weight_mean.fill_(0.7)
        pred = gs.predict(bnn, torch.tensor([[1.0], [-2.0]]), 4000, likelihood="bernoulli")
        for row, x in enumerate((1.0, -2.0)):
            wanted = stats.norm(0.7, 1.5).expect(lambda t, x=x: special.expit(t * x))
            # Five standard errors of 4000 samples whose std is below ½.
            assert abs(float(pred.probs[row, 1]) - wanted) < 5 * 0.5 / 4000**0.5

    def test_bernoulli_is_two_classes(self):
        bnn = gs.to_bayesian(nn.Linear(5, 1), posterior_std=0.3)
        x = torch.randn(9, 5)
        pred = gs.predict(bnn, x, 3, likelihood="bernoulli")
        assert isinstance(pred, ClassPrediction)
        with torch.no_grad(), gs.sampling(bnn.eval(), seed=fold_seed(0, 2)):
            wanted = torch.sigmoid(bnn(x)).squeeze(1)
        torch.testing.assert_close(pred.samples[2, :, 1], wanted, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(pred.probs.sum(1), torch.ones(9), rtol=0, atol=1e-6)

    def test_double_precision_is_kept(self):
        pred = gs.predict(classifier().double(), torch.randn(3, 5).double(), 2)
        assert pred.probs.dtype == torch.float64

    def test_a_classifier_of_pixels(self):
        """Output [B, C, H, W]: probabilities sum to 1 over the class axis, as in training."""
        net = gs.to_bayesian(nn.Conv2d(1, 3, 3, padding=1), posterior_std=0.1)
        x = torch.randn(4, 1, 5, 6)
        pred = gs.predict(net, x, 2)
        assert pred.probs.shape == (4, 3, 5, 6)
        torch.testing.assert_close(pred.probs.sum(1), torch.ones(4, 5, 6), rtol=0, atol=1e-5)
        assert pred.entropy.shape == pred.mutual_information.shape == (4, 5, 6)
        assert pred.energy.shape == (4, 5, 6)


class TestNoise:
    def test_weight_noise_is_one_draw_for_all_rows(self):
        row = torch.randn(1, 5)
        pred = gs.predict(classifier(), row.expand(2 * ROW_BLOCK + 5, 5), 4, noise="weight")
        # The same row in another place of a matrix product: a rounding or two.
        first = pred.samples[:, :1].expand_as(pred.samples)
        torch.testing.assert_close(pred.samples, first, rtol=1e-5, atol=1e-6)
        assert (pred.samples[0] - pred.samples[1]).abs().max() > 1e-3, "samples differ"

    def test_local_noise_differs_by_row(self):
        row = torch.randn(1, 5)
        pred = gs.predict(classifier(), row.expand(2 * ROW_BLOCK, 5), 2, noise="local")
        spread = pred.samples[0].std(0)
        assert (spread > 1e-3).all()
        assert not torch.equal(pred.samples[:, :ROW_BLOCK], pred.samples[:, ROW_BLOCK:])

    def test_both_have_the_same_marginals_for_one_layer(self):
        """One row, one linear layer: local and weight noise give the same output law."""
        torch.manual_seed(0)
        bnn = gs.to_bayesian(nn.Linear(5, 1), posterior_std=0.5)
        x = torch.randn(1, 5)
        outputs = [
            gs.predict(bnn, x, 1500, noise=noise, likelihood=gs.Gaussian(1.0)).samples.flatten()
            for noise in ("weight", "local")
        ]
        assert stats.ks_2samp(*[o.numpy() for o in outputs]).pvalue > 1e-3

    @every_noise
    def test_reproducible_by_seed(self, noise):
        bnn, x = classifier(), torch.randn(40, 5)
        one, two, other = (gs.predict(bnn, x, 3, noise=noise, seed=s) for s in (3, 3, 4))
        assert torch.equal(one.samples, two.samples)
        assert not torch.equal(one.samples, other.samples)

    @every_noise
    def test_prefix_in_rows_and_samples(self, noise):
        bnn, x = classifier(), torch.randn(3 * ROW_BLOCK, 5)
        whole = gs.predict(bnn, x, 4, noise=noise)
        for blocks in (1, 2):
            part = gs.predict(bnn, x[: blocks * ROW_BLOCK], 4, noise=noise)
            assert torch.equal(whole.samples[:, : blocks * ROW_BLOCK], part.samples)
            assert torch.equal(whole.probs[: blocks * ROW_BLOCK], part.probs)
        fewer = gs.predict(bnn, x, 2, noise=noise)
        assert torch.equal(whole.samples[:2], fewer.samples)

    @pytest.mark.parametrize("seed", [-1, 0, 2**40, 2**63 - 1])
    def test_any_integer_is_a_seed(self, seed):
        pred = gs.predict(classifier(), torch.randn(3, 5), 2, seed=seed)
        assert torch.isfinite(pred.probs).all()


class TestNoTrace:
    @every_noise
    @pytest.mark.parametrize("build", [classifier, lambda: gs.to_bayesian(Tied(), 0.4)])
    @pytest.mark.parametrize("training", [True, False])
    def test_model_and_generator_stay(self, build, noise, training):
        bnn = build().train(training)
        first = next(iter(bnn.children()))
        first.eval()
        before = copy.deepcopy(bnn.state_dict())
        rng = torch.get_rng_state()
        pred = gs.predict(bnn, torch.randn(30, 5, generator=torch.Generator()), 3, noise=noise)
        assert torch.equal(torch.get_rng_state(), rng)
        assert bnn.training == training
        assert not first.training
        for name, value in bnn.state_dict().items():
            assert torch.equal(value, before[name]), name
        assert not pred.probs.requires_grad
        layers = [m for m in bnn.modules() if isinstance(m, BayesianLayer)]
        assert all(layer.sampling_state is None for layer in layers)

    def test_after_an_exception(self):
        bnn = classifier().train()
        before, rng = copy.deepcopy(bnn.state_dict()), torch.get_rng_state()
        with pytest.raises(RuntimeError):
            gs.predict(bnn, torch.zeros(4, 6), 3)
        assert torch.equal(torch.get_rng_state(), rng)
        assert all(m.training for m in bnn.modules())
        assert all(m.sampling_state is None for m in bnn.modules() if isinstance(m, BayesianLayer))
        for name, value in bnn.state_dict().items():
            assert torch.equal(value, before[name]), name
        assert torch.is_grad_enabled()

    def test_between_backward_and_swap(self):
        """Predicting in the middle of an armed step changes neither scores nor gradients."""
        results = []
        for predicts in (False, True):
            torch.manual_seed(0)
            bnn = classifier().train()
            opt = torch.optim.SGD(bnn.parameters(), lr=0.1)
            subspace = gs.Subspace(bnn, opt, total_steps=10, update_every=1)
            bnn(torch.randn(8, 5)).square().sum().backward()
            if predicts:
                gs.predict(bnn, torch.ones(3, 5), 2)
            opt.step()
            assert subspace.step() is not None
            results.append(bnn.state_dict())
        for name, value in results[0].items():
            assert torch.equal(value, results[1][name]), name


class TestMemory:
    @every_noise
    @pytest.mark.parametrize("num_samples", [2, 300])
    def test_a_bounded_number_of_rows_per_forward(self, noise, num_samples):
        bnn = classifier()
        rows = []
        bnn.register_forward_pre_hook(lambda m, args: rows.append(args[0].shape[0]))
        gs.predict(bnn, torch.randn(3 * ROW_BLOCK + 1, 5), num_samples, noise=noise)
        assert max(rows) <= PASS_ROWS
        assert sum(rows) == num_samples * (3 * ROW_BLOCK + 1)

    def test_without_samples_the_rest_is_the_same(self):
        bnn, x = classifier(), torch.randn(ROW_BLOCK + 9, 5)
        full, lean = (gs.predict(bnn, x, 3, keep_samples=keep) for keep in (True, False))
        assert lean.samples is None
        assert full.samples.shape == (3, ROW_BLOCK + 9, 4)
        for field in ("probs", "entropy", "mutual_information", "energy", "aleatoric", "label"):
            assert torch.equal(getattr(lean, field), getattr(full, field)), field


class TestSources:
    def test_a_deterministic_network_has_one_sample(self):
        for net in (nn.Linear(5, 3), gs.to_sparse(nn.Linear(5, 3), 0.5)):
            x = torch.randn(4, 5)
            pred = gs.predict(net, x, 10)
            assert pred.samples.shape == (1, 4, 3)
            torch.testing.assert_close(pred.probs, net(x).softmax(-1), rtol=1e-6, atol=1e-7)

    def test_a_method_brings_its_likelihood(self):
        method = gs.build(
            "dense_vi", nn.Linear(5, 1), num_data=5, total_steps=5, likelihood=gs.Gaussian(0.3)
        )
        pred = gs.predict(method, torch.randn(4, 5), 3)
        assert isinstance(pred, RealPrediction)
        torch.testing.assert_close(pred.aleatoric, torch.full((4,), 0.3), rtol=1e-6, atol=0)

    def test_a_likelihood_of_ones_own(self):
        """A subclass is read as its parent."""

        class Clipped(gs.Gaussian):
            def log_lik(self, output, target):
                return super().log_lik(output, target).clamp(min=-10.0)

        bnn = gs.to_bayesian(nn.Linear(5, 1))
        pred = gs.predict(bnn, torch.randn(4, 5), 3, likelihood=Clipped(0.3))
        assert isinstance(pred, RealPrediction)


class TestRefusals:
    def test_a_likelihood_that_no_prediction_knows(self):
        with pytest.raises(UnknownName, match="likelihood of a prediction"):
            gs.predict(classifier(), torch.randn(2, 5), likelihood=Likelihood())

    @pytest.mark.parametrize("num_samples", [0, -3])
    def test_number_of_samples(self, num_samples):
        with pytest.raises(InvalidValue, match=f"num_samples = {num_samples}"):
            gs.predict(classifier(), torch.randn(2, 5), num_samples)

    def test_noise(self):
        with pytest.raises(UnknownName, match=r"noise = gaussian: .*local, weight"):
            gs.predict(classifier(), torch.randn(2, 5), noise="gaussian")

    @pytest.mark.parametrize("shape", [(0, 5), ()])
    def test_no_rows(self, shape):
        with pytest.raises(InvalidData, match="at least one row"):
            gs.predict(classifier(), torch.randn(shape))

    def test_likelihood(self):
        with pytest.raises(UnknownName, match="likelihood = softmax"):
            gs.predict(classifier(), torch.randn(2, 5), likelihood="softmax")

    def test_bernoulli_of_several_columns(self):
        with pytest.raises(InvalidValue, match="one logit per example"):
            gs.predict(classifier(), torch.randn(2, 5), likelihood="bernoulli")

    def test_classes_without_a_class_axis(self):
        """One number per row is no distribution over classes: never a softmax over the rows."""
        net = nn.Sequential(nn.Linear(5, 1), nn.Flatten(0))
        with pytest.raises((InvalidData, InvalidValue), match="output"):
            gs.predict(gs.to_bayesian(net), torch.randn(6, 5))
