"""Normalisation over features: the Jacobian where variances are small, draws where they are not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import gossamer as gs
from gossamer.prediction.moments import Moments, rule_of
from gossamer.prediction.moments.propagate import propagate, record

NORMS = {
    "layer": nn.LayerNorm(24),
    "layer, plain": nn.LayerNorm(24, elementwise_affine=False),
    "layer, no bias": nn.LayerNorm(24, bias=False),
    "layer, two axes": nn.LayerNorm((4, 6)),
    "rms": nn.RMSNorm(24),
    "rms, eps": nn.RMSNorm(24, eps=0.1),
}


def some(scale: float) -> Moments:
    draw = torch.Generator().manual_seed(5)
    mean = torch.randn(3, 24, generator=draw, dtype=torch.float64) + 0.5
    return Moments(mean, scale * torch.rand(3, 24, generator=draw, dtype=torch.float64))


def shaped(norm: nn.Module, x: Moments) -> Moments:
    return x.each(lambda part: part.view(3, *norm.normalized_shape))


@pytest.fixture(params=NORMS)
def norm(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    found = NORMS[request.param].double().requires_grad_(False)
    for parameter in found.parameters():
        parameter.copy_(1.0 + 0.3 * torch.randn_like(parameter))
    return found


def test_small_variances_go_by_the_jacobian(norm: nn.Module) -> None:
    x = shaped(norm, some(1e-9))
    jacobian = torch.autograd.functional.jacobian(norm, x.mean).reshape(72, 72)
    wanted = (jacobian.square() @ x.variance.flatten()).view_as(x.mean)
    rule = rule_of(norm)
    assert rule is not None
    got = rule(norm, x)
    torch.testing.assert_close(got.mean, norm(x.mean), rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(got.variance, wanted, rtol=1e-6, atol=1e-16)


@pytest.mark.parametrize(("scale", "bias", "spread"), [(0.1, 0.01, 0.05), (1.0, 0.06, 0.2)])
def test_draws(norm: nn.Module, scale: float, bias: float, spread: float) -> None:
    """Variances as large as those of the means: means off by 0.06, deviations by a fifth."""
    x = shaped(norm, some(scale))
    draw = torch.Generator().manual_seed(6)
    noise = torch.randn(40_000, *x.mean.shape, generator=draw, dtype=torch.float64)
    drawn = norm(x.mean + x.variance.sqrt() * noise)
    rule = rule_of(norm)
    assert rule is not None
    got = rule(norm, x)
    assert (got.mean - drawn.mean(0)).abs().max() < bias
    ratio = got.variance.sqrt() / drawn.std(0)
    assert (ratio - 1.0).abs().max() < spread


class Mixer(nn.Module):
    """Tokens mixed, features mixed, both with a normalisation before and a sum after."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(16), nn.LayerNorm(16), nn.RMSNorm(16)])
        self.tokens = nn.Sequential(nn.Linear(9, 32), nn.GELU(), nn.Linear(32, 9))
        self.features = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, 9, 16]`` to ``[B, 4]``."""
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        x = x + self.features(self.norms[1](x))
        return self.head(self.norms[2](x).mean(1))


def test_a_mixer_agrees_with_samples() -> None:
    torch.manual_seed(0)
    net = gs.to_bayesian(Mixer(), 0.5, posterior_std=0.05).eval()
    x = torch.randn(20, 9, 16)
    with torch.no_grad():
        got = propagate(record(net), x)
        drawn = torch.stack([_draw(net, x, seed) for seed in range(600)])
    assert isinstance(got, Moments)
    assert (got.mean - drawn.mean(0)).abs().max() < 0.02
    # Rows of tokens share their weights: independence understates what comes of that.
    ratio = got.variance.sqrt() / drawn.std(0)
    assert 0.8 < ratio.min() < ratio.max() < 1.15


def _draw(net: nn.Module, x: Tensor, seed: int) -> Tensor:
    with gs.sampling(net, seed=seed):
        return net(x)
