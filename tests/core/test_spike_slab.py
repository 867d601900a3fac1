"""The spike-and-slab prior against log densities, 50-digit arithmetic and brute force."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from gossamer.core.groups import STATISTICS, Grouping
from gossamer.core.spike_slab import (
    Candidates,
    hard_mask,
    soft_mask,
    spike_and_slab,
    spike_threshold,
    thresholds_for,
)
from gossamer.errors import InvalidValue

PRIORS = [
    (1e-2, 1.0, 1, 0.5),
    (1e-2, 1.0, 1, 0.9),
    (0.5, 300.0, 9, 0.3),
    (2e-4, 1e-2, 5, 0.999),
    (1.0, 1.001, 4, 0.5),
    (1e-6, 1e6, 64, 1e-6),
]


def log_joint(mean_square: float, size: int, precision: float, share: float) -> float:
    """log p + Σ log N(w | 0, 1/δ) of a group of equal weights, by torch's own density."""
    w = torch.full((size,), math.sqrt(mean_square), dtype=torch.float64)
    normal = torch.distributions.Normal(0.0, torch.tensor(precision, dtype=torch.float64).rsqrt())
    return math.log(share) + float(normal.log_prob(w).sum())


@pytest.mark.parametrize(("slab", "spike", "size", "share"), PRIORS)
def test_the_spike_is_likelier_exactly_below_the_threshold(slab, spike, size, share):
    threshold = spike_threshold(slab, spike, size, share)
    assert threshold > 0.0

    def spike_wins(mean_square: float) -> bool:
        return log_joint(mean_square, size, spike, share) > log_joint(
            mean_square, size, slab, 1.0 - share
        )

    for below in (0.999, 0.5, 0.0):
        assert spike_wins(below * threshold)
    for above in (1.001, 2.0, 10.0):
        assert not spike_wins(above * threshold)


@pytest.mark.parametrize(("slab", "spike", "size", "share"), PRIORS)
def test_the_threshold_to_50_digits(slab, spike, size, share):
    with mpmath.workdps(50):

        def density(precision, square):
            return mpmath.sqrt(precision / (2 * mpmath.pi)) * mpmath.exp(-precision * square / 2)

        def difference(square):
            one = mpmath.mpf(share) * density(mpmath.mpf(spike), square) ** size
            two = (1 - mpmath.mpf(share)) * density(mpmath.mpf(slab), square) ** size
            return mpmath.log(one) - mpmath.log(two)

        found = spike_threshold(slab, spike, size, share)
        exact = mpmath.findroot(difference, (found * 0.9, found * 1.1))
        assert abs(found / exact - 1) < 1e-11


def test_a_rare_spike_never_wins():
    threshold = spike_threshold(1.0, 2.0, 1, 0.1)
    assert threshold < 0.0
    assert log_joint(0.0, 1, 2.0, 0.1) < log_joint(0.0, 1, 1.0, 0.9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((2.0, 1.0, 1, 0.5), "slab, spike"),
        ((1.0, 1.0, 1, 0.5), "slab, spike"),
        ((0.0, 1.0, 1, 0.5), "slab, spike"),
        ((math.nan, 1.0, 1, 0.5), "slab, spike"),
        ((1.0, 2.0, 1, 0.0), "spike_share"),
        ((1.0, 2.0, 1, 1.0), "spike_share"),
        ((1.0, 2.0, 0, 0.5), "size"),
    ],
)
def test_bad_priors_are_refused(arguments, message):
    with pytest.raises(InvalidValue, match=message):
        spike_threshold(*arguments)


def test_masks_by_hand():
    # Group 0: mean square 2.5, range 3; group 1: 4 and 0; group 2: 0.01 and 0; group 4: 1 and 2.
    grouping = Grouping(torch.tensor([0, 1, 0, 2, 1, 4, 4]), 5)
    values = torch.tensor([1.0, 2.0, -2.0, 0.1, 2.0, 1.0, -1.0])
    spiked = [False, False, False, True, False, True, True]
    assert soft_mask(values, grouping, 1.5).tolist() == spiked
    # A group at the threshold is not below it.
    assert soft_mask(values, grouping, 1.0).tolist() == [False] * 3 + [True] + [False] * 3
    assert hard_mask(values, grouping, "mean_square", 1.5).tolist() == spiked
    gone = [False, True, False, True, True, False, False]
    assert hard_mask(values, grouping, "range", 2.0).tolist() == gone
    gone = [False, True, False, True, True, True, True]
    assert hard_mask(values, grouping, "abs_range", 0.5).tolist() == gone
    assert not hard_mask(values, grouping, "range", 0.0).any(), "nothing is below 0"


