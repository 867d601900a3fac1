"""What an estimator is after a call that failed, and calls of ``partial_fit`` in a stream."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError

from gossamer.errors import InvalidData, InvalidValue
from gossamer.sklearn import SparseBayesClassifier, SparseBayesRegressor

SMALL: dict[str, Any] = {"hidden": (16,), "max_steps": 60, "random_state": 0}
FEW: dict[str, Any] = {**SMALL, "members": 4}


def _rows(count: int = 90) -> tuple[NDArray[Any], NDArray[Any]]:
    x = np.random.default_rng(0).normal(size=(count, 3))
    return x, (x[:, 0] > 0.5).astype(int)


@pytest.mark.parametrize("call", ["fit", "partial_fit"])
@pytest.mark.parametrize("kind", [SparseBayesClassifier, SparseBayesRegressor])
def test_a_refused_call_leaves_the_model_as_it_was(kind: Any, call: str) -> None:
    x, y = _rows()
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    model = kind(**(SMALL if kind is SparseBayesClassifier else FEW)).fit(frame, y)
    learnt, first = dict(vars(model)), model.predict(frame)
    bad = pd.DataFrame({"other": x[:, 0], "names": np.full(len(x), np.inf)})
    labels = y + 10 if call == "fit" else y
    with pytest.raises(ValueError, match=r"feature|finite"):
        getattr(model, call)(bad, labels)
    assert vars(model).keys() == learnt.keys()
    assert all(vars(model)[name] is value for name, value in learnt.items())
    assert np.array_equal(model.predict(frame), first)
    with pytest.raises(NotFittedError):
        kind(**SMALL).predict(x)


def test_a_first_call_that_failed_leaves_nothing() -> None:
    x, y = _rows()
    model = SparseBayesClassifier(**SMALL)
    with pytest.raises(ValueError, match="infinity"):
        model.partial_fit(np.where(x > 1.0, np.inf, x), y, classes=[0, 1])
    assert not hasattr(model, "classes_")
    assert not hasattr(model, "n_features_in_")
    assert model.partial_fit(x, y).score(x, y) > 0.6


def test_class_weights_go_by_all_rows_seen() -> None:
    x, y = _rows(200)
    order = np.argsort(y, kind="stable")[::-1]
    x, y = x[order], y[order]
    cut = int(1.1 * y.sum())  # the first call has nearly all of the rare class
    weight = np.random.default_rng(1).uniform(0.5, 2.0, size=len(y))
    whole = SparseBayesClassifier(**SMALL, class_weight="balanced").fit(x, y, weight)
    parts = SparseBayesClassifier(**SMALL, class_weight="balanced")
    parts.partial_fit(x[:cut], y[:cut], sample_weight=weight[:cut])
    parts.partial_fit(x[cut:], y[cut:], sample_weight=weight[cut:])
    assert np.array_equal(parts.predict_proba(x), whole.predict_proba(x))
    plain = SparseBayesClassifier(**SMALL).fit(x, y, weight)
    assert not np.array_equal(plain.predict_proba(x), whole.predict_proba(x))


def test_a_stream_may_begin_with_one_class() -> None:
    x, y = _rows()
    is_one = y == 1
    model = SparseBayesClassifier(**SMALL)
    model.partial_fit(x[~is_one][:40], y[~is_one][:40], classes=[0, 1])
    model.partial_fit(x[~is_one][40:], y[~is_one][40:])
    assert model.classes_.tolist() == [0, 1]
    assert model.n_features_in_ == 3
    for ask in (model.predict, model.predict_proba, model.predict_set):
        with pytest.raises(NotFittedError, match=r"only 0: .*one class so far.*; call partial_fit"):
            ask(x)
    with pytest.raises(NotFittedError, match="one class"):
        _ = model.feature_importances_
    with pytest.raises(InvalidValue, match="rows of the calls before"):
        pickle.loads(pickle.dumps(model)).partial_fit(x, y)
    with pytest.raises(InvalidData, match="not known"):
        model.partial_fit(x, y + 5)
    model.partial_fit(x[is_one], y[is_one])
    whole = SparseBayesClassifier(**SMALL).fit(x, y)
    assert np.array_equal(model.predict_proba(x), whole.predict_proba(x))


def test_rows_of_weight_0_and_rows_left_out_are_of_no_class() -> None:
    x, y = _rows()
    model = SparseBayesClassifier(**SMALL, missing="drop")
    model.partial_fit(x, y, sample_weight=(y == 0).astype(float))
    with pytest.raises(NotFittedError, match="only 0"):
        model.predict(x)
    holes = np.where(y[:, None] == 1, np.nan, x)
    with pytest.raises(NotFittedError, match="only 0"):
        model.partial_fit(holes, y).predict(x)
    assert set(model.partial_fit(x, y).predict(x)) == {0, 1}


def test_one_class_that_is_all_there_will_be_is_refused() -> None:
    x, y = _rows()
    with pytest.raises(InvalidData, match="2 classes"):
        SparseBayesClassifier(**SMALL).partial_fit(x, np.zeros_like(y))
    with pytest.raises(InvalidData, match="2 classes"):
        SparseBayesClassifier(**SMALL).fit(x, np.zeros_like(y))


def test_what_cannot_be_read_is_named() -> None:
    x, y = _rows()
    labels = np.array(["a", "b"], dtype=object)[y]
    labels[7] = None
    with pytest.raises(InvalidData, match="y, row 7: is missing; drop the row"):
        SparseBayesClassifier(**SMALL).fit(x, labels)
    twice = pd.DataFrame(x, columns=["a", "b", "a"])
    with pytest.raises(InvalidData, match="columns of X = a: names two of them; rename one"):
        SparseBayesRegressor(**FEW).fit(twice, y)
    lists = pd.DataFrame({"a": x[:, 0], "b": [[1, 2]] * len(x)})
    with pytest.raises(InvalidData, match="must be a number, a bool, a date or text"):
        SparseBayesRegressor(**FEW).fit(lists, y)
    model = SparseBayesRegressor(**FEW).fit(x, y)
    with pytest.raises(InvalidValue, match=r"coverage = \[0.5, 0.9\]: must be one number"):
        model.predict_interval(x, coverage=[0.5, 0.9])  # type: ignore[arg-type]


def test_intervals_that_nothing_calibrated_are_told() -> None:
    x, y = _rows()
    few = SparseBayesRegressor(**{**FEW, "members": 2}).fit(x, y)
    assert few.coverage_ == {}
    assert any("intervals are the model's own: 9 rows were held out" in n for n in few.notes_)
    many = SparseBayesRegressor(**FEW).fit(x, y)
    assert not any("intervals are the model's own" in note for note in many.notes_)
    labels = SparseBayesClassifier(**SMALL, validation_fraction=0.0).fit(x, y)
    assert any("there are no sets of labels: 0 rows" in note for note in labels.notes_)
