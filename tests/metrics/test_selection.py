from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from gossamer.errors import InvalidData, InvalidValue
from gossamer.metrics import Selection, inclusion_probabilities, variable_selection


@st.composite
def cases(draw):
    num_features = draw(st.integers(1, 40))
    some = st.lists(st.integers(0, num_features - 1), unique=True)
    return num_features, draw(some), draw(some)


@given(cases())
@example((5, [], [0, 1]))
@example((5, [4, 3, 2, 1, 0], [0, 1]))
@example((5, [3, 1], []))
@example((5, [], []))
@example((2, [0, 1], [1, 0]))
def test_by_counting(case):
    """One input at a time, in the four cells of a confusion table, with exact fractions."""
    num_features, selected, true = case
    cells = {(s, t): 0 for s in (True, False) for t in (True, False)}
    for index in range(num_features):
        cells[index in selected, index in true] += 1

    def share(cell, others):
        whole = sum(cells[one] for one in others)
        return float(Fraction(cells[cell], whole)) if whole else 0.0

    wrong, missed, right = (True, False), (False, True), (True, True)
    expected = Selection(
        fdr=share(wrong, [wrong, right]),
        fndr=share(missed, [missed, (False, False)]),
        miss_rate=share(missed, [missed, right]),
        selected=cells[wrong] + cells[right],
    )
    assert variable_selection(selected, true, num_features) == expected
    as_tensors = (torch.tensor(v, dtype=torch.int32) for v in (selected, true))
    assert variable_selection(*as_tensors, num_features) == expected
    as_arrays = (np.array(v, dtype=np.int64) for v in (selected, true))
    assert variable_selection(*as_arrays, num_features) == expected
    assert variable_selection(selected[::-1], set(true), num_features) == expected


def test_a_case_done_by_hand():
    # p = 1000, true 0..4; 4 of them found and 2 others: 996 - 2 = 994 are left out, one wrongly
    found = variable_selection([0, 1, 2, 3, 10, 20], range(5), 1000)
    assert found == Selection(fdr=2 / 6, fndr=1 / 994, miss_rate=1 / 5, selected=6)
    with pytest.raises(AttributeError):
        found.fdr = 0.0


def test_types_are_plain():
    found = variable_selection(torch.tensor([1]), torch.tensor([0]), 3)
    kinds = {name: type(value) for name, value in vars(found).items()}
    assert kinds == {"fdr": float, "fndr": float, "miss_rate": float, "selected": int}


BAD = {
    "too high": ([0, 5], r"\[1\] = 5: must lie in \[0, 5\); count inputs from 0"),
    "negative": ([-1], r"\[0\] = -1: must lie in \[0, 5\)"),
    "twice": ([2, 1, 2], r"\[2\] = 2: is given twice"),
    "twice as a tensor": (torch.tensor([2, 2]), r"\[1\] = 2: is given twice"),
    "mask": (torch.ones(5, dtype=torch.bool), r"\[0\] = True: must be an integer.*nonzero"),
    "plain mask": ([True, False], r"\[0\] = True: must be an integer"),
    "floats": (torch.tensor([1.0]), r"\[0\] = 1.0: must be an integer"),
    "matrix": (torch.tensor([[1]]), r"\.shape = \(1, 1\): must be \[number of indices\]"),
    "scalar": (torch.tensor(1), r"\.shape = \(\): must be \[number of indices\]"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_indices_are_refused(case):
    indices, message = BAD[case]
    with pytest.raises(InvalidData, match="^selected" + message) as raised:
        variable_selection(indices, [0], 5)
    assert "\n" not in str(raised.value)
    with pytest.raises(InvalidData, match="^true" + message):
        variable_selection([0], indices, 5)


@pytest.mark.parametrize("num_features", [0, -1, 2.0, True])
def test_bad_number_of_features_is_refused(num_features):
    with pytest.raises(InvalidValue, match=r"num_features = .*: must be an integer >= 1"):
        variable_selection([], [], num_features)


@given(st.integers(1, 12), st.integers(1, 30), st.integers(0, 10**6))
def test_inclusion_probabilities_by_counting(num_samples, num_features, seed):
    selected = np.random.default_rng(seed).random((num_samples, num_features)) < 0.4
    got = inclusion_probabilities(torch.from_numpy(selected))
    assert got.dtype == torch.float64
    assert got.shape == (num_features,)
    for column in range(num_features):
        count = sum(bool(selected[s, column]) for s in range(num_samples))
        assert float(got[column]) == pytest.approx(count / num_samples, abs=1e-15)


@pytest.mark.parametrize(
    ("selected", "message"),
    [
        (torch.ones(2, 3), r"selected\.dtype = torch.float32: must be torch.bool"),
        (torch.ones(3, dtype=torch.bool), r"selected\.shape = \(3,\): must be \[S, p\]"),
        (torch.ones(0, 3, dtype=torch.bool), r"selected\.shape = \(0, 3\): must be \[S, p\]"),
        (torch.ones(3, 0, dtype=torch.bool), r"selected\.shape = \(3, 0\): must be \[S, p\]"),
        ([[True]], r"selected = list: must be a torch tensor"),
    ],
)
def test_bad_samples_are_refused(selected, message):
    with pytest.raises(InvalidData, match=message):
        inclusion_probabilities(selected)
