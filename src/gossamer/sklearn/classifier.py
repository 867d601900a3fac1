"""``SparseBayesClassifier``: fit and predict classes, with their uncertainty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets

from gossamer.data.prepare.table_input import by_name, complete_rows
from gossamer.data.readers.frames import is_nothing
from gossamer.errors import GossamerError, InvalidData, InvalidValue
from gossamer.prediction import ClassPrediction
from gossamer.sklearn.base import SparseBayesEstimator
from gossamer.sklearn.budget import Auto
from gossamer.sklearn.rows import RawRows, count_of
from gossamer.sklearn.sparsity import Sparsity
from gossamer.sklearn.storage import labels_as_json, labels_from_json
from gossamer.sklearn.training import Module
from gossamer.train.finishing import LEAST_SCORES

Array = NDArray[np.float64]


class OneClassSoFar(GossamerError, NotFittedError):  # type: ignore[misc]
    """An answer was asked for after calls of ``partial_fit`` that held one class only."""


class SparseBayesClassifier(ClassifierMixin, SparseBayesEstimator):  # type: ignore[misc]
    """A sparse Bayesian neural network for classes, as scikit-learn has its classifiers.

    Columns of any sort are encoded and standardised inside, as ``gossamer train`` does with a file
    (docs/tables.md). Labels may be text, numbers or bools. The order of the rows does not matter.

    Args:
        method: A method of ``gossamer methods``; ``None`` is the recommended one.
        quality: Of the recommended one: ``"fast"``, ``"good"`` or ``"best"``.
        members: Of the recommended one: networks; ``"auto"`` goes by ``quality``: 1, 2 or 3.
        hidden: Widths of the hidden layers; a number is one layer.
        module: A network of your own in place of those: a ``torch.nn.Module``, or a function of the
            number of features and of classes that makes one.
        sparsity: Share of the weights that there are not. ``"auto"`` is 0.95, or less where a small
            network would keep fewer than 4 weights for each hidden unit.
        max_steps: Optimiser steps, as whole passes over the rows; ``"auto"`` goes by their number.
        batch_size: Rows of a step; ``"auto"`` goes by their number.
        early_stopping: Whether held-out rows choose the best state and may end the fit.
        validation_fraction: Share of the rows to hold out, 0 for none. Fewer than 20 rows are all
            trained on; so are fewer than 200 by the recommended method, whose rows judge in folds.
        refit: Whether a second fit, as long as the held-out rows advised, learns from them too.
            What else they chose is taken over, save a last layer.
        time_limit: Seconds after which to stop, for all that is trained; ``notes_`` tells of it. A
            second fit (``refit``) that it leaves no time for is left out.
        class_weight: ``None``, ``"balanced"`` or weights by class; they multiply ``sample_weight``.
        missing: Of a missing cell: ``"mean"``, ``"error"`` or ``"drop"``, see
            ``gossamer.data.TableRules``.
        unknown: Of a level that training never saw: ``"other"`` or ``"error"``.
        day_first: How ``03/04/2024`` reads where its column does not tell; ``None`` refuses it.
        decimal: How ``1,234`` reads where its column does not tell: ``"point"`` is 1234,
            ``"comma"`` 1.234; ``None`` refuses it.
        method_options: Further settings of the method, see ``gossamer methods NAME``.
        random_state: Fixes everything: the same number gives the same bits.
        n_jobs: Threads; ``None`` is one, -1 takes all.
        verbose: 1 prints a line for every epoch.

    Attributes:
        classes_: The labels, sorted. A call that fails leaves these, and all else, as they were.
        posterior_: What predicts, a ``gossamer.prediction.Posterior``.
        history_: What each epoch reported.
        coverage_: By level, how many of the rows had their label in the set that other rows
            decided, judged by fits that never saw them. Empty from 200 rows on, where held-out rows
            decide sets and cannot judge them, for other methods, and after ``calibrate``.
        selection_: What a screening of a wide table found, or ``None``.
        notes_: One sentence each: what was done to which column, and what there is to know of the
            sparsity, the time limit and the finishing step.
        n_features_in_: Number of columns.
        feature_names_in_: Their names, where they have some.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(80, 2))
        >>> y = np.where(x[:, 0] > 0, "right", "left")
        >>> model = SparseBayesClassifier(hidden=(16,), max_steps=100, random_state=0).fit(x, y)
        >>> model.classes_.tolist(), model.predict_proba(x).shape
        (['left', 'right'], (80, 2))
        >>> sorted(model.predict_uncertainty(x))
        ['aleatoric', 'confidence', 'energy', 'entropy', 'mutual_information']
    """

    _task = "classification"
    classes_: NDArray[Any]

    def __init__(
        self,
        method: str | None = None,
        *,
        quality: str = "fast",
        members: Auto = "auto",
        hidden: Sequence[int] | int = (256, 256),
        module: Module | None = None,
        sparsity: Sparsity = "auto",
        max_steps: Auto = "auto",
        batch_size: Auto = "auto",
        early_stopping: bool = True,
        validation_fraction: float = 0.1,
        refit: bool = False,
        time_limit: float | None = None,
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
        missing: Literal["mean", "error", "drop"] = "mean",
        unknown: Literal["other", "error"] = "other",
        day_first: bool | None = None,
        decimal: Literal["point", "comma"] | None = None,
        method_options: Mapping[str, Any] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.method = method
        self.quality = quality
        self.members = members
        self.hidden = hidden
        self.module = module
        self.sparsity = sparsity
        self.max_steps = max_steps
        self.batch_size = batch_size
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.refit = refit
        self.time_limit = time_limit
        self.class_weight = class_weight
        self.missing = missing
        self.unknown = unknown
        self.day_first = day_first
        self.decimal = decimal
        self.method_options = method_options
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def fit(self, X: Any, y: ArrayLike, sample_weight: Any = None) -> SparseBayesClassifier:
        """Train.

        Args:
            X: Array-like [N, columns], or a frame of pandas, polars or arrow.
            y: Labels [N].
            sample_weight: How much each row counts, [N]: 2 is what two such rows are.
        """
        labels = _labels(y, self)
        with self._whole_or_as_before():
            self.classes_ = np.unique(labels)
            self._fit(self._rows(X, labels, sample_weight, reset=True), self._names)
        return self

    def partial_fit(
        self,
        X: Any,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: Any = None,
    ) -> SparseBayesClassifier:
        """Train on these rows and on those of the calls before, which are kept for it.

        Two calls end where ``fit`` on all rows ends, with the same ``class_weight``. The posterior
        is that of all rows; a call takes as long as a fit on them. As long as there is one class
        only, rows are kept, nothing is trained, and ``predict`` refuses.

        Args:
            X: Rows.
            y: Their labels.
            classes: All labels that there will be; needed by the first call if ``y`` lacks one.
            sample_weight: As in ``fit``.
        """
        is_first = not hasattr(self, "classes_")
        labels = _labels(y, self)
        if not (is_first or classes is None or np.array_equal(np.unique(classes), self.classes_)):
            raise InvalidValue("classes", classes, f"were {self.classes_.tolist()} at first")
        with self._whole_or_as_before():
            if is_first:
                self.classes_ = np.unique(labels if classes is None else np.asarray(classes))
            rows = self._rows(X, labels, sample_weight, reset=is_first)
            rows = rows if is_first else self._with_seen(rows)
            if len(self.classes_) > 1 and len(self._classes_in(rows)) == 1:
                self._seen = rows
            else:
                self._fit(rows, self._names)
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable label of every row, [N]."""
        self._require_fitted()
        return np.asarray(self.classes_[self.predict_proba(X).argmax(1)])

    def predict_proba(self, X: Any) -> Array:
        """Probability of every class, [N, classes], in the order of ``classes_``."""
        probs = np.asarray(self._answers(X).probs.double().numpy())
        return np.asarray(probs / probs.sum(1, keepdims=True))

    def predict_log_proba(self, X: Any) -> Array:
        """Its logarithm, which stays finite: nothing is believed to be impossible."""
        tiny = np.finfo(np.float32).tiny
        return np.asarray(np.log(np.maximum(self.predict_proba(X), tiny)))

    def predict_set(self, X: Any, coverage: float = 0.9) -> NDArray[np.bool_]:
        """Labels among which the true one is, bool [N, classes], in the order of ``classes_``.

        Sets are conformal (docs/conformal.md): rows that no network learnt from decide how probable
        a label must be to be in. These are all rows, in folds, where they are fewer than 200; else
        the held-out rows of ``fit``, where it held out 19 or more; or those of ``calibrate``. Each
        set holds the most probable label.

        Args:
            X: Rows.
            coverage: The share of new rows whose label is to be in its set, at least: up to 0.95
                with 19 rows, up to n / (n + 1) with n.

        Raises:
            InvalidValue: No rows decided sets, or too few for that coverage.
        """
        if self._fitted.finish.calibration is None:
            raise InvalidValue(
                "predict_set",
                None,
                f"needs {LEAST_SCORES} rows or more that no network learnt from, and this fit held "
                "out fewer",
                "call calibrate with such rows",
            )
        found = self._answers(X).label_set(float(coverage))
        return np.asarray(found.numpy())

    def predict_uncertainty(self, X: Any) -> dict[str, Array]:
        """Uncertainty of every row, [N] each.

        ``entropy`` in nats and its parts, ``mutual_information`` (epistemic: what more data would
        remove) and ``aleatoric``; ``confidence``, the probability of the label; ``energy``, higher
        for rows that are like no class.
        """
        found = self._answers(X)
        parts = ("entropy", "mutual_information", "aleatoric", "confidence", "energy")
        return {name: getattr(found, name).double().numpy() for name in parts}

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> NDArray[Any]:
        """Labels drawn from ``predict_proba``, [N, n_samples]."""
        if n_samples < 1:
            raise InvalidValue("n_samples", n_samples, "must be at least 1")
        steps = self.predict_proba(X).cumsum(1)
        draws = check_random_state(random_state).uniform(size=(len(steps), n_samples))
        # The last step is 1 to rounding only.
        chosen = (draws[:, :, None] > steps[:, None, :-1]).sum(2)
        return np.asarray(self.classes_[chosen])

    def calibrate(self, X: Any, y: ArrayLike) -> SparseBayesClassifier:
        """Set the temperature of all probabilities by rows that no fit has seen.

        Labels stay. From 19 rows on they also decide ``predict_set``, in whose guarantee one number
        is then not accounted for: the temperature, which the same rows chose. An earlier
        calibration is replaced.

        Raises:
            InvalidData: Fewer than 19 rows would replace a calibration that decides
                ``predict_set``.
        """
        self._require_fitted()
        self._calibrate(X, torch.from_numpy(self._codes(_labels(y, self))))
        return self

    def _answers(self, x: Any) -> ClassPrediction:
        found = self._predict(x)
        assert isinstance(found, ClassPrediction)
        return found

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(str(label) for label in self.classes_.tolist())

    def _codes(self, labels: NDArray[Any]) -> NDArray[np.int64]:
        strange = ~np.isin(labels, self.classes_)
        if strange.any():
            row = int(np.flatnonzero(strange)[0])
            known = ", ".join(self._names[:12])
            raise InvalidData(
                f"y, row {row}", str(labels[row]), "is a class that is not known", f"known: {known}"
            )
        return np.searchsorted(self.classes_, labels).astype(np.int64)

    def _rows(self, x: Any, labels: NDArray[Any], weight: Any, *, reset: bool) -> RawRows:
        raw, codes = self._read(x, reset=reset), self._codes(labels)
        check_consistent_length(np.empty(count_of(raw)), codes)
        return RawRows(raw, codes, self._weights(weight, count_of(raw)))

    def _as_they_count(self, rows: RawRows) -> RawRows:
        """Weights times those of the classes, which ``balanced`` takes from all rows."""
        if self.class_weight is None:
            return rows
        by_class = compute_sample_weight(self.class_weight, self.classes_[rows.y])
        return replace(rows, weight=by_class if rows.weight is None else rows.weight * by_class)

    def _classes_in(self, rows: RawRows) -> NDArray[np.int64]:
        """Numbers of the classes that there are rows to train on of."""
        counts = np.ones(len(rows), dtype=bool)
        if self.missing == "drop":
            counts = complete_rows(by_name(rows.x))
        weight = self._as_they_count(rows).weight
        if weight is not None:
            counts = counts & (weight > 0.0)
        return np.unique(rows.y[counts])

    def _require_fitted(self) -> None:
        if hasattr(self, "classes_") and not hasattr(self, "posterior_"):
            seen: RawRows | None = getattr(self, "_seen", None)
            names = [] if seen is None else [self._names[i] for i in self._classes_in(seen)]
            raise OneClassSoFar(
                "y",
                "only " + ", ".join(names) if names else None,
                "partial_fit has seen one class so far, and nothing was trained",
                "call partial_fit with rows of another class",
            )
        super()._require_fitted()

    def _record(self) -> dict[str, Any]:
        return {"classes": labels_as_json(self.classes_)}

    def _restore(self, record: dict[str, Any]) -> None:
        self.classes_ = labels_from_json(record["classes"])


def _labels(y: Any, estimator: SparseBayesClassifier) -> NDArray[Any]:
    """Labels [N] by scikit-learn's rules."""
    if y is None:
        raise ValueError(
            f"This {type(estimator).__name__} estimator requires y to be passed, but the target y "
            "is None."
        )
    labels = column_or_1d(y, warn=True)
    if labels.dtype == object:
        row = next((row for row, label in enumerate(labels) if is_nothing(label)), None)
        if row is not None:
            raise InvalidData(f"y, row {row}", labels[row], "is missing", "drop the row")
    check_classification_targets(labels)
    return np.asarray(labels)
