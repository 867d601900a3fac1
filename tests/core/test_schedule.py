"""Schedules against their formulas, at every step of short runs."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gossamer.core.schedule import (
    Constant,
    CosineCycles,
    CosineDecay,
    Cyclical,
    LinearWarmup,
    SwapCycles,
    SwapSchedule,
    cycle_ends,
    linear_warmup,
)
from gossamer.errors import InvalidValue

CLOSE = 1e-12  # cosines of float64 arguments


def test_constant():
    assert [Constant(0.3)(t) for t in (0, 5, 10**9)] == [0.3] * 3


def test_linear_warmup():
    warmup = linear_warmup(4)
    assert [warmup(t) for t in range(7)] == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert LinearWarmup(0)(0) == 1.0, "no warm-up is warm at once"
    assert [LinearWarmup(2, start=1.0, end=0.5)(t) for t in (0, 1, 2, 9)] == [1.0, 0.75, 0.5, 0.5]


def test_cosine_decay():
    decay = CosineDecay(10, end=0.2)
    assert decay(0) == 1.0
    assert decay(5) == pytest.approx(0.6, abs=CLOSE)
    assert decay(10) == pytest.approx(0.2, abs=CLOSE)
    assert decay(10**6) == pytest.approx(0.2, abs=CLOSE)
    assert CosineDecay(10)(10) == pytest.approx(0.0, abs=CLOSE)
    values = [decay(t) for t in range(11)]
    assert values == sorted(values, reverse=True)


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))))
@example((51, 9))  # 17 is the start of the fourth cycle, but 51/9 rounds up
def test_cyclical_restarts_exactly(case):
    """½(1 + cos(π · (t mod C)/C)), C = steps/cycles, with the remainder taken exactly."""
    steps, cycles = case
    schedule = Cyclical(steps, cycles)
    length = Fraction(steps, cycles)
    for t in range(steps):
        expected = 0.5 * (1.0 + math.cos(math.pi * float((t % length) / length)))
        assert schedule(t) == pytest.approx(expected, abs=1e-9), (t, steps, cycles)


def test_cyclical_by_hand():
    schedule = Cyclical(8, 2)
    assert [schedule(t) for t in (0, 4)] == [1.0, 1.0]
    assert schedule(2) == pytest.approx(0.5, abs=CLOSE)
    assert schedule(3) == pytest.approx(0.5 * (1 - math.sqrt(0.5)), abs=CLOSE)


def test_swap_fraction():
    """R_t = fraction/2 · (1 + cos(π t / T_end)), 0 from T_end on."""
    schedule = SwapSchedule(1000, fraction=0.3, end_fraction=0.75, update_every=100)
    assert schedule.share(0) == pytest.approx(0.3, abs=CLOSE)
    assert schedule.share(375) == pytest.approx(0.15, abs=CLOSE)
    assert schedule.share(749) > 0
    assert schedule.share(750) == schedule.share(10**6) == 0.0


def test_swaps_are_due():
    schedule = SwapSchedule(1000, end_fraction=0.75, update_every=100)
    assert [t for t in range(1001) if schedule.is_due(t)] == [100, 200, 300, 400, 500, 600, 700]
    ends_on_a_swap = SwapSchedule(400, end_fraction=0.75, update_every=100)
    assert [t for t in range(401) if ends_on_a_swap.is_due(t)] == [100, 200], "not at T_end itself"


@pytest.mark.parametrize(
    ("total", "every"), [(1, 1), (10, 1), (39, 1), (80, 2), (3999, 99), (4000, 100), (10**6, 100)]
)
def test_default_interval(total, every):
    """100 as in the authors' runs, but about thirty swaps in a short run."""
    assert SwapSchedule(total).every == every
    assert SwapSchedule(total, update_every=7).every == 7