# Few distinct values make ties; the empty groups are those that no weight names.
weights = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 3.0])),
    min_size=1,
    max_size=25,
)


@given(weights=weights, removed=st.integers(-2, 27), statistic=st.sampled_from(STATISTICS))
@example(weights=[(0, 1.0), (1, 1.0), (2, 1.0)], removed=1, statistic="mean_square")
@example(weights=[(0, 1.0), (1, 2.0)], removed=2, statistic="mean_square")
@example(weights=[(0, 1.0), (0, 2.0), (1, 5.0)], removed=1, statistic="range")
def test_the_threshold_removes_enough_and_no_more(weights, removed, statistic):
    ids, values = (torch.tensor(part) for part in zip(*weights, strict=True))
    grouping = Grouping(ids, 8)

    def zeroed(threshold: float) -> list[bool]:
        return hard_mask(values, grouping, statistic, threshold).tolist()

    alive = grouping.statistic(values, statistic)[ids.unique()].tolist()
    enough = (t for t in sorted({0.0, *alive, math.inf}) if sum(zeroed(t)) >= removed)
    wanted = next(enough, math.inf)
    if wanted == math.inf and alive.count(max(alive)) == 1:
        wanted = max(alive)  # a single largest group stays
    threshold = thresholds_for([Candidates.of(values, grouping, statistic)], removed)[0]
    assert zeroed(threshold) == zeroed(wanted)


def test_groups_that_tie_leave_together():
    grouping = Grouping(torch.tensor([0, 0, 1, 1, 2, 3]), 4)
    values = torch.tensor([1.0, 1.0, 1.0, 1.0, 2.0, 9.0])
    layer = Candidates.of(values, grouping, "mean_square")
    threshold = thresholds_for([layer], 1)[0]
    assert threshold == 4.0
    assert (
        hard_mask(values, grouping, "mean_square", threshold).tolist() == [True] * 4 + [False] * 2
    )
    assert thresholds_for([layer], 5) == thresholds_for([layer], 6) == [81.0]
    tied = Candidates.of(torch.ones(6), grouping, "mean_square")
    assert thresholds_for([tied], 1) == [math.inf], "the pruner keeps one"


# (statistic, kept weights) of the groups of every layer, with ties and with groups that are gone.
layers = st.lists(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.25, 1.0, 4.0, 9.0]), st.integers(0, 3)),
        min_size=1,
        max_size=6,
    ),
    max_size=4,
)


@given(layers=layers, removed=st.integers(-1, 30))
@example(layers=[[(1.0, 2), (4.0, 1)], [(0.25, 3), (9.0, 1)]], removed=4)
@example(layers=[[(1.0, 0)], [(1.0, 1), (1.0, 1)]], removed=1)
@example(layers=[[(0.0, 1), (0.0, 1)], [(4.0, 1), (9.0, 1)]], removed=1)
@example(layers=[[(4.0, 1), (4.0, 1), (9.0, 1)], [(9.0, 1)], [(1.0, 1)] * 4], removed=2)
@example(layers=[[(9.0, 0), (1.0, 1), (4.0, 1)], [(9.0, 1)], [(1.0, 1), (9.0, 1)]], removed=1)
def test_one_order_for_all_layers(layers, removed):
    """Against the plain way: groups leave one score after the other until enough are gone."""
    free = []  # score, layer, group, weights; one of the largest of a layer is not among them
    for number, groups in enumerate(layers):
        alive = {i: s for i, (s, n) in enumerate(groups) if n}
        reserved = max(alive, key=lambda i: alive[i], default=None)
        for i in alive.keys() - {reserved}:
            above = sum(s for s in alive.values() if s >= alive[i])
            score = alive[i] / above / (1 + number % 2) if above else 0.0
            free.append((score, number, i, groups[i][1]))
    cut = -1.0
    for score in sorted({one[0] for one in free}):
        if sum(n for other, _, _, n in free if other <= cut) < removed:
            cut = score
    candidates = [
        Candidates(
            statistic, statistic.double(), torch.tensor([n for _, n in groups]), 1 + number % 2
        )
        for number, groups in enumerate(layers)
        for statistic in [torch.tensor([s for s, _ in groups])]
    ]
    found = thresholds_for(candidates, removed)
    for number, (groups, threshold) in enumerate(zip(layers, found, strict=True)):
        leaving = {i for score, layer, i, _ in free if layer == number and score <= cut}
        alive = {i: s for i, (s, n) in enumerate(groups) if n}
        if leaving and max(alive[i] for i in leaving) == max(alive.values()):
            assert threshold == math.inf, "what ties with the largest: the pruner keeps one"
        else:
            assert {i for i, s in alive.items() if s < threshold} == leaving


