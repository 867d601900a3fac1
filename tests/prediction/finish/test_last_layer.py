"""The Gaussian last layer of classes against a dense posterior, quadrature and Monte Carlo."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import norm
from torch import nn

import gossamer as gs
from gossamer.errors import InvalidData, InvalidValue
from gossamer.likelihoods import Gaussian
from gossamer.ops import fold_seed
from gossamer.prediction import mixture, posterior_of
from gossamer.prediction.finish.choice import HAIR, SCALES, best_scale
from gossamer.prediction.finish.curvature import class_head, prior_precision
from gossamer.prediction.finish.gather import Sampling
from gossamer.prediction.finish.heads import ClassHead
from gossamer.prediction.finish.layer import last_linear

PLAIN = Sampling(1, "weight", 0)


def small(classes: int = 3, hidden: int = 5, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, classes)).double()


def rows(count: int = 80, classes: int = 3, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    noise = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=noise, dtype=torch.float64)
    truth = torch.randn(4, classes, generator=noise, dtype=torch.float64)
    blur = torch.randn(count, classes, generator=noise, dtype=torch.float64)
    return x, (x @ truth + blur).argmax(1)


def features_of(net: nn.Sequential, x: torch.Tensor) -> np.ndarray:
    h = net[:-1](x).detach()
    return torch.cat([h, torch.ones(len(h), 1, dtype=h.dtype)], 1).numpy()


@torch.no_grad()
def dense_truth(net: nn.Sequential, x: torch.Tensor, num_data: int):
    """A, B and τ by numpy and scipy, from their definitions."""
    phi, p = features_of(net, x), net(x).softmax(1).detach().numpy()
    a = phi.T @ phi / len(phi)
    b = num_data * np.mean([np.diag(q) - np.outer(q, q) for q in p], 0)
    last = net[-1]
    norm_square = float(last.weight.square().sum() + last.bias.square().sum())
    products = np.outer(np.linalg.eigvalsh(a), np.linalg.eigvalsh(b).clip(0)).ravel()
    tau = brentq(lambda t: t * norm_square - (products / (products + t)).sum(), 1e-9, 1e9)
    return a, b, tau


def test_full_rank_is_the_dense_kronecker_posterior() -> None:
    net, (x, _) = small(), rows()
    head = class_head(posterior_of(net), x, 500, 64, PLAIN)
    a, b, tau = dense_truth(net, x, 500)
    assert head.prior == pytest.approx(tau, rel=1e-6)
    covariance = np.linalg.inv(np.kron(a, b) + tau * np.eye(18))  # of vec(W), features outer
    new = rows(7, seed=5)[0]
    found = head.run(net, new).detach()
    rotation = head.rotation.numpy()
    for row, phi in enumerate(features_of(net, new)):
        jacobian = np.kron(phi, np.eye(3))  # logits = jacobian · vec(W)
        truth = jacobian @ covariance @ jacobian.T
        mine = rotation @ np.diag(found[row, 3:].numpy() ** 2) @ rotation.T
        assert np.abs(mine - truth).max() < 1e-9 * np.abs(truth).max()
    assert torch.equal(found[:, :3], net(new).detach())


def test_a_lower_rank_has_one_level_for_the_rest() -> None:
    net, (x, _) = small(hidden=9), rows()
    head = class_head(posterior_of(net), x, 500, 4, PLAIN)
    a, b, _ = dense_truth(net, x, 500)
    values, vectors = np.linalg.eigh(a)
    values[:6] = values[:6].mean()
    level = vectors @ np.diag(values) @ vectors.T
    bs = np.linalg.eigvalsh(b).clip(0)
    new = rows(6, seed=5)[0]
    found = head.run(net, new).detach()[:, 3:].square().numpy()
    for row, phi in enumerate(features_of(net, new)):
        truth = [phi @ np.linalg.solve(level * c + head.prior * np.eye(10), phi) for c in bs]
        assert np.allclose(found[row], truth, rtol=1e-9)
    assert tuple(head.features.basis.shape) == (10, 4)


def test_networks_with_noise_share_one_gaussian_over_their_samples() -> None:
    torch.manual_seed(0)
    net = gs.to_bayesian(small(), 0.0, posterior_std=0.3).eval()
    x, _ = rows()
    head = class_head(posterior_of(net), x, 300, 64, Sampling(3, "weight", 4))
    second, curve = [], []
    for sample in range(3):
        with gs.sampling(net, seed=fold_seed(4, sample), noise="weight"):
            h = net[1](net[0](x)).detach()
        with gs.sampling(net, seed=fold_seed(4, sample), noise="weight"):
            p = net(x).detach().softmax(1)
        phi = torch.cat([h, torch.ones(len(h), 1, dtype=h.dtype)], 1)
        second.append(phi.T @ phi / len(phi))
        curve.append(300 * (p.mean(0).diag() - p.T @ p / len(p)))
    a, b = torch.stack(second).mean(0), torch.stack(curve).mean(0)
    basis, level = head.features.basis, head.features.level
    assert torch.allclose(basis @ level.diag() @ basis.T, a, atol=1e-6)
    assert torch.allclose(head.rotation @ head.curvature.diag() @ head.rotation.T, b, atol=1e-4)


def test_the_prior_solves_its_equation() -> None:
    level = torch.tensor([1e-8, 0.3, 7.0], dtype=torch.float64)
    curvature = torch.tensor([0.0, 20.0, 900.0], dtype=torch.float64)
    for norm_square in (1e-3, 2.0, 1e4):
        tau = prior_precision(level, curvature, norm_square)
        products = torch.outer(level, curvature)
        assert tau * norm_square == pytest.approx(float((products / (products + tau)).sum()))
    with pytest.raises(InvalidData, match="leaves no doubt"):
        prior_precision(level, torch.zeros(3, dtype=torch.float64), 1.0)
    with pytest.raises(InvalidData, match="weights of 0"):
        prior_precision(level, curvature, 0.0)


def gaussian_logits(posterior, x):
    """Mean and covariance of the logits that a head states, scale included."""
    head = posterior.finish.head
    with posterior.draws.sample(0, seed=0, noise="weight") as network:
        found = head.run(network, x).detach().double()
    mean, deviation = found.chunk(2, 1)
    rotation = head.rotation.double()
    return mean, math.sqrt(head.scale) * deviation[:, None] * rotation, posterior.finish.temperature


def test_predictions_are_the_gaussians_by_monte_carlo() -> None:
    net, held_out = small(classes=4, hidden=6), rows(classes=4)
    posterior = gs.last_layer(net, held_out, num_data=60)
    wide = posterior.finished(
        type(posterior.finish)(0.8, type(posterior.finish.head)(
            **{**vars(posterior.finish.head), "scale": 1.0}
        ))
    )  # fmt: skip
    new = rows(30, seed=9)[0]
    mean, root, temperature = gaussian_logits(wide, new)
    eps = torch.randn(200_000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pred = wide.predict(new)
    for row in range(0, 30, 6):
        p = ((mean[row] + eps @ root[row].T) / temperature).softmax(1)
        average = p.mean(0)
        entropy = float(torch.special.entr(average).sum())
        information = entropy - float(torch.special.entr(p).sum(1).mean())
        assert float((pred.probs[row] - average).abs().max()) < 0.01
        assert float(pred.mutual_information[row]) == pytest.approx(information, abs=0.02)
        energy = -((mean[row] + eps @ root[row].T) / temperature).logsumexp(1).mean()
        assert float(pred.energy[row]) == pytest.approx(float(energy), abs=0.03)
    assert tuple(pred.samples.shape) == (64, 30, 4)


def test_one_logit_by_quadrature() -> None:
    net, (x, _) = small(classes=1), rows()
    y = (x[:, 0] + torch.randn(80, generator=torch.Generator().manual_seed(3)) > 0).long()
    posterior = gs.last_layer(net, (x, y), num_data=30, likelihood="bernoulli")
    head = ClassHead(**{**vars(posterior.finish.head), "scale": 1.0})
    p = net(x).sigmoid().detach()
    assert float(head.curvature) == pytest.approx(float(30 * (p * (1 - p)).mean()), rel=1e-9)
    wide = posterior.finished(type(posterior.finish)(1.0, head))
    found = wide.predict(x[:5])
    values = head.run(net, x[:5]).detach().numpy()
    for row, (mean, std) in enumerate(values):
        truth = quad(lambda z, m=mean, s=std: expit(m + s * z) * norm.pdf(z), -9, 9)[0]
        assert float(found.probs[row, 1]) == pytest.approx(truth, abs=2e-3)


def nll(posterior, held_out) -> torch.Tensor:
    x, y = held_out
    probs = posterior.predict(x, 5, seed=0).probs.double()
    return -probs[torch.arange(len(x)), y].log()


def overfitted(seed: int = 0):
    """A method that knows too few rows too well, and rows that it does not know."""
    torch.manual_seed(seed)
    truth = torch.randn(4, 3)
    x = torch.randn(560, 4)
    y = (x @ truth + 1.5 * torch.randn(560, 3)).argmax(1)
    net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
    method = gs.build("rigl", net, num_data=60, total_steps=300, sparsity=0.3)
    for _ in range(300):
        method.step((x[:60], y[:60]))
    return method, (x[60:260], y[60:260]), (x[260:], y[260:])


@pytest.mark.parametrize("tolerance", [0.0, 1.0, 3.0])
def test_a_last_layer_is_never_above_temperature_scaling_on_its_rows(tolerance) -> None:
    method, held_out, _ = overfitted()
    alone = nll(gs.tempered(method, held_out), held_out).mean()
    found = gs.last_layer(method, held_out, num_data=60, tolerance=tolerance)
    assert float(nll(found, held_out).mean()) <= float(alone) + HAIR + 1e-6
    assert found.finish.head.scale in SCALES


def test_what_it_is_for() -> None:
    """Here the Gaussian pays: lower loss on rows nobody saw, and doubt far away."""
    method, held_out, test = overfitted()
    found = gs.last_layer(method, held_out, num_data=60)
    assert found.finish.head.scale > 0
    plain = method.posterior()
    assert float(nll(found, test).mean()) < float(nll(plain, test).mean())
    far = found.predict(20 * test[0]).mutual_information.mean()
    assert float(far) > 2 * float(found.predict(test[0]).mutual_information.mean())
    assert float(plain.predict(test[0]).mutual_information.max()) == 0.0


def test_the_choice_of_the_scale() -> None:
    """Row losses whose differences are known: which scales are alike, and which is taken."""
    noise = torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = (noise - noise.mean()) / noise.std()

    class At:
        cold_std, count = 0.25, 400

        def __init__(self, scale, curve, spread=1.0):
            # The standard error of a difference is spread · |difference of scales| / 20.
            self.values = 1.0 + curve(scale) + spread * scale * noise

        def rows(self, temperature):
            return self.values + math.log(temperature) ** 2

    def valley(scale):  # 0.2 below scale 0 everywhere; in standard errors: |scale - 0.25|
        return 0.05 * (scale - 0.25) ** 2 - 0.2 * (scale > 0.0)

    assert best_scale(lambda c: At(c, valley), 0.0) == 0.25
    assert best_scale(lambda c: At(c, valley), 0.3) == 0.5
    assert best_scale(lambda c: At(c, valley), 0.8) == 1.0
    # 0.0005 nats more than scale 0 are for nothing: the narrowest that still ranks is taken.
    assert best_scale(lambda c: At(c, lambda s: 0.01 * s, 0.0), 5.0) == 2.0**-5
    assert best_scale(lambda c: At(c, lambda s: 10.0 * s), 0.0) == 0.0
    assert best_scale(lambda c: At(c, lambda s: -0.01 * s, 0.0), 0.0) == max(SCALES) == 1.0
    # Two standard errors are 0.1 · scale here: a gain of 0.01 · scale that rows are not sure of ...
    assert best_scale(lambda c: At(c, lambda s: -0.01 * s), 0.0) == 2.0**-8
    # ... takes a wide last layer no sooner than they are.
    assert best_scale(lambda c: At(c, lambda s: -0.0999 * s), 0.0) == 1.0
    assert best_scale(lambda c: At(c, lambda s: -0.0992 * s), 0.0) == 0.5


def test_rows_are_those_that_predict_sees() -> None:
    """Temperature and scale belong to the very prediction that is made with this seed."""
    torch.manual_seed(0)
    bnn = gs.to_bayesian(small().float(), 0.0, posterior_std=0.4)
    x, _ = rows(200)
    noise = torch.Generator().manual_seed(8)
    y = torch.multinomial(bnn.eval()(x.float()).softmax(1), 1, generator=noise)[:, 0]
    held_out = (x.float(), y)
    found = gs.last_layer(bnn, held_out, num_data=100, num_samples=5, seed=0)

    def loss(temperature):
        finish = type(found.finish)(temperature, found.finish.head)
        prior = 0.5 * (math.log(temperature) / (0.25 if temperature < 1 else 1.0)) ** 2
        return float(nll(found.finished(finish), held_out).mean()) + prior / 200

    chosen = found.finish.temperature
    assert all(loss(factor * chosen) > loss(chosen) for factor in (0.97, 1.03))


def test_members_share_scale_and_temperature_and_keep_their_own_curvature() -> None:
    nets = [small(seed=s) for s in (0, 1)]
    both, held_out = mixture([posterior_of(net) for net in nets]), rows(200)
    found = gs.last_layer(both, held_out, num_data=100)
    heads = [member.finish.head for member in found.members]
    assert heads[0].scale == heads[1].scale == found.finish_figures["last_layer_scale"]
    assert found.finish_figures["temperature"] == found.finish.temperature
    assert all(member.finish.temperature == 1.0 for member in found.members)
    for head, net in zip(heads, nets, strict=True):
        alone = class_head(posterior_of(net), held_out[0], 100, 64, PLAIN)
        assert torch.equal(head.curvature, alone.curvature)
        assert torch.equal(head.features.basis, alone.features.basis)
    truth = torch.stack(
        [
            posterior_of(net)
            .finished(type(found.finish)(found.finish.temperature, head))
            .predict(held_out[0])
            .probs
            for net, head in zip(nets, heads, strict=True)
        ]
    ).mean(0)
    assert torch.allclose(found.predict(held_out[0]).probs, truth, atol=1e-12)


class Reshaped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.top = nn.Linear(4, 6), nn.Linear(6, 1)

    def forward(self, x):
        return self.top(self.body(x).relu()).squeeze(1)


def test_the_last_layer_is_found() -> None:
    x = torch.randn(3, 4)
    assert last_linear(nn.Linear(4, 2), x) == ("", 2)
    assert last_linear(small().float(), x) == ("2", 3)
    assert last_linear(Reshaped(), x) == ("top", 1)
    assert last_linear(gs.to_sparse(small().float(), 0.5), x) == ("2", 3)
    unhooked = small().float()
    last_linear(unhooked, x)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in unhooked.modules())


def test_refusals() -> None:
    x, y = torch.randn(20, 4), torch.arange(20) % 3
    ends = "does not end in a linear layer"
    with pytest.raises(InvalidValue, match=ends):
        gs.last_layer(nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1)), (x, y))
    with pytest.raises(InvalidValue, match=ends):
        gs.last_layer(nn.Identity(), (x, y))
    with pytest.raises(InvalidValue, match=ends):
        gs.last_layer(nn.Linear(4, 3), (x.unsqueeze(1).expand(20, 5, 4), y))
    net = nn.Linear(4, 3)
    for rows_ in (None, (x,)):
        with pytest.raises(InvalidValue, match="hold out 5 to 10 %"):
            gs.last_layer(net, rows_)
    with pytest.raises(InvalidData, match=r"labels must lie in \[0, 3\)"):
        gs.last_layer(net, (x, y + 1))
    with pytest.raises(InvalidData, match="must be finite"):
        gs.last_layer(net, (x / 0.0, y))
    with pytest.raises(InvalidValue, match="rank = 0"):
        gs.last_layer(net, (x, y), rank=0)
    with pytest.raises(InvalidValue, match="tolerance = -1"):
        gs.last_layer(net, (x, y), tolerance=-1)
    with pytest.raises(InvalidValue, match="num_data = 0"):
        gs.last_layer(net, (x, y), num_data=0)
    with pytest.raises(InvalidValue, match="rows: are for real targets"):
        gs.last_layer(net, (x, y), rows=(x, y))
    with pytest.raises(InvalidValue, match="has no Gaussian last layer"):
        gs.last_layer(nn.Linear(4, 1), (x, y), likelihood="poisson")
    with pytest.raises(InvalidValue, match="gives every row a noise of its own"):
        gs.last_layer(posterior_of(nn.Linear(4, 2), Gaussian("head")), (x, x[:, 0]))
    with pytest.raises(InvalidValue, match="which moments would leave out"):
        gs.last_layer(net, (x, y)).predict_moments(x)


def test_an_end_that_changes_only_some_rows_is_refused() -> None:
    """The first rows may pass a clamp untouched; every row is asked."""

    class Clamped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2, bias=False)
            with torch.no_grad():
                self.layer.weight.copy_(torch.eye(2))

        def forward(self, x):
            return self.layer(x).clamp(-1.0, 1.0)

    x = torch.cat([torch.zeros(30, 2), torch.full((30, 2), 3.0)])
    y = torch.arange(60) % 2
    with pytest.raises(InvalidValue, match="does not end in a linear layer"):
        gs.last_layer(Clamped(), (x, y), num_data=60)
    inside = gs.last_layer(Clamped(), (x[:30] + 0.1, y[:30]), num_data=60)
    with pytest.raises(InvalidValue, match="does not end in a linear layer"):
        inside.predict(x)