@given(
    st.integers(1, 3000),
    st.floats(0, 1),
    st.floats(0, 1),
    st.none() | st.integers(1, 200),
    st.integers(1, 10**6),
)
def test_counts_stay_in_range(total, fraction, end, every, nnz):
    schedule = SwapSchedule(total, fraction, end, every)
    for step in {0, 1, schedule.every, total // 2, int(schedule.end_step), total}:
        count = schedule.count(step, nnz)
        assert count == int(schedule.share(step) * nnz)
        assert 0 <= count <= schedule.max_count(nnz) <= nnz
        if schedule.is_due(step):
            assert 0 < step < end * total
            assert step % schedule.every == 0


def test_nothing_is_due_without_a_span():
    schedule = SwapSchedule(100, end_fraction=0.0)
    assert not any(schedule.is_due(t) for t in range(101))
    assert [schedule.count(t, 1000) for t in (0, 1, 100)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LinearWarmup(-1), "steps = -1: must not be negative"),
        (lambda: CosineDecay(0), "steps = 0: must be at least 1"),
        (lambda: Cyclical(0, 1), "steps = 0: must be at least 1"),
        (lambda: Cyclical(5, 6), r"cycles = 6: must lie in \[1, steps = 5\]"),
        (lambda: Cyclical(5, 0), r"cycles = 0: must lie in \[1, steps = 5\]"),
        (lambda: SwapSchedule(0), "total_steps = 0: must be at least 1"),
        (lambda: SwapSchedule(9, fraction=1.1), r"swap fraction = 1.1: must lie in \[0, 1\]"),
        (lambda: SwapSchedule(9, end_fraction=-0.1), "swap end_fraction = -0.1"),
        (lambda: SwapSchedule(9, fraction=math.nan), "swap fraction = nan"),
        (lambda: SwapSchedule(9, update_every=0), "update_every = 0: must be at least 1"),
    ],
)
def test_wrong_settings(build, message):
    with pytest.raises(InvalidValue, match=message):
        build()


@given(st.integers(2, 500), st.integers(1, 6))
def test_cycles_end_with_the_run(steps, cycles):
    """The first takes half of it, the others differ by one step at most."""
    if steps < 4 * cycles:
        return
    ends = cycle_ends(steps, cycles)
    assert len(ends) == cycles
    assert ends[-1] == steps
    lengths = [end - start for start, end in zip((0, *ends), ends, strict=False)]
    assert min(lengths) >= 1
    if cycles > 1:
        assert abs(lengths[0] - steps / 2) <= 0.5
        assert max(lengths[1:]) - min(lengths[1:]) <= 1


def test_cycles_by_hand():
    assert cycle_ends(100, 3) == (50, 75, 100)
    assert cycle_ends(100, 2) == (50, 100)
    assert cycle_ends(7, 1) == (7,)
    assert cycle_ends(100, 2, first=0.3) == (30, 100)
    with pytest.raises(InvalidValue, match="cycles = 9: must leave each a step, of 10 in all"):
        cycle_ends(10, 9)
    schedule = CosineCycles((4, 6))
    root = math.sqrt(0.5)
    wanted = [1.0, (1 + root) / 2, 0.5, (1 - root) / 2, 1.0, 0.5, 0.0, 0.0]
    assert [schedule(t) for t in range(8)] == pytest.approx(wanted, abs=CLOSE)


@given(st.integers(2, 80), st.integers(1, 4), st.sampled_from([0.5, 0.75, 1.0]))
def test_swaps_of_a_cycle_are_those_of_a_run_of_its_length(steps, every, end_fraction):
    ends = (steps, steps + 7, steps + 20)
    swaps = SwapCycles(ends, 0.5, end_fraction, every)
    start = 0
    for end in ends:
        alone = SwapSchedule(end - start, 0.5, end_fraction, every)
        for place in range(1, end - start + 1):
            assert swaps.is_due(start + place) == alone.is_due(place)
            assert swaps.share(start + place) == alone.share(place)
            assert swaps.count(start + place, 1000) == alone.count(place, 1000)
        start = end
    assert swaps.max_count(1001) == 500
    assert not swaps.is_due(ends[-1] + every)
    assert swaps.share(ends[-1] + 5) == 0.0
