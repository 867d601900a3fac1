"""Exact budgets, and the densities against a brute-force solver in fractions."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import product
from math import floor

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from gossamer.core.allocation import DISTRIBUTION, LayerSize, allocate, budget
from gossamer.errors import InvalidValue, UnknownName

kernels = st.lists(st.integers(1, 3), max_size=3).map(tuple)
layers = st.builds(LayerSize, st.just("layer"), st.integers(1, 20), st.integers(1, 20), kernels)
tiny = st.builds(LayerSize, st.just("tiny"), st.integers(1, 2), st.integers(1, 2), st.just(()))
sparsities = st.floats(0.0, 1.0, exclude_max=True) | st.sampled_from([0.0, 0.5, 0.9, 0.95, 0.99])


def weights(model) -> int:
    return sum(layer.numel for layer in model)


def solve(raw: list[Fraction], sizes: list[int], total: int) -> list[Fraction]:
    """t_l = clip(c · raw_l, 1, size_l) with Σ t = total, by trying which layers are at a bound."""
    for state in product(("low", "free", "high"), repeat=len(raw)):
        fixed = {"low": 1, "free": 0}
        held = [n if s == "high" else fixed[s] for s, n in zip(state, sizes, strict=True)]
        free = [r for s, r in zip(state, raw, strict=True) if s == "free"]
        rest = Fraction(total - sum(held))
        if not free:
            if rest == 0 and _some_scale_fits(state, raw, sizes):
                return [Fraction(h) for h in held]
            continue
        c = rest / sum(free)
        if all(_fits(s, c * r, n) for s, r, n in zip(state, raw, sizes, strict=True)):
            return [
                c * r if s == "free" else Fraction(h)
                for s, r, h in zip(state, raw, held, strict=True)
            ]
    raise AssertionError("no solution")


def _fits(state: str, wanted: Fraction, size: int) -> bool:
    if state == "low":
        return wanted <= 1
    return 1 <= wanted <= size if state == "free" else wanted >= size


def _some_scale_fits(state, raw, sizes) -> bool:
    least = max(
        [n / r for s, r, n in zip(state, raw, sizes, strict=True) if s == "high"], default=0
    )
    most = [1 / r for s, r in zip(state, raw, strict=True) if s == "low"]
    return not most or least <= min(most)


@given(
    st.lists(layers | tiny, min_size=1, max_size=8), sparsities, st.sampled_from(["erk", "uniform"])
)
@settings(max_examples=120, deadline=None)
@example([LayerSize("a", 1, 1)], 0.0, "erk")
@example([LayerSize("a", 1, 1), LayerSize("b", 1, 1)], 0.0, "uniform")
def test_the_budget_is_met_exactly(model, sparsity, distribution):
    total = round((1.0 - sparsity) * weights(model))
    if total < len(model):
        with pytest.raises(InvalidValue, match="one would be empty"):
            allocate(model, sparsity, distribution)
        return
    counts = allocate(model, sparsity, distribution)
    assert sum(counts) == total
    assert all(type(c) is int for c in counts)
    assert all(1 <= c <= layer.numel for c, layer in zip(counts, model, strict=True))


@given(st.lists(layers | tiny, min_size=1, max_size=6), sparsities)
@settings(max_examples=100, deadline=None)
def test_dense_first(model, sparsity):
    total = round((1.0 - sparsity) * weights(model))
    assume(total >= len(model))
    left = total - model[0].numel
    if left < len(model) - 1:
        with pytest.raises(InvalidValue, match="sparsity_distribution = uniform_dense_first"):
            allocate(model, sparsity, "uniform_dense_first")
        return
    counts = allocate(model, sparsity, "uniform_dense_first")
    assert counts[0] == model[0].numel
    assert sum(counts) == total
    assert all(1 <= c <= layer.numel for c, layer in zip(counts, model, strict=True))


@pytest.mark.parametrize("distribution", ["erk", "uniform"])
@given(model=st.lists(layers | tiny, min_size=1, max_size=4), sparsity=sparsities)
@settings(max_examples=60, deadline=None)
def test_shares_against_brute_force(distribution, model, sparsity):
    total = round((1.0 - sparsity) * weights(model))
    assume(total >= len(model))
    if distribution == "erk":  # density · numel = n_in/groups + n_out + Σk
        raw = [Fraction(layer.fan_in + layer.fan_out + sum(layer.kernel)) for layer in model]
    else:
        raw = [Fraction(layer.numel) for layer in model]
    exact = solve(raw, [layer.numel for layer in model], total)
    counts = allocate(model, sparsity, distribution)
    for count, share in zip(counts, exact, strict=True):
        assert abs(count - share) < 1, "only the rounding may differ"
    # Largest remainders: nobody with a clearly smaller remainder got the extra weight.
    rest = [share - floor(share) for share in exact]
    up = [r for c, s, r in zip(counts, exact, rest, strict=True) if c > s]
    down = [r for c, s, r in zip(counts, exact, rest, strict=True) if c < s]
    assert not up or not down or min(up) >= max(down) - Fraction(1, 10**9)


def test_erk_by_hand():
    """Densities (in + out + Σk)/numel: 30/200 and 60/800, budget 100 = c · 90."""
    model = [LayerSize("a", 10, 20), LayerSize("b", 20, 40)]
    assert allocate(model, 0.9) == [33, 67]


def test_erk_caps_a_small_layer_and_redistributes():
    """The small layer would need density above 1: it keeps all 4, the rest goes to the other."""
    model = [LayerSize("small", 2, 2), LayerSize("large", 30, 30)]
    assert allocate(model, 0.5) == [4, 448]


def test_group_and_kernel_enter_the_density():
    layer = LayerSize("conv", 4, 16, (3, 3))
    assert layer.numel == 576
    assert layer.erk_density == (4 + 16 + 6) / 576


@pytest.mark.parametrize("sparsity", [1.0, -0.1, 1.5, float("nan"), float("inf")])
def test_sparsity_out_of_range(sparsity):
    with pytest.raises(InvalidValue, match=r"must lie in \[0, 1\); it is the share"):
        budget([LayerSize("a", 3, 3)], sparsity)


def test_unknown_distribution_lists_the_known_ones():
    with pytest.raises(UnknownName, match="choose one of: erk, uniform, uniform_dense_first"):
        allocate([LayerSize("a", 3, 3)], 0.5, "er")
    assert sorted(DISTRIBUTION) == ["erk", "uniform", "uniform_dense_first"]


def test_impossible_dense_first_names_the_layer():
    model = [LayerSize("stem", 10, 10), LayerSize("head", 10, 2)]
    with pytest.raises(InvalidValue, match="layer stem alone has 100 of the 12 weights to keep"):
        allocate(model, 0.9, "uniform_dense_first")


@pytest.mark.parametrize("size", [(3, 3), (300, 300), (2000, 2000), (30000, 30000)])
def test_the_hint_of_too_high_a_sparsity_works(size):
    """Whoever follows the hint gets a model."""
    model = [LayerSize(str(i), *size) for i in range(3)]
    with pytest.raises(InvalidValue, match="use at most") as caught:
        budget(model, 1.0 - 1e-13)
    advice = float(re.search(r"use at most (\S+)", caught.value.hint).group(1))
    assert budget(model, advice) >= len(model)


class TestByName:
    LAYERS = (LayerSize("body.0", 20, 30), LayerSize("body.1", 30, 30), LayerSize("head", 30, 4))

    def test_every_pattern_has_a_budget_of_its_own(self):
        counts = allocate(self.LAYERS, {"body.*": 0.9, "head": 0.0})
        assert counts == [*allocate(self.LAYERS[:2], 0.9), 120]
        assert sum(counts[:2]) == 150

    def test_the_first_pattern_that_matches_wins(self):
        assert allocate(self.LAYERS, {"body.1": 0.5, "*": 0.8}, "uniform")[1] == 450
        assert allocate(self.LAYERS, {"*": 0.5}) == allocate(self.LAYERS, 0.5)

    def test_a_layer_without_a_pattern_and_a_pattern_without_a_layer(self):
        with pytest.raises(InvalidValue, match="has no pattern for the layer head; name it, or"):
            allocate(self.LAYERS, {"body.*": 0.9})
        with pytest.raises(InvalidValue, match="matches no layer that is left; the layers are bod"):
            allocate(self.LAYERS, {"*": 0.9, "head": 0.0})
