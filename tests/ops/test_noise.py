"""The one source of noise: fixed by its seed, standard normal, opaque to compile."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from cases.engines import ISAS, needs_native, using
from gossamer.ops import draw_seed, fold_seed, normal, normal_like
from gossamer.ops.noise import noise_dtype
from gossamer.ops.torch.philox import _philox, philox_normal


def seed(value: int) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.int64)


def test_fixed_by_the_seed_alone():
    like = torch.empty(3, 4)
    first = normal_like(seed(9), like)
    torch.randn(10)  # what else is drawn does not matter
    assert torch.equal(first, normal_like(seed(9), like))
    assert not torch.equal(first, normal_like(seed(10), like))
    before = torch.get_rng_state()
    normal_like(seed(9), like)
    assert torch.equal(before, torch.get_rng_state()), "the global generator is left alone"


def test_all_bits_of_the_seed_count():
    """torch's CPU engine reads 32 bits; seeds that differ in the high ones must differ too."""
    like = torch.empty(8)
    draws = [normal_like(seed(5 + (k << 32)), like) for k in range(4)]
    assert all(not torch.equal(a, b) for i, a in enumerate(draws) for b in draws[:i])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_at_least_float32(dtype):
    wanted = torch.float64 if dtype == torch.float64 else torch.float32
    noise = normal_like(seed(1), torch.empty(2, 3, dtype=dtype))
    assert noise.dtype == wanted == noise_dtype(torch.empty(0, dtype=dtype))
    assert noise.shape == (2, 3)
    assert not noise.requires_grad


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)])
def test_odd_shapes(shape):
    assert normal_like(seed(1), torch.empty(shape)).shape == shape


def test_standard_normal():
    """Kolmogorov-Smirnov over 200 seeds of 500 numbers each; p > 1e-3 at fixed seeds."""
    draws = torch.cat([normal_like(seed(fold_seed(0, i)), torch.empty(500)) for i in range(200)])
    assert stats.kstest(draws.numpy(), "norm").pvalue > 1e-3
    first = torch.stack([normal_like(seed(fold_seed(1, i)), torch.empty(16)) for i in range(2000)])
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
    like = torch.ops.gossamer.normal_like.default
    for given in (torch.empty(3, 2), torch.empty(4, dtype=torch.float64)):
        results = torch.library.opcheck(like, (seed(4), given))
        assert set(results.values()) == {"SUCCESS"}
    at = torch.ops.gossamer.normal.default
    for double in (False, True):
        results = torch.library.opcheck(at, (seed(4), torch.arange(6).view(2, 3), double))
        assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        # The known answers of the authors' Random123 library, kat_vectors, philox4x32 10.
        (0, 0, ("6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8")),
    ],
)
def test_philox_known_answers(counter, key, expected):
    words = _philox(key, torch.tensor([counter]))
    assert tuple(f"{int(word):08x}" for word in words) == expected


def test_philox_against_python_integers():
    """A second implementation, one counter at a time in exact integers."""

    def slow(counter: int, key: int) -> list[int]:
        c = [counter & 0xFFFFFFFF, counter >> 32, 0, 0]
        k = [key & 0xFFFFFFFF, key >> 32]
        for _ in range(10):
            p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [
                (p1 >> 32) ^ c[1] ^ k[0],
                p1 & 0xFFFFFFFF,
                (p0 >> 32) ^ c[3] ^ k[1],
                p0 & 0xFFFFFFFF,
            ]
            k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
        return c

    counters = [0, 1, 15, 2**32 - 1, 2**32, 2**40 + 12345, 2**62]
    for key in (0, 1, 2**32, 2**63 - 1, 0x0123456789ABCDEF):
        words = torch.stack(_philox(key, torch.tensor(counters)))
        assert words.T.tolist() == [slow(counter, key) for counter in counters]


@needs_native
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_native_equals_torch(isa, dtype):
    """The compiled generator against the plain one, at counters in and far beyond one block."""
    counters = torch.cat([torch.arange(1000), torch.tensor([2**33 + 7, 2**40, 2**57 + 3])])
    with using(isa):
        found = normal(seed(0x123456789ABCDEF), counters, dtype)
    expected = philox_normal(0x123456789ABCDEF, counters, torch.float64)
    assert found.dtype == dtype
    atol = 2e-6 if dtype == torch.float32 else 1e-14
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=atol)


def test_the_normals_of_a_tensor_are_those_of_its_flat_positions():
    like = torch.empty(3, 5, 7)
    counters = torch.arange(105).view(3, 5, 7)
    assert torch.equal(normal_like(seed(6), like), normal(seed(6), counters))
    double = torch.empty(130, dtype=torch.float64)
    found = normal(seed(6), torch.arange(130), torch.float64)
    assert torch.equal(normal_like(seed(6), double), found)


def test_threads_do_not_matter():
    before, like = torch.get_num_threads(), torch.empty(100_003)
    try:
        found = []
        for threads in (1, 2, 8):
            torch.set_num_threads(threads)
            found.append(normal_like(seed(3), like))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@needs_native
def test_ten_million_draws():
    """Moments, tails and neighbours within 4 standard errors; Kolmogorov-Smirnov p > 1e-3."""
    n = 10_000_000
    x = normal_like(seed(20), torch.empty(n)).double().numpy()
    exact = {1: 0.0, 2: 1.0, 3: 0.0, 4: 3.0, 6: 15.0}
    second = {1: 1.0, 2: 3.0, 3: 15.0, 4: 105.0, 6: 10395.0}  # E x^2k
    for k, moment in exact.items():
        error = ((second[k] - moment**2) / n) ** 0.5
        assert abs((x**k).mean() - moment) < 4 * error
    for bound in (3.0, 4.0, 5.0):
        for tail in (x > bound, x < -bound):
            expected = n * stats.norm.sf(bound)
            assert abs(tail.sum() - expected) < 4 * expected**0.5
    for lag in (1, 2, 16, 32, 48, 64, 1024):
        assert abs((x[lag:] * x[:-lag]).mean()) < 4 / (n - lag) ** 0.5
        squares = (x[lag:] ** 2 - 1) * (x[:-lag] ** 2 - 1)
        assert abs(squares.mean()) < 4 * 2 / (n - lag) ** 0.5
    assert stats.kstest(x, "norm").pvalue > 1e-3
    assert len(set(x[:1_000_000].tolist())) > 990_000, "uniforms have all their bits"
