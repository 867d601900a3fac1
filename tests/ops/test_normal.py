"""The one source of noise: fixed by its seed, standard normal, opaque to compile."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from gossamer.ops import draw_seed, fold_seed, normal
from gossamer.ops.normal import noise_dtype


def seed(value: int) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.int64)


def test_fixed_by_the_seed_alone():
    like = torch.empty(3, 4)
    first = normal(seed(9), like)
    torch.randn(10)  # what else is drawn does not matter
    assert torch.equal(first, normal(seed(9), like))
    assert not torch.equal(first, normal(seed(10), like))
    before = torch.get_rng_state()
    normal(seed(9), like)
    assert torch.equal(before, torch.get_rng_state()), "the global generator is left alone"


def test_all_bits_of_the_seed_count():
    """torch's CPU engine reads 32 bits; seeds that differ in the high ones must differ too."""
    like = torch.empty(8)
    draws = [normal(seed(5 + (k << 32)), like) for k in range(4)]
    assert all(not torch.equal(a, b) for i, a in enumerate(draws) for b in draws[:i])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_at_least_float32(dtype):
    wanted = torch.float64 if dtype == torch.float64 else torch.float32
    noise = normal(seed(1), torch.empty(2, 3, dtype=dtype))
    assert noise.dtype == wanted == noise_dtype(torch.empty(0, dtype=dtype))
    assert noise.shape == (2, 3)
    assert not noise.requires_grad


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)])
def test_odd_shapes(shape):
    assert normal(seed(1), torch.empty(shape)).shape == shape


def test_standard_normal():
    """Kolmogorov-Smirnov over 200 seeds of 500 numbers each; p > 1e-3 at fixed seeds."""
    draws = torch.cat([normal(seed(fold_seed(0, i)), torch.empty(500)) for i in range(200)])
    assert stats.kstest(draws.numpy(), "norm").pvalue > 1e-3
    first = torch.stack([normal(seed(fold_seed(1, i)), torch.empty(16)) for i in range(2000)])
    # Neighbouring seeds: the first numbers of each are normal too, and uncorrelated among seeds.
    assert stats.kstest(first[:, 0].numpy(), "norm").pvalue > 1e-3
    lagged = float((first[1:] * first[:-1]).mean())
    assert abs(lagged) < 4 / (16 * 1999) ** 0.5


def test_drawn_seeds_come_from_torch_s_generator():
    torch.manual_seed(3)
    one = draw_seed()
    torch.manual_seed(3)
    assert torch.equal(one, draw_seed())
    assert one.dtype == torch.int64
    assert one.shape == ()
    assert not torch.equal(one, draw_seed())
    assert all(0 <= int(draw_seed()) < 2**63 for _ in range(50))


def test_folded_seeds_depend_on_every_counter():
    seen = {fold_seed(s, a, b) for s in range(6) for a in range(6) for b in range(6)}
    assert len(seen) == 6**3
    assert fold_seed(1, 2) != fold_seed(2, 1)
    assert fold_seed(1) != fold_seed(1, 0)
    assert fold_seed(7, 8) == fold_seed(7, 8)
    assert all(0 <= fold_seed(s) < 2**63 for s in (-1, 0, 2**63, -(2**63), 2**64 + 5))
    assert len({fold_seed(s) for s in (-1, 0, 1, 2**63 - 1)}) == 4


def test_operator_contract():
    """torch's own checks: schema, fake tensors, no gradient, compilation."""
    operator = torch.ops.gossamer.normal.default
    for like in (torch.empty(3, 2), torch.empty(4, dtype=torch.float64)):
        results = torch.library.opcheck(operator, (seed(4), like))
        assert set(results.values()) == {"SUCCESS"}
