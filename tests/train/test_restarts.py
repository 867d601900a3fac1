"""Several fits begin, the best goes on: which one, what it becomes, and after an interruption."""

from __future__ import annotations

import copy
from math import inf
from typing import Any

import pytest
import torch

import gossamer
from gossamer.errors import InvalidValue, NonFinite
from gossamer.inference import StepInfo
from gossamer.models import build_model
from gossamer.train import Batches, Examples, Fit, Observer, Race, Restarts, fit
from train.bits import same

KEEP = ((0.25, 2), (0.5, 1))
NLLS = {0: [3.0, 1.0], 1: [1.0, 2.0], 2: [2.0, 3.0], 3: [1.5, 1.9]}
"""By fit, after the first and the second round: 1 and 3 lead, then 3."""


def start(number: int, observers: tuple[Observer, ...] = (), nlls: Any = NLLS) -> Fit:
    """Eight epochs of two steps; its validation NLL is dictated."""
    torch.manual_seed(number)
    x = torch.rand(64, 3, generator=torch.Generator().manual_seed(0))
    y = (x.sum(1) > 1.5).long()
    net = build_model("mlp", input_shape=(3,), output_size=2, hidden=(4,))
    method = gossamer.build("ssvi", net, num_data=64, total_steps=16, sparsity=0.5)
    one = Fit(
        method,
        Batches(Examples(x, y), 32, torch.device("cpu")),
        epochs=8,
        order=torch.Generator().manual_seed(number),
        validate=lambda _: {"nll": nlls[number][0 if one.epoch < 2 else 1]},
        validate_every=100,
        observers=observers,
    )
    return one


def test_the_best_of_each_round_go_on_and_equal_fits_that_were_alone() -> None:
    race = Race(start, Restarts(4, KEEP), epochs=8)
    assert race.run()
    assert list(race.fits) == [3]
    assert race.leader.epoch == 4
    race.leader.run()
    alone = start(3)
    alone.run()
    assert same(race.leader.method.state_dict(), alone.method.state_dict())
    assert race.seconds > race.leader.seconds


class StopAfter(Observer):
    def __init__(self, steps: int) -> None:
        self.left = steps

    def on_step(self, fit: Fit, info: StepInfo) -> None:
        self.left -= 1

    def should_stop(self) -> bool:
        return self.left == 0


@pytest.mark.parametrize("steps", [1, 4, 7, 13, 17])
def test_a_stopped_race_goes_on_bit_for_bit(steps: int) -> None:
    straight = Race(start, Restarts(4, KEEP), epochs=8)
    assert straight.run()
    stop = StopAfter(steps)
    race = Race(lambda number: start(number, (stop,)), Restarts(4, KEEP), epochs=8)
    assert not race.run()
    state = copy.deepcopy(race.state_dict())
    torch.manual_seed(99)
    again = Race(start, Restarts(4, KEEP), epochs=8)
    again.load_state_dict(state)
    assert again.run()
    assert list(again.fits) == list(straight.fits)
    assert same(again.leader.method.state_dict(), straight.leader.method.state_dict())
    assert again.seconds >= race.seconds


def broken(*numbers: int) -> Any:
    def begin(number: int) -> Fit:
        one = start(number)
        if number in numbers:

            def diverge(batch: object) -> StepInfo:
                raise NonFinite("loss", inf, f"of fit {number}")

            one.method.step = diverge  # type: ignore[method-assign]
        return one

    return begin


def test_fits_that_diverge_leave_and_only_all_of_them_are_an_error() -> None:
    race = Race(broken(1, 3), Restarts(4, KEEP), epochs=8)
    assert race.run()
    assert list(race.fits) == [0]
    with pytest.raises(NonFinite, match="of fit 3"):
        Race(broken(0, 1, 2, 3), Restarts(4, KEEP), epochs=8).run()


def test_a_value_that_is_not_finite_comes_last() -> None:
    nlls = {0: [float("nan")] * 2, 1: [9.0] * 2}
    race = Race(lambda n: start(n, nlls=nlls), Restarts(2, ((2, 1),)), epochs=8)
    race.run()
    assert list(race.fits) == [1]


def test_rounds_are_shares_or_epochs() -> None:
    assert Restarts(8, ((1 / 6, 3), (1 / 2, 1))).rounds(6000) == ((1000, 3), (3000, 1))
    assert Restarts(8, ((150, 3), (1 / 6, 1))).rounds(3000) == ((150, 3), (500, 1))
    assert Restarts(2).rounds(1) == ((1, 1),)


@pytest.mark.parametrize(
    ("begin", "keep"),
    [(1, ((0.5, 1),)), (4, ()), (4, ((0.5, 2),)), (4, ((0.5, 4), (0.6, 1))), (4, ((0.0, 1),))],
)
def test_a_schedule_that_makes_no_sense_is_refused(begin: int, keep: Any) -> None:
    with pytest.raises(InvalidValue, match=r"begin|keep"):
        Restarts(begin, keep)


def test_rounds_that_go_back_are_refused() -> None:
    with pytest.raises(InvalidValue, match="let them grow"):
        Restarts(4, ((0.5, 2), (0.25, 1))).rounds(8)


def test_restarts_of_fit_choose_by_validation_and_differ() -> None:
    x = torch.rand(64, 3, generator=torch.Generator().manual_seed(0))
    y = (x.sum(1) > 1.5).long()

    class Seen(Observer):
        def __init__(self) -> None:
            self.firsts: dict[int, float] = {}

        def on_step(self, fit: Fit, info: StepInfo) -> None:
            self.firsts.setdefault(id(fit), info.loss)

    def begun(**options: Any) -> tuple[Any, Seen]:
        seen = Seen()
        net = lambda: build_model("mlp", input_shape=(3,), output_size=2, hidden=(4,))  # noqa: E731
        told = {"validation": (x, y), "epochs": 4, "sparsity": 0.5, "observers": [seen], **options}
        return fit((x, y), "ssvi", net, **told), seen

    one, first = begun()
    several, all_of_them = begun(restarts=Restarts(5, ((0.5, 1),)))
    assert len(set(all_of_them.firsts.values())) == 5
    assert next(iter(first.firsts.values())) == next(iter(all_of_them.firsts.values()))
    assert len(several.history) == 4
    assert several.history[1].nll <= one.history[1].nll
    again, _ = begun(restarts=Restarts(5, ((0.5, 1),)))
    assert same(again.method.state_dict(), several.method.state_dict())
