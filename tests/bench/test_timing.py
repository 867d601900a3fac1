"""The clock is fake: what is tested is who runs when, and what becomes of the figures."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable

import pytest
import torch

from gossamer.bench.result import Entry, fastest, sized_rows, timed_rows
from gossamer.bench.settings import Settings
from gossamer.bench.timing import (
    MAX_ROUNDS,
    Effort,
    Timing,
    geometric_mean,
    interleave,
    line,
    using_threads,
)
from gossamer.errors import InvalidValue


class FakeTime:
    """A clock that only contenders move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def clock(self) -> float:
        return self.now

    def contender(self, name: str, *durations: float) -> Callable[[], None]:
        left = list(durations)

        def run() -> None:
            self.calls.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


def test_contenders_take_turns_and_nobody_has_a_place_of_his_own() -> None:
    time = FakeTime()
    contenders = {name: time.contender(name, 1.0) for name in "abc"}
    interleave(contenders, Effort(4), clock=time.clock)
    # The first round is not timed; then from a on, from b on but backwards, from c on, …
    assert "".join(time.calls) == "abc" + "abc" + "acb" + "cab" + "cba"


def test_the_median_is_of_the_timed_runs_alone() -> None:
    time = FakeTime()
    a = time.contender("a", 100.0, 2.0, 9.0, 3.0)  # 100: cold caches
    found = interleave({"a": a, "b": time.contender("b", 6.0)}, Effort(3), clock=time.clock)
    assert found["a"].seconds == (2.0, 9.0, 3.0)
    assert (found["a"].median, found["a"].best) == (3.0, 2.0)
    assert found["b"].median == 6.0


def test_short_runs_get_more_rounds_up_to_a_limit() -> None:
    time = FakeTime()
    found = interleave({"a": time.contender("a", 0.5)}, Effort(2, seconds=3.0), clock=time.clock)
    assert len(found["a"].seconds) == 6
    found = interleave({"a": time.contender("a", 0.0)}, Effort(2, seconds=3.0), clock=time.clock)
    assert len(found["a"].seconds) == MAX_ROUNDS


def test_no_garbage_is_collected_inside_a_run_and_an_error_restores_it() -> None:
    seen = []

    def run() -> None:
        seen.append(gc.isenabled())
        if len(seen) == 3:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interleave({"a": run}, Effort(9))
    assert seen == [True, False, False]
    assert gc.isenabled()


def test_threads_come_back() -> None:
    before = torch.get_num_threads()

    def fail() -> None:
        with using_threads(before + 1):
            assert torch.get_num_threads() == before + 1
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert torch.get_num_threads() == before


def test_means_and_lines() -> None:
    assert geometric_mean([1.0, 4.0, 2.0]) == pytest.approx(2.0, rel=1e-12)
    assert math.isnan(geometric_mean([]))
    points = [(0.1, 1.3), (0.05, 0.8), (0.02, 0.5), (0.01, 0.4)]  # 0.3 + 10 x
    assert line(points) == pytest.approx((0.3, 10.0), rel=1e-12)
    # Against numpy where the points are not on a line: polyfit([1, 2, 4], [1, 3, 4], 1).
    assert line([(1, 1), (2, 3), (4, 4)]) == pytest.approx((0.5, 13 / 14), rel=1e-12)
    with pytest.raises(InvalidValue, match="two different x"):
        line([(1, 1), (1, 2)])


def test_rows_hold_the_baseline_over_the_contender() -> None:
    dense, sparse = Entry("dense"), Entry("sparse", 0.95)
    timings = {dense: Timing((4.0, 6.0, 5.0)), sparse: Timing((1.0, 3.0, 2.0))}
    rows = timed_rows("case", timings, dense, 2)
    assert [(row.value, row.best, row.ratio) for row in rows] == [
        (5000.0, 4000.0, 1.0),
        (2000.0, 1000.0, 2.5),
    ]
    assert {row.baseline for row in rows} == {"dense"}
    assert fastest(timings, "dense", "sparse") == sparse
    sizes = sized_rows("case", {dense: 8e6, sparse: 2e6}, dense, 1)
    assert [(row.value, row.ratio) for row in sizes] == [(8.0, 1.0), (2.0, 4.0)]


@pytest.mark.parametrize("threads", [(), (0,), (1, -1)])
def test_threads_must_be_positive(threads: tuple[int, ...]) -> None:
    with pytest.raises(InvalidValue, match="threads"):
        Settings(threads=threads)


@pytest.mark.parametrize("rounds", [0, -1, MAX_ROUNDS + 1])
def test_rounds_must_be_sane(rounds: int) -> None:
    with pytest.raises(InvalidValue, match="rounds"):
        Settings(rounds=rounds)


def test_rounds_that_were_asked_for_are_exact() -> None:
    usual = Effort(9, seconds=4.0)
    assert Settings().effort(usual) == usual
    assert Settings(quick=True).effort(usual) == Effort(1)
    assert Settings(quick=True, rounds=3).effort(usual) == Effort(3)
