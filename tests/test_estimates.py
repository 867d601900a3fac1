from __future__ import annotations

import math
import statistics

import pytest

from gossamer.estimates import Estimate


def test_against_the_standard_library():
    values = [3.25, -1.5, 0.125, 8.0, 2.75]
    found = Estimate.of(values)
    assert found.n == 5
    assert found.mean == pytest.approx(statistics.fmean(values), rel=1e-14)
    assert found.standard_error == pytest.approx(statistics.stdev(values) / math.sqrt(5), rel=1e-13)


def test_one_value_has_no_error():
    assert Estimate.of([0.1]) == Estimate(0.1, None, 1)


def test_equal_values_stay_exact():
    assert Estimate.of([0.1] * 3) == Estimate(0.1, 0.0, 3)
