"""``SparseBayesRegressor``: fit and predict numbers, with their uncertainty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import Tags, check_array, check_consistent_length
from sklearn.utils.validation import _num_samples

from gossamer.errors import InvalidData, InvalidValue
from gossamer.prediction import RealPrediction
from gossamer.sklearn.base import SparseBayesEstimator
from gossamer.sklearn.budget import Auto
from gossamer.sklearn.distribution import Array, PredictiveDistribution
from gossamer.sklearn.rows import RawRows, count_of
from gossamer.sklearn.sparsity import Sparsity
from gossamer.sklearn.training import Module


class SparseBayesRegressor(RegressorMixin, SparseBayesEstimator):  # type: ignore[misc]
    """A sparse Bayesian neural network for numbers, as scikit-learn has its regressors.

    Columns of any sort are encoded and standardised inside, as ``gossamer train`` does with a file
    (docs/tables.md); so is the target. Everything that is answered is in the target's own unit.
    The order of the rows does not matter.

    Args:
        method: A method of ``gossamer methods``; ``None`` is the recommended one.
        quality: Of the recommended one: ``"fast"``, ``"good"`` or ``"best"``: how long it trains.
        members: Of the recommended one: networks; ``"auto"`` is 20, from 2,000 rows on 10. Each
            row is left out of some of them, which calibrate by it (docs/members.md).
        hidden: Widths of the hidden layers; a number is one layer.
        module: A network of your own in place of those: a ``torch.nn.Module``, or a function of the
            number of features and of outputs that makes one.
        sparsity: Share of the weights that there are not. ``"auto"`` is 0.95, or less where a small
            network would keep fewer than 4 weights for each hidden unit.
        max_steps: Optimiser steps, as whole passes over the rows; ``"auto"`` goes by their number.
        batch_size: Rows of a step; ``"auto"`` goes by their number.
        early_stopping: Whether held-out rows choose the best state and may end the fit. The
            recommended method holds none out.
        validation_fraction: Share of the rows to hold out, 0 for none; fewer than 20 rows are all
            trained on. The recommended method needs none.
        refit: Whether a second fit, as long as the held-out rows advised, learns from them too.
            What else they chose is taken over, save a last layer.
        time_limit: Seconds after which to stop, for all that is trained; ``notes_`` tells of it. A
            second fit (``refit``) that it leaves no time for is left out.
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
        posterior_: What predicts, a ``gossamer.prediction.Posterior``.
        history_: What each epoch reported.
        coverage_: By level, how many of the rows lay in the interval that other rows decided,
            judged by networks that never saw them. Levels that so few rows cannot have are left
            out. Empty for other methods, and after ``calibrate``: it was of the intervals before.
        selection_: What a screening of a wide table found, or ``None``.
        notes_: One sentence each: what was done to which column, and what there is to know of the
            sparsity, the time limit and the finishing step.
        n_features_in_: Number of columns.
        feature_names_in_: Their names, where they have some.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(80, 2))
        >>> model = SparseBayesRegressor(hidden=(16,), max_steps=100, random_state=0)
        >>> model = model.fit(x, 3.0 * x[:, 0] + x[:, 1])
        >>> mean, std = model.predict(x, return_std=True)
        >>> lower, upper = model.predict_interval(x, coverage=0.9)
        >>> bool((lower < mean).all() and (mean < upper).all() and (std > 0).all())
        True
    """

    _task = "regression"

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
        self.missing = missing
        self.unknown = unknown
        self.day_first = day_first
        self.decimal = decimal
        self.method_options = method_options
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def __sklearn_tags__(self) -> Tags:
        """Several outputs are welcome."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: ArrayLike, sample_weight: Any = None) -> SparseBayesRegressor:
        """Train.

        Args:
            X: Array-like [N, columns], or a frame of pandas, polars or arrow.
            y: Numbers [N], or [N, D] for D outputs. Text such as ``"$346"`` is refused: answers are
                numbers, and ``score`` compares them with it.
            sample_weight: How much each row counts, [N]: 2 is what two such rows are.
        """
        with self._whole_or_as_before():
            self._fit(self._rows(X, y, sample_weight, reset=True), None)
        return self

    def partial_fit(self, X: Any, y: ArrayLike, sample_weight: Any = None) -> SparseBayesRegressor:
        """Train on these rows and on those of the calls before, which are kept for it.

        Two calls end where ``fit`` on all rows ends. The posterior is that of all rows; a call
        takes as long as a fit on them.
        """
        is_first = not hasattr(self, "posterior_")
        with self._whole_or_as_before():
            rows = self._rows(X, y, sample_weight, reset=is_first)
            self._fit(rows if is_first else self._with_seen(rows), None)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The expected target, [N] or [N, D]; with ``return_std`` its standard deviation too."""
        found = self.predict_dist(X)
        return (found.mean, found.std) if return_std else found.mean

    def predict_dist(self, X: Any) -> PredictiveDistribution:
        """The whole distribution of the target of every row."""
        self._require_fitted()
        found, ready = self._predict(X), self.posterior_.preparation
        assert isinstance(found, RealPrediction)
        assert ready is not None

        def values(tensor: Any) -> Array:
            return np.asarray(tensor.double().numpy())

        # In float64: a large mean beside a small scale would swallow the digits of float32.
        return PredictiveDistribution(
            ready.target_to_original(values(found.mean)),
            ready.scale_to_original(values(found.epistemic)),
            ready.scale_to_original(values(found.aleatoric)),
            ready.target_to_original(values(found.samples)),
            ready.scale_to_original(values(found.noise)),
            found.calibration,
            None if found.departures is None else ready.scale_to_original(values(found.departures)),
        )

    def predict_interval(self, X: Any, coverage: float = 0.9) -> tuple[Array, Array]:
        """Lower and upper end of the central interval of that probability, [N] or [N, D] each."""
        return self.predict_dist(X).interval(coverage)

    def predict_quantiles(self, X: Any, q: ArrayLike) -> Array:
        """Quantiles of the target.

        Args:
            X: Rows.
            q: A probability in (0, 1), or several.

        Returns:
            [N] or [N, D] for one; [N, len(q)] or [N, D, len(q)] for several.
        """
        dist, levels = self.predict_dist(X), np.asarray(q, dtype=np.float64)
        if levels.ndim > 1:
            raise InvalidValue("q", f"shape {levels.shape}", "must be a number or a list of them")
        found = [dist.quantile(float(level)) for level in levels.reshape(-1)]
        return found[0] if levels.ndim == 0 else np.stack(found, axis=-1)

    def predict_uncertainty(self, X: Any) -> dict[str, Array]:
        """Standard deviations of every row: ``std``, and its parts ``epistemic``, ``aleatoric``."""
        dist = self.predict_dist(X)
        return {"std": dist.std, "epistemic": dist.epistemic, "aleatoric": dist.aleatoric}

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draws of the target, [N, n_samples] or [N, D, n_samples]."""
        return np.moveaxis(self.predict_dist(X).sample(n_samples, random_state), 0, -1)

    def calibrate(self, X: Any, y: ArrayLike) -> SparseBayesRegressor:
        """Scale the spread of all predictions to what rows show that no fit has seen.

        From 19 rows on they also decide intervals and quantiles (docs/conformal.md); fewer scale
        the spread alone. An earlier calibration is replaced, and ``coverage_``, which was of
        that one, is empty.

        Raises:
            InvalidData: Fewer than 19 rows would replace a calibration that decides intervals.
        """
        self._require_fitted()
        ready = self.posterior_.preparation
        assert ready is not None
        self._calibrate(X, ready.prepare_target(_numbers(y)))
        return self

    def _rows(self, x: Any, y: Any, weight: Any, *, reset: bool) -> RawRows:
        if y is None:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y "
                "is None."
            )
        raw, target = self._read(x, reset=reset), _numbers(y)
        check_consistent_length(np.empty(count_of(raw)), target)
        return RawRows(raw, target, self._weights(weight, count_of(raw)))


def _numbers(y: Any) -> NDArray[np.float64]:
    """Targets as float64 [N] or [N, D]; one column is [N]."""
    try:
        target = check_array(
            y, dtype=np.float64, ensure_2d=False, input_name="y", ensure_min_samples=0
        )
    except ValueError:
        _refuse_text(y)
        raise
    if target.ndim == 2 and target.shape[1] == 1:
        target = target[:, 0]
    _num_samples(target)
    return np.asarray(target)


def _refuse_text(y: Any) -> None:
    """Raise for the first target that is text and no number, by its row."""
    cells = np.asarray(y, dtype=object)
    for place in np.ndindex(cells.shape):
        cell = cells[place]
        if isinstance(cell, str) and not _is_number(cell):
            raise InvalidData(
                f"y, row {place[0]}",
                cell,
                "is text, and a regression predicts numbers",
                "take off what is no digit ($, %, commas) and convert to float, or fit a "
                "SparseBayesClassifier on labels",
            ) from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
