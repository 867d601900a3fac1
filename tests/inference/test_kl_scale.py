"""The check of other people's loops: mean cross-entropy plus some multiple of the KL."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gossamer as gs
from gossamer.errors import InvalidValue


def network() -> nn.Module:
    conv = nn.Conv1d(1, 3, 3)
    net = nn.Sequential(conv, nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2))
    return gs.to_bayesian(net, 0.4, posterior_std=(0.1, 0.05))


class TestCheckKLScale:
    """Loops of other people: mean cross-entropy plus some multiple of the KL."""

    num_data, batch_size = 60_000, 128

    def verdict(self, scale):
        model = network().train()
        nll = F.cross_entropy(model(torch.randn(4, 1, 6)), torch.tensor([0, 1, 0, 1]))
        kl = gs.kl_divergence(model)
        return gs.check_kl_scale(nll + scale * kl, kl, self.num_data), model

    def test_right(self):
        verdict, _ = self.verdict(1 / self.num_data)
        assert verdict.factor == pytest.approx(1.0, rel=1e-6)
        assert "right" in verdict.message

    def test_averaged_over_weights_and_batch_is_too_weak(self):
        """The bayesian-torch way: KL averaged over weights, then divided by the batch size."""
        weights = 42
        verdict, _ = self.verdict(1 / (weights * 100 * self.batch_size))
        assert verdict.factor == pytest.approx(60_000 / (4200 * 128), rel=1e-5)
        assert "8.96x too weak" in verdict.message

    def test_divided_by_the_batch_size_is_too_strong(self):
        verdict, _ = self.verdict(1 / self.batch_size)
        assert verdict.factor == pytest.approx(60_000 / 128, rel=1e-5)
        assert "469x too strong" in verdict.message

    def test_missing(self):
        model = network().train()
        kl = gs.kl_divergence(model)
        verdict = gs.check_kl_scale(model(torch.randn(4, 1, 6)).sum(), kl, self.num_data)
        assert verdict.factor == 0.0
        assert "no effect" in verdict.message

    def test_subtracted(self):
        verdict, _ = self.verdict(-1 / self.num_data)
        assert verdict.factor == pytest.approx(-1.0, rel=1e-6)
        assert "sign" in verdict.message, "a KL of the wrong sign is not 'too strong'"

    def test_detached(self):
        model = network().train()
        kl = gs.kl_divergence(model)
        loss = model(torch.randn(4, 1, 6)).sum() + kl
        with pytest.raises(InvalidValue, match="detach"):
            gs.check_kl_scale(loss, kl.detach(), 10)
        with pytest.raises(InvalidValue, match="detach"):
            gs.check_kl_scale(loss.detach(), kl, 10)

    def test_the_graph_is_kept(self):
        model = network().train()
        kl = gs.kl_divergence(model)
        loss = model(torch.randn(4, 1, 6)).sum() + kl / 10
        gs.check_kl_scale(loss, kl, 10)
        loss.backward()
        assert model[0].weight_mean.grad is not None

    def test_the_elbo_itself_is_right(self):
        model = network().train()
        elbo = gs.ELBO(model, self.num_data)
        raw = model[0].weight_raw_std
        (ours,) = torch.autograd.grad(elbo(torch.tensor(0.0)), raw)
        (full,) = torch.autograd.grad(gs.kl_divergence(model), raw)
        torch.testing.assert_close(ours * self.num_data, full, rtol=1e-5, atol=0.0)
