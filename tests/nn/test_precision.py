"""Half precision and autocast: variance, noise and KL stay in float32."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gossamer as gs
from cases.zoo import BACKENDS, convnet, mlp
from gossamer.nn import sparse_layers
from gossamer.ops import BACKENDS as TABLE
from gossamer.ops import draw_seed, normal_like

HALVES = [torch.bfloat16, torch.float16]
half_types = pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
every_backend = pytest.mark.parametrize("engine", BACKENDS)
EPS = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}  # one rounding, relative


def tiny_std_layer(engine: str, std: float = 1e-4) -> nn.Module:
    """Means 0 and no bias: the output is the noise alone."""
    layer = gs.to_bayesian(
        nn.Linear(40, 30, bias=False), 0.5, posterior_std=std, backend=engine
    ).train()
    with torch.no_grad():
        layer.weight_mean.zero_()
    return layer


def noise_in_float64(layer, x: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
    variance = torch.zeros(layer.layout.numel, dtype=torch.float64)
    std = torch.nn.functional.softplus(layer.weight_raw_std.detach().double())
    variance[layer.support.positions()] = std**2
    spread = x.double().square() @ variance.view(layer.layout.shape).T
    return spread.sqrt() * normal_like(seed, torch.empty(len(x), 30)).double()


@half_types
@every_backend
def test_autocast_keeps_the_variance_in_float32(half, engine):
    """σ = 1e-4: σ² = 1e-8 is 0 in float16. The output may differ by its own last rounding."""
    layer, x = tiny_std_layer(engine), torch.randn(8, 40)
    torch.manual_seed(5)
    seed = draw_seed()
    torch.manual_seed(5)
    with torch.autocast("cpu", half):
        y = layer(x)
    assert y.dtype == half
    expected = noise_in_float64(layer, x, seed)
    smallest = torch.finfo(half).tiny
    assert ((y.double() - expected).abs() <= EPS[half] * expected.abs() + smallest).all()


@half_types
@every_backend
def test_autocast_moments(half, engine):
    layer, x = tiny_std_layer(engine), torch.randn(8, 40)
    arguments = (layer.weight_mean, layer.weight_std.square(), layer.pattern, layer.layout, None)
    _, plain = TABLE[engine].moments(x, *arguments)
    with torch.autocast("cpu", half):
        _, variance = TABLE[engine].moments(x, *arguments)
    assert variance.dtype == torch.float32
    # Autocast does not reach the variance; another engine may take over: float32's rounding.
    torch.testing.assert_close(variance, plain, rtol=1e-5, atol=0)


@half_types
@every_backend
@pytest.mark.parametrize("build", [mlp, convnet])
def test_autocast_trains(half, engine, build):
    torch.manual_seed(0)
    net = gs.to_bayesian(build(), 0.3, backend=engine).train()
    x = torch.randn(4, 6) if build is mlp else torch.randn(4, 1, 6, 6)
    with torch.autocast("cpu", half):
        y = net(x)
        kl = gs.kl_divergence(net)
    assert y.dtype == half
    assert kl.dtype == torch.float32
    with torch.autocast("cpu", enabled=False):
        assert torch.equal(kl, gs.kl_divergence(net)), "the KL is not touched by autocast"
    (y.float().square().mean() + kl / 1000).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad.dtype == torch.float32, name
        assert torch.isfinite(parameter.grad).all(), name
    torch.manual_seed(1)
    exact = net(x)
    torch.manual_seed(1)
    with torch.autocast("cpu", half):
        rough = net(x).float()
    # Three layers, each rounded in half precision.
    assert (rough - exact).abs().max() < 20 * EPS[half] * exact.abs().max()


@half_types
@every_backend
def test_half_precision_model(half, engine):
    """Parameters themselves in half precision: no underflow at σ = 1e-4, finite gradients."""
    torch.manual_seed(0)
    net = gs.to_bayesian(
        nn.Linear(40, 30, bias=False).to(half), 0.5, posterior_std=1e-4, backend=engine
    ).train()
    if not net.backend.supports(net.layout, torch.device("cpu"), half):
        pytest.skip(f"{engine} does not run {half}")
    assert net.weight_mean.dtype == net.weight_raw_std.dtype == half
    assert net.weight_std.dtype == torch.float32
    # raw_std ≈ -9.2 has a spacing of 2^-4 (bfloat16) or 2^-7 (float16), half of it relative in σ.
    assert (net.weight_std / 1e-4 - 1).abs().max() < {torch.bfloat16: 0.04, torch.float16: 0.005}[
        half
    ]
    with torch.no_grad():
        net.weight_mean.zero_()
    x = torch.randn(8, 40, dtype=half)
    torch.manual_seed(5)
    seed = draw_seed()
    torch.manual_seed(5)
    y = net(x)
    assert y.dtype == half
    expected = noise_in_float64(net, x, seed)
    smallest = torch.finfo(half).tiny
    assert ((y.double() - expected).abs() <= EPS[half] * expected.abs() + smallest).all()
    y.float().sum().backward()
    assert net.weight_raw_std.grad.dtype == half
    assert torch.isfinite(net.weight_raw_std.grad).all()
    assert (net.weight_raw_std.grad != 0).any()
    with gs.sampling(net.eval(), seed=1):
        drawn = net.weight
    assert drawn.dtype == half
    kept = net.support.positions()
    assert (drawn.flatten()[kept] != 0).float().mean() > 0.9, "a draw of θ keeps its noise"
    kl = gs.kl_divergence(net)
    assert kl.dtype == torch.float32
    assert torch.isfinite(kl)


@half_types
def test_half_precision_network(half):
    torch.manual_seed(0)
    net = gs.to_bayesian(mlp().to(half), 0.5).train()
    x = torch.randn(4, 6, dtype=half)
    y = net(x)
    (y.float().square().mean() + gs.kl_divergence(net) / 1000).backward()
    for name, parameter in net.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name
    assert net.eval()(x).dtype == half
    for layer in sparse_layers(net).values():
        assert torch.isfinite(layer.weight_std).all()


@every_backend
def test_float32_noise_has_no_cancellation(engine):
    """A large mean and a tiny std: the noise is what float32 can still show, not swamped by an
    intermediate of half precision."""
    layer = gs.to_bayesian(nn.Linear(40, 1, bias=False), posterior_std=1e-3, backend=engine)
    with torch.no_grad():
        layer.weight_mean.fill_(1.0)
    x = torch.ones(2000, 40)
    torch.manual_seed(0)
    y = layer.train()(x).detach()
    wanted = 1e-3 * 40**0.5
    # 2000 draws: the std's own standard error is 1.6 %, four of them.
    assert abs(float(y.std()) / wanted - 1) < 4 / (2 * 2000) ** 0.5
    assert abs(float(y.mean()) - 40) < 4 * wanted / 2000**0.5
