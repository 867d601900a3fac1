"""Draws and steps of the native engine against the torch formulas, on every instruction set."""

from __future__ import annotations

import math

import pytest
import torch

from gossamer.core.natural import Rates
from gossamer.ops import natural, normal_like
from gossamer.ops.native import library
from gossamer.ops.native import natural as native

TOLERANCE = {torch.float32: 3e-5, torch.float64: 1e-11}


def weights(count: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    torch.manual_seed(count)
    return {
        "theta": torch.randn(count, dtype=dtype),
        "grad": torch.randn(count, dtype=dtype),
        "product": torch.randn(count, dtype=dtype),
        "curvature": torch.rand(count, dtype=dtype) + 0.01,
        "exp_avg": 0.1 * torch.randn(count, dtype=dtype),
        "exp_avg_sq": 0.1 * torch.rand(count, dtype=dtype),
    }


@pytest.fixture
def plain(monkeypatch):
    """A switch to the torch formulas."""

    def switch() -> None:
        monkeypatch.setattr(native, "is_fused", lambda *tensors: False)

    return switch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [0, 1, 63, 1000, 40_000])
@pytest.mark.parametrize("per_weight", [False, True])
@pytest.mark.parametrize("uses_adam", [True, False])
@pytest.mark.parametrize("one_draw", [True, False])
def test_steps_agree(dtype, count, per_weight, uses_adam, one_draw, plain):
    decay = torch.rand(count, dtype=dtype) * 0.1 if per_weight else 0.03
    found = []
    for turn in range(2):
        if turn == 1:
            plain()
        at = weights(count, dtype)
        rates = Rates(0.05, 0.9, 0.999, 0.99, 7)
        natural.step_(
            at["theta"],
            at["grad"],
            None if one_draw else at["product"],
            at,
            rates,
            size=300.0,
            decay=decay,
            max_step=0.7,
            uses_adam=uses_adam,
            eps=at["product"] if one_draw else None,
        )
        found.append(at)
    if library.is_available():
        assert native.is_fused(torch.zeros(3)) is False, "the second turn ran without the engine"
    for name, tensor in found[0].items():
        close = TOLERANCE[dtype]
        torch.testing.assert_close(tensor, found[1][name], rtol=close, atol=close, msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("uses_adam", [True, False])
def test_the_noise_of_one_draw_is_a_product_to_the_bit(dtype, uses_adam):
    """ε and the gradient, or their product rounded before: the same step."""
    found = []
    for is_given in (True, False):
        at = weights(3000, dtype)
        eps = torch.randn(3000, dtype=dtype, generator=torch.Generator().manual_seed(8))
        natural.step_(
            at["theta"],
            at["grad"],
            eps * at["grad"] if is_given else None,
            at,
            Rates(0.05, 0.9, 0.999, 0.99, 7),
            size=300.0,
            decay=0.03,
            max_step=0.7,
            uses_adam=uses_adam,
            eps=None if is_given else eps,
        )
        found.append(at)
    for name in ("theta", "curvature", "exp_avg", "exp_avg_sq"):
        assert torch.equal(found[0][name], found[1][name]), name
    assert not torch.equal(found[0]["curvature"], weights(3000, dtype)["curvature"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("first", [0, 1, 64, 1003])
def test_draws_agree_and_take_their_place_in_one_stream(dtype, first, plain):
    at = weights(900, dtype)
    whole = normal_like(torch.tensor(5), torch.empty(2000, dtype=dtype))
    wanted = at["theta"] + whole[first : first + 900] / (300.0 * (at["curvature"] + 0.03)).sqrt()
    for turn in range(2):
        if turn == 1:
            plain()
        theta = at["theta"].clone()
        mean, eps = natural.draw_(
            theta, at["curvature"], seed=5, first=first, size=300.0, decay=0.03
        )
        assert torch.equal(mean, at["theta"])
        close = TOLERANCE[dtype]
        torch.testing.assert_close(eps, whole[first : first + 900], rtol=close, atol=close)
        torch.testing.assert_close(theta, wanted, rtol=close, atol=close)


def test_plain_adam_agrees(plain):
    found = []
    for turn in range(2):
        if turn == 1:
            plain()
        at = weights(500, torch.float32)
        rates = Rates(0.05, 0.9, 0.999, 0.99, 3)
        natural.adam_(at["theta"], at["grad"], at["exp_avg"], at["exp_avg_sq"], rates)
        found.append(at)
    for name in ("theta", "exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(found[0][name], found[1][name], rtol=3e-5, atol=3e-5)


def test_an_infinite_limit_is_none():
    at = weights(50, torch.float64)
    before = at["theta"].clone()
    natural.step_(
        at["theta"],
        at["grad"] * 1e3,
        at["product"],
        at,
        Rates(0.05, 0.0, 0.999, 1.0 - 1e-12, 1),
        size=300.0,
        decay=0.03,
        max_step=math.inf,
        uses_adam=False,
    )
    wanted = before - 0.05 * (at["grad"] * 1e3 + 0.03 * before) / (at["curvature"] + 0.03)
    torch.testing.assert_close(at["theta"], wanted, rtol=1e-9, atol=1e-9)


def test_what_the_engine_writes_torch_notices():
    """A graph that saved the old values is refused, not differentiated wrongly."""
    theta = torch.randn(40, requires_grad=True)
    loss = (theta * theta).sum()
    with torch.no_grad():
        natural.draw_(theta, torch.ones(40), seed=1, first=0, size=10.0, decay=0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(
    "odd",
    [torch.zeros(4, dtype=torch.bfloat16), torch.zeros(4, 2).T[0], torch.zeros(4, device="meta")],
)
def test_what_the_engine_does_not_take(odd):
    assert not native.is_fused(odd)
    assert not native.is_fused(torch.zeros(4), torch.zeros(5))
