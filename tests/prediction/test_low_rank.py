"""Draws with a diagonal and a low-rank covariance, against the dense matrix."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.errors import InvalidValue, NonFinite
from gossamer.likelihoods import Gaussian
from gossamer.prediction import LowRankCentre, LowRankDraws, Posterior


def network(dtype=torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return gs.to_sparse(nn.Linear(3, 2), backend="masked").to(dtype)


def draws(points: int, scale: float = 1.0, dtype=torch.float64) -> LowRankDraws:
    """Weights and biases: 8 numbers whose points are correlated."""
    net = network(dtype)
    generator = torch.Generator().manual_seed(1)
    mixing = torch.randn(8, 8, generator=generator, dtype=torch.float64)
    seen = 2.0 + torch.randn(points + 4, 8, generator=generator, dtype=torch.float64) @ mixing
    parts = {"weight_values": slice(0, 6), "bias": slice(6, 8)}
    wide = torch.promote_types(dtype, torch.float32)
    centres = [
        LowRankCentre(
            name,
            seen[:, part].mean(0).to(wide),
            seen[:, part].var(0).to(wide),
            tuple(seen[:points, part].to(wide)),
        )
        for name, part in parts.items()
    ]
    return LowRankDraws(net, centres, scale)


def sampled(found: LowRankDraws, count: int) -> np.ndarray:
    rows = []
    for seed in range(count):
        with found.sample(0, seed=seed, noise="weight") as net:
            rows.append(torch.cat([net.weight_values, net.bias]).detach().numpy())
    return np.array(rows, dtype=np.float64)


@pytest.mark.parametrize(("points", "scale"), [(5, 1.0), (2, 2.0), (0, 0.5)])
def test_mean_and_covariance_of_many_draws(points, scale):
    """½(Σ_diag + D̂D̂ᵀ/(K-1)), weights and biases together: every entry within 5 errors."""
    found, count = draws(points, scale), 3000
    mean, variance = (
        torch.cat([getattr(c, part) for c in found.centres]).numpy()
        for part in ("mean", "variance")
    )
    wanted = np.diag(variance)
    if points:
        columns = [
            torch.cat(p).numpy() for p in zip(*(c.points for c in found.centres), strict=True)
        ]
        deviations = np.array(columns).T - mean[:, None]
        wanted = 0.5 * (wanted + deviations @ deviations.T / (points - 1))
        assert np.abs(wanted - np.diag(np.diag(wanted))).max() > 1.0, "weights covary"
    wanted = scale * wanted
    rows = sampled(found, count)
    got = np.cov(rows.T)
    error = np.sqrt((wanted**2 + np.outer(np.diag(wanted), np.diag(wanted))) / count)
    assert (np.abs(got - wanted) < 5 * error).all()
    assert (np.abs(rows.mean(0) - mean) < 5 * np.sqrt(np.diag(wanted) / count)).all()


def test_a_scale_of_zero_is_the_mean():
    found = draws(4, 0.0)
    assert found.max_samples == 1
    rows = sampled(found, 2)
    np.testing.assert_array_equal(rows[0], torch.cat([c.mean for c in found.centres]).numpy())
    np.testing.assert_array_equal(rows[0], rows[1])


def test_half_precision_parameters():
    with draws(3, dtype=torch.bfloat16).sample(0, seed=1, noise="weight") as net:
        assert net.weight_values.dtype == net.bias.dtype == torch.bfloat16


def test_through_a_file_and_copies(tmp_path):
    posterior = Posterior(draws(4, 0.7, torch.float32), Gaussian(1.0))
    x = torch.randn(5, 3)
    wanted = posterior.predict(x, 6).samples
    posterior.save(tmp_path / "it.safetensors")
    loaded = gs.load(tmp_path / "it.safetensors", network=nn.Linear(3, 2))
    frozen = posterior.frozen()
    for other in (loaded, frozen, posterior.to("cpu")):
        assert isinstance(other.draws, LowRankDraws)
        assert torch.equal(other.predict(x, 6).samples, wanted)
        assert other.max_samples is None
    posterior.draws.centres[0].points[0].fill_(9.0)
    assert not torch.equal(posterior.predict(x, 6).samples, wanted)
    assert torch.equal(frozen.predict(x, 6).samples, wanted), "tensors of its own"


def test_refusals():
    found = draws(4)
    centre = found.centres[0]
    with pytest.raises(InvalidValue, match="none, or at least 2"):
        LowRankDraws(found.network, [found.centres[1], LowRankCentre(*_parts(centre), ())])
    with pytest.raises(InvalidValue, match="none, or at least 2"):
        LowRankDraws(found.network, [LowRankCentre(*_parts(centre), centre.points[:1])])
    with pytest.raises(InvalidValue, match="scale"):
        LowRankDraws(found.network, found.centres, -1.0)
    centre.points[2][0] = torch.nan
    with pytest.raises(NonFinite, match="weight_values"):
        sampled(found, 1)
    with pytest.raises(InvalidValue):
        Posterior(draws(4), Gaussian(1.0)).predict_moments(torch.randn(2, 3).double())


def _parts(centre: LowRankCentre):
    return centre.name, centre.mean, centre.variance