@pytest.mark.parametrize(
    ("statistic", "power"), [("mean_square", 1), ("range", 2), ("abs_range", 2)]
)
def test_scores_are_shares_of_squares_per_weight(statistic, power):
    grouping = Grouping(torch.tensor([0, 0, 1, 1, 2, 3, 3]), 5, size=2)
    values = torch.tensor([1.0, -3.0, 2.0, 0.5, 0.0, -1.0, 4.0])
    found = Candidates.of(values, grouping, statistic)
    size = [float(s) ** power for s in grouping.statistic(values, statistic)]
    for i in (0, 1, 3):
        wanted = size[i] / sum(s for s in size if s >= size[i]) / 2
        assert float(found.scores[i]) == pytest.approx(wanted, rel=1e-12)
    assert found.scores[[2, 4]].tolist() == [0.0, 0.0]
    assert found.weights.tolist() == [2, 2, 1, 2, 0]


SLAB = {"slab": 0.05, "lr": 0.1, "num_data": 40}  # variance of the slab 1/2
NOTHING = {"spike_decay": None, "spike_threshold": None, "prune_threshold": None}


def test_spike_and_thresholds_follow_the_slab():
    prior = spike_and_slab(**SLAB, **NOTHING)
    assert (prior.slab, prior.spike) == (0.05, pytest.approx(1.0))
    assert prior.spike_threshold == pytest.approx(0.05)
    assert prior.prune_threshold == pytest.approx(0.005)
    assert prior.range_threshold == pytest.approx(0.1 * math.sqrt(0.5))


def test_the_spike_is_no_narrower_than_a_step_can_follow():
    assert spike_and_slab(**{**SLAB, "lr": 2.0}, **NOTHING).spike == pytest.approx(0.5)
    assert spike_and_slab(**{**SLAB, "lr": 100.0}, **NOTHING).spike == 0.05  # the slab's at least
    assert spike_and_slab(**{**SLAB, "lr": 0.0}, **NOTHING).spike == pytest.approx(1.0)


def test_what_is_set_stays():
    prior = spike_and_slab(**SLAB, spike_decay=3.0, spike_threshold=0.2, prune_threshold=0.4)
    assert (prior.spike, prior.spike_threshold) == (3.0, 0.2)
    assert prior.prune_threshold == prior.range_threshold == 0.4


def test_a_spike_wider_than_the_slab_is_refused():
    with pytest.raises(InvalidValue, match=r"spike_decay = 0\.01: .*weight_decay = 0\.05"):
        spike_and_slab(**SLAB, **{**NOTHING, "spike_decay": 0.01})


def test_thresholds_need_a_slab():
    flat = {**SLAB, "slab": 0.0}
    with pytest.raises(InvalidValue, match="set spike_threshold and prune_threshold"):
        spike_and_slab(**flat, **NOTHING)
    prior = spike_and_slab(**flat, spike_decay=None, spike_threshold=0.1, prune_threshold=0.1)
    assert (prior.spike, prior.spike_threshold) == (0.0, 0.1)
    assert prior.prune_threshold < math.inf
