"""What classifier and regressor share: reading rows, training, storage."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch import Tensor, nn

from gossamer.data.prepare import TableRules, Task
from gossamer.errors import InvalidData, InvalidValue
from gossamer.prediction import Posterior, Prediction, calibrated, load, tempered
from gossamer.selection import Selection
from gossamer.sklearn import storage
from gossamer.sklearn.blocks import first_rows, in_whole_blocks
from gossamer.sklearn.budget import Auto
from gossamer.sklearn.importances import importances, selected
from gossamer.sklearn.inputs import network_input, read_inputs
from gossamer.sklearn.rows import Raw, RawRows
from gossamer.sklearn.sparsity import Sparsity, widths
from gossamer.sklearn.training import Module, Plan, history_of, train
from gossamer.train import Epoch, Fit, Observer
from gossamer.train.finishing import LEAST_SCORES

_Own = TypeVar("_Own", bound="SparseBayesEstimator")
_Kind = TypeVar("_Kind", bound=np.generic)


class SparseBayesEstimator(BaseEstimator):  # type: ignore[misc]
    """The part of both estimators that does not know what the target is."""

    _task: Task
    method: str | None
    quality: str
    members: Auto
    hidden: Sequence[int] | int
    module: Module | None
    sparsity: Sparsity
    max_steps: Auto
    batch_size: Auto
    early_stopping: bool
    validation_fraction: float
    refit: bool
    time_limit: float | None
    missing: Literal["mean", "error", "drop"]
    unknown: Literal["other", "error"]
    day_first: bool | None
    decimal: Literal["point", "comma"] | None
    method_options: Mapping[str, Any] | None
    random_state: Any
    n_jobs: int | None
    verbose: int

    posterior_: Posterior
    history_: list[dict[str, Any]]
    notes_: tuple[str, ...]
    coverage_: dict[float, float]
    selection_: Selection | None
    n_features_in_: int
    _seen: RawRows

    def __sklearn_tags__(self) -> Tags:
        """What scikit-learn asks of an estimator's abilities."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "mean"
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        """Whether a fit came to its end; one that failed may have left names of columns."""
        return hasattr(self, "posterior_")

    @contextmanager
    def _whole_or_as_before(self) -> Iterator[None]:
        """A fit that fails inside leaves what was learnt before, labels and names with it."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _require_fitted(self) -> None:
        check_is_fitted(self)

    def _read(self, x: Any, *, reset: bool) -> Raw:
        return read_inputs(self, x, reset=reset, allow_nan=self.missing != "error")

    def _weights(self, sample_weight: Any, count: int) -> NDArray[np.float64] | None:
        if sample_weight is None:
            return None
        rows = np.empty((count, 1))
        found = _check_sample_weight(
            sample_weight, rows, dtype=np.float64, ensure_non_negative=True
        )
        return np.asarray(found)

    def _as_they_count(self, rows: RawRows) -> RawRows:
        """Rows with the weights that they are trained with, which may hang on all of them."""
        return rows

    @property
    def _rules(self) -> TableRules:
        return TableRules(
            missing=self.missing,
            unknown=self.unknown,
            day_first=self.day_first,
            decimal=self.decimal,
        )

    def _fit(self, rows: RawRows, label_names: tuple[str, ...] | None) -> None:
        """Train on rows, and keep what scikit-learn expects of a fitted estimator."""
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        plan = Plan(
            self._task,
            self.method,
            self.quality,
            self.members,
            widths(self.hidden),
            self.module,
            self.sparsity,
            self.max_steps,
            self.batch_size,
            self.early_stopping,
            self.validation_fraction,
            self.time_limit,
            self._rules,
            dict(self.method_options or {}),
            label_names,
            seed,
            self.refit,
            (_Printer(),) if self.verbose else (),
        )
        with _threads(self.n_jobs):
            trained = train(plan, self._as_they_count(rows))
        for note in trained.notes:
            if note.startswith("warning: "):
                warnings.warn(note.removeprefix("warning: "), stacklevel=3)
            elif self.verbose:
                print(note)
        self.posterior_ = trained.posterior
        self.history_ = history_of(trained.result)
        self.notes_ = trained.notes
        self.coverage_ = trained.coverage
        self.selection_ = trained.selection
        self._seen = rows

    def _with_seen(self, rows: RawRows) -> RawRows:
        """These rows behind those of the calls of ``partial_fit`` before."""
        seen: RawRows | None = getattr(self, "_seen", None)
        if seen is None:
            raise InvalidValue(
                "partial_fit",
                None,
                "needs the rows of the calls before, which a file or pickle does not hold",
                "fit on all rows",
            )
        return seen.and_more(rows)

    def _prepared(self, x: Any) -> Tensor:
        self._require_fitted()
        raw = self._read(x, reset=False)
        assert self.posterior_.preparation is not None
        return network_input(self.posterior_.preparation, raw)

    def _predict(self, x: Any) -> Prediction:
        """The prediction of rows as the networks give it; the same bits at every call."""
        prepared, about = self._prepared(x), self.posterior_.about
        # A module of one's own may let rows meet: then none is put beside them.
        whole = in_whole_blocks(prepared) if self.module is None else prepared
        with _threads(self.n_jobs):
            found = self.posterior_.predict(
                whole, about["num_samples"], seed=about["seed"], keep_samples=False
            )
        return first_rows(found, len(prepared))

    def _calibrate(self, x: Any, target: Tensor) -> None:
        about, count = self.posterior_.about, len(target)
        there = self.posterior_.finish.calibration
        if there is not None and count < LEAST_SCORES:
            what = "intervals" if self._task == "regression" else "sets of labels"
            raise InvalidData(
                "y",
                f"{count} rows",
                f"must be {LEAST_SCORES} or more: so few cannot decide {what}, which {there.rows} "
                "rows decide now",
                f"give {LEAST_SCORES} rows or more, or keep the calibration that there is",
            )
        held_out = (self._prepared(x), target)
        look = {"num_samples": about["num_samples"], "seed": about["seed"]}
        with _threads(self.n_jobs):
            found = self.posterior_
            # Of real targets ``calibrated`` finds the temperature too.
            if self._task == "classification" or count < LEAST_SCORES:
                found = tempered(found, held_out, **look)
            if count >= LEAST_SCORES:
                found = calibrated(found, held_out, **look)
        self.posterior_, self.coverage_ = found, {}

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """Share of each column in what the networks compute, [n_features_in_].

        Sums of absolute weights along all paths from a column to the outputs, see
        docs/selection.md; of a ``module``, weights of its first layer alone. Inputs are
        standardised, so that weights compare. A ranking, not a test. Only where a layer reads the
        columns: a ``module`` may have none.
        """
        return _present(importances(self._fitted))

    @property
    def selected_features_(self) -> NDArray[np.bool_]:
        """Columns that matter, [n_features_in_].

        Of a wide table those that were found to matter, at a false discovery rate of 10 %
        (``selection_``); else those that have any weight left in the first layer.
        """
        return _present(selected(self._fitted, self.selection_))

    @property
    def _fitted(self) -> Posterior:
        self._require_fitted()
        return self.posterior_

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to one file without pickle; ``load`` reads it.

        So does ``gossamer.load``, which gives the posterior. Rows are left out, so
        that ``partial_fit`` cannot go on from a file.

        Raises:
            InvalidValue: An argument that a file cannot hold.
            CheckpointError: The file could not be written.
        """
        shares = importances(self._fitted)  # for ``gossamer report``, which runs no network
        storage.save_estimator(
            path,
            self._fitted,
            name=type(self).__name__,
            parameters=self.get_params(deep=False),
            fitted={
                "n_features_in": self.n_features_in_,
                "feature_names_in": getattr(self, "feature_names_in_", np.array([])).tolist(),
                "has_names": hasattr(self, "feature_names_in_"),
                "history": self.history_,
                "notes": list(self.notes_),
                "coverage": list(self.coverage_.items()),
                "importances": None if shares is None else shares.tolist(),
                "selection": None if self.selection_ is None else self.selection_.to_json(),
                **self._record(),
            },
        )

    @classmethod
    def load(
        cls: type[_Own], path: str | os.PathLike[str], *, module: nn.Module | None = None
    ) -> _Own:
        """Read an estimator that ``save`` wrote.

        Args:
            path: The file.
            module: A network of the architecture that the estimator was given as ``module``: files
                hold no code.

        Raises:
            CheckpointError: The file is missing, damaged, or of something else.
        """
        posterior = load(path, network=module)
        record = storage.record_of(posterior, cls.__name__, path)
        parameters = {k: storage.from_json(v) for k, v in record["parameters"].items()}
        found = cls(**parameters, module=module)
        found.n_features_in_ = int(record["n_features_in"])
        if record["has_names"]:
            found.feature_names_in_ = np.array(record["feature_names_in"], dtype=object)
        found.history_ = list(record["history"])
        found.coverage_ = {float(level): share for level, share in record.get("coverage", [])}
        chosen = record.get("selection")
        found.selection_ = None if chosen is None else Selection.from_json(chosen)
        assert posterior.preparation is not None
        found.notes_ = tuple(record.get("notes", posterior.preparation.notes))
        found._restore(record)
        posterior.about = {k: v for k, v in posterior.about.items() if k != storage.KEY}
        found.posterior_ = posterior
        return found

    def _record(self) -> dict[str, Any]:
        """What else a file keeps, as JSON values."""
        return {}

    def _restore(self, record: dict[str, Any]) -> None:
        """Take back what ``_record`` gave."""

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and joblib: networks go as the bytes of their archive, rows stay here."""
        state = dict(super().__getstate__())
        state.pop("_seen", None)
        if "posterior_" in state:
            state["posterior_"] = storage.to_bytes(state["posterior_"])
            preparation = self.posterior_.preparation
            assert preparation is not None
            state["_sizes"] = (preparation.input_shape[0], preparation.output_size)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Undo ``__getstate__``."""
        state = dict(state)
        sizes = state.pop("_sizes", (0, 0))
        if "posterior_" in state:
            module = state["module"]
            state["posterior_"] = storage.from_bytes(state["posterior_"], module, sizes)
        super().__setstate__(state)


def _present(found: NDArray[_Kind] | None) -> NDArray[_Kind]:
    if found is None:
        raise AttributeError("no linear layer of the module reads the columns of X")
    return found


class _Printer(Observer):
    """A line for every epoch."""

    def on_epoch(self, fit: Fit, epoch: Epoch) -> None:
        figures = {"loss": epoch.train.get("loss"), "validation nll": epoch.val.get("nll")}
        shown = ", ".join(f"{k} {v:.4g}" for k, v in figures.items() if v is not None)
        print(f"epoch {epoch.epoch} of {fit.epochs}: {shown}")


@contextmanager
def _threads(n_jobs: int | None) -> Iterator[None]:
    """Threads of torch inside: one for ``None``, all for -1.

    Small networks gain little by a second thread, and lose all on a busy machine, where threads
    wait for each other.
    """
    count = 1 if n_jobs is None else n_jobs
    if count == 0 or count < -1:
        raise InvalidValue("n_jobs", n_jobs, "must be at least 1, or -1 for all cores")
    before = torch.get_num_threads()
    torch.set_num_threads(count if count > 0 else os.cpu_count() or 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
