"""One time limit for all that a fit trains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gossamer.sklearn import SparseBayesClassifier, SparseBayesRegressor, clock, training

SMALL: dict[str, Any] = {"hidden": (16,), "max_steps": 40, "random_state": 0}


def _rows() -> tuple[NDArray[Any], NDArray[Any]]:
    x = np.random.default_rng(0).normal(size=(200, 2))
    return x, (x[:, 0] > 0).astype(int)


class _Watch:
    """Stands in for the clock: fits take the seconds that they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
        self.now, self.limits, self.rows = 100.0, [], []
        self._seconds = list(seconds)
        own = training.fit

        def fit(data: Any, *args: Any, time_limit: float | None = None, **settings: Any) -> Any:
            self.limits.append(time_limit)
            self.rows.append(len(data.x))
            self.now += self._seconds.pop(0)
            return own(data, *args, time_limit=None, **settings)

        monkeypatch.setattr(training, "fit", fit)
        monkeypatch.setattr(clock.time, "perf_counter", lambda: self.now)


def test_the_second_fit_gets_what_the_first_left(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = _Watch(monkeypatch, 7.0, 1.0)
    model = SparseBayesClassifier(**SMALL, refit=True, time_limit=10.0).fit(*_rows())
    assert watch.limits == pytest.approx([10.0, 3.0])
    assert watch.rows == [180, 200]
    assert "time_limit" not in " ".join(model.notes_)


def test_a_second_fit_without_time_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = _rows()
    first = SparseBayesClassifier(**SMALL).fit(x, y)
    watch = _Watch(monkeypatch, 10.5)
    model = SparseBayesClassifier(**SMALL, refit=True, time_limit=10.0).fit(x, y)
    assert len(watch.limits) == 1
    assert "time_limit = 10 left too little for a second fit" in model.notes_[-1]
    assert np.array_equal(model.predict_proba(x), first.predict_proba(x))


def test_screening_takes_of_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = _Watch(monkeypatch, 0.0)
    own = training.screened

    def screened(*args: Any) -> Any:
        watch.now += 4.0
        return own(*args)

    monkeypatch.setattr(training, "screened", screened)
    SparseBayesClassifier(**SMALL, time_limit=10.0).fit(*_rows())
    assert watch.limits == pytest.approx([6.0])


@pytest.mark.parametrize("kind", [SparseBayesClassifier, SparseBayesRegressor])
def test_a_limit_that_ended_training_is_told(kind: Any) -> None:
    x, y = _rows()
    settings = {**SMALL, "max_steps": 10**6}
    model = kind(**settings, time_limit=1e-6).fit(x, y)
    assert "time_limit = 1e-06 ended training after 0 of" in " ".join(model.notes_)
    again = SparseBayesClassifier(**settings, refit=True, time_limit=1e-6).fit(x, y)
    assert "left too little for a second fit" in " ".join(again.notes_)
    assert np.isfinite(model.predict(x)).all()
    with pytest.raises(ValueError, match="time_limit"):
        kind(**SMALL, time_limit=0.0).fit(x, y)


def test_a_second_fit_that_was_cut_short_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = _rows()
    first = SparseBayesClassifier(**SMALL).fit(x, y)
    own, calls = training.fit, []

    def fit(*args: Any, time_limit: float | None = None, **settings: Any) -> Any:
        calls.append(time_limit)
        return own(*args, time_limit=time_limit if len(calls) == 1 else 1e-6, **settings)

    monkeypatch.setattr(training, "fit", fit)
    model = SparseBayesClassifier(**SMALL, refit=True, time_limit=1000.0).fit(x, y)
    assert len(calls) == 2
    assert "second fit" in model.notes_[-1]
    assert np.array_equal(model.predict_proba(x), first.predict_proba(x))
