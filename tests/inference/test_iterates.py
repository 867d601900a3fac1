"""Mean, variance and last points of iterates, against float64 numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gossamer.errors import InvalidData, InvalidValue
from gossamer.inference.iterates import IterateMoments


def points(spread: float, count: int = 40, dtype=torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(500, generator=generator, dtype=torch.float64) + 3.0
    noise = torch.randn(count, 500, generator=generator, dtype=torch.float64)
    return (mean * (1.0 + spread * noise)).to(dtype)


@pytest.mark.parametrize(("spread", "rtol"), [(1.0, 1e-5), (1e-3, 1e-3), (1e-4, 1e-2)])
def test_welford_in_float32(spread, rtol):
    """Where E[w²] - mean² in float32 fails, this holds: the test shows both."""
    seen = points(spread)
    moments = IterateMoments(5)
    for point in seen:
        moments.add({"w": point})
    exact = seen.double().numpy()
    variance = exact.var(0, ddof=1)
    np.testing.assert_allclose(moments.mean["w"].numpy(), exact.mean(0), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(moments.variance("w").numpy(), variance, rtol=rtol)
    naive = ((seen * seen).mean(0) - seen.mean(0) ** 2).double().numpy()
    if spread == 1e-4:
        assert np.mean(np.abs(naive / variance - 1.0) > 0.2) > 0.3


def test_half_precision_is_looked_at_in_float32():
    seen = points(0.5, dtype=torch.bfloat16)
    moments = IterateMoments(2)
    for point in seen:
        moments.add({"w": point})
    assert moments.mean["w"].dtype == moments.last[0]["w"].dtype == torch.float32
    np.testing.assert_allclose(
        moments.variance("w").numpy(), seen.double().numpy().var(0, ddof=1), rtol=1e-4
    )


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_the_last_points_are_copies(rank):
    moments, w = IterateMoments(rank), torch.zeros(2)
    for _ in range(5):
        w += 1.0
        moments.add({"w": w})
    assert [float(p["w"][0]) for p in moments.last] == [3.0, 4.0, 5.0][3 - rank :]
    assert moments.count == 5
    assert float(moments.mean["w"][0]) == 3.0


def test_state():
    one, two = IterateMoments(3), IterateMoments(3)
    seen = points(0.1, 9)
    two.load_state_dict(one.state_dict(), {"w": seen[0]})
    assert two.count == 0
    for point in seen[:5]:
        one.add({"w": point})
    two.load_state_dict(one.state_dict(), {"w": seen[0]})
    kept = one.mean["w"].clone()
    for point in seen[5:]:
        two.add({"w": point})
    assert torch.equal(one.mean["w"], kept), "they share nothing"
    for point in seen[5:]:
        one.add({"w": point})
    assert torch.equal(one.mean["w"], two.mean["w"])
    assert torch.equal(one.variance("w"), two.variance("w"))
    assert all(torch.equal(a["w"], b["w"]) for a, b in zip(one.last, two.last, strict=True))
    with pytest.raises(InvalidData, match="other tensors"):
        two.load_state_dict(one.state_dict(), {"v": seen[0]})
    with pytest.raises(InvalidData, match="other tensors"):
        two.load_state_dict(one.state_dict(), {"w": seen[0][:3]})
    with pytest.raises(InvalidValue, match="at least 2"):
        IterateMoments(3).variance("w")
    with pytest.raises(InvalidValue, match="rank"):
        IterateMoments(-1)
