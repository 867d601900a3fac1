"""Scalars of a fit for the trackers of others: TensorBoard, or whatever takes values and a step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer.errors import InvalidValue, MissingDependency
from gossamer.files import refuse_links
from gossamer.inference import StepInfo
from gossamer.train.loop import Epoch, Fit, Observer

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Send = Callable[[Mapping[str, float], int], None]
"""A function of values by name and the step that they are of."""

_OF_A_STEP = ("loss", "nll", "kl", "kl_weight", "lr", "accuracy")
_OF_A_SWAP = ("removed", "added", "fraction")


class ScalarLog(Observer):
    """An observer that sends the scalars of a fit to a tracker.

    ``train/``: loss, nll, kl, kl_weight, lr and accuracy of single steps. ``swap/``: removed,
    added and fraction, of every swap. At the end of an epoch ``epoch/`` (means over the epoch),
    ``val/`` (figures of the validation part) and ``network/`` (nnz, sparsity). Steps are optimiser
    steps, counted from 1.

    Args:
        log: A tracker: an object with ``log(values, step=)`` (wandb, trackio),
            ``log_metrics(values, step=)`` (mlflow, loggers of Lightning) or
            ``add_scalar(name, value, step)`` (a ``SummaryWriter``); or a function of values and
            step. It stays open.
        every: Steps between two sendings of ``train/``.
        prefix: Goes before every name.

    Example:
        >>> from gossamer.train import fit
        >>> x = torch.rand(40, 3, generator=torch.Generator().manual_seed(0))
        >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> seen = []
        >>> log = ScalarLog(lambda values, step: seen.append((step, sorted(values))), every=4)
        >>> result = fit(
        ...     (x, (x.sum(1) > 1.5).long()), "sgd", net, epochs=3, batch_size=20, observers=[log]
        ... )
        >>> [step for step, _ in seen]
        [2, 4, 4, 6]
        >>> seen[1][1]
        ['train/accuracy', 'train/kl', 'train/kl_weight', 'train/loss', 'train/lr', 'train/nll']
    """

    def __init__(self, log: object, *, every: int = 10, prefix: str = "") -> None:
        if every < 1:
            raise InvalidValue("every", every, "must be at least 1 step")
        self._send, self._flush = sender_of(log), getattr(log, "flush", None)
        self._every, self._prefix = every, prefix

    def on_step(self, fit: Fit, info: StepInfo) -> None:
        """Send the step if its turn has come, and what was swapped."""
        values: dict[str, float] = {}
        if fit.step % self._every == 0:
            values |= _named("train", {key: getattr(info, key) for key in _OF_A_STEP})
        if info.swap is not None:
            values |= _named("swap", {key: getattr(info.swap, key) for key in _OF_A_SWAP})
        self.send(values, fit.step)

    def on_epoch(self, fit: Fit, epoch: Epoch) -> None:
        """Send what the epoch reports, and see that it is written before a checkpoint says so."""
        size = fit.method.posterior().size
        means = {key: epoch.train.get(key) for key in ("loss", "nll", "accuracy")}
        network = {key: size.get(key) for key in ("nnz", "sparsity")}
        self.send(
            {**_named("epoch", means), **_named("val", epoch.val), **_named("network", network)},
            epoch.step,
        )
        self.flush()

    def on_stop(self, fit: Fit) -> None:
        """See that everything is written."""
        self.flush()

    def send(self, values: Mapping[str, float], step: int) -> None:
        """Send values of a step, if there are any."""
        if values:
            self._send({self._prefix + name: value for name, value in values.items()}, step)

    def send_results(self, part: str, metrics: Mapping[str, Any], step: int) -> None:
        """Send the figures of a finished fit, such as those of the ``test`` part."""
        self.send(_named(part, metrics), step)
        self.flush()

    def flush(self) -> None:
        """Have the tracker write what it holds back, if it can be told to."""
        if callable(self._flush):
            self._flush()


class TensorBoard:
    """A tracker that writes the event files of TensorBoard.

    A fit that goes on continues the curves: points of steps that it takes again, because it was
    killed after its last checkpoint, are marked as purged, and TensorBoard shows each step once.

    Args:
        folder: Where the files go; ``tensorboard --logdir folder`` shows them.
        step: Steps done so far. What earlier sittings wrote of later steps is purged.

    Raises:
        MissingDependency: The package is not installed.
    """

    def __init__(self, folder: Path, *, step: int = 0) -> None:
        require_tensorboard()
        from torch.utils.tensorboard import SummaryWriter

        self._writer: SummaryWriter = SummaryWriter(str(folder), purge_step=step + 1)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write values of a step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Write what is still in memory."""
        self._writer.flush()

    def close(self) -> None:
        """Write the rest and close the file."""
        self._writer.close()


@contextmanager
def curves_in(folder: Path | None, step: int) -> Iterator[list[ScalarLog]]:
    """The log that is part of a run folder: one for TensorBoard, none for ``None``."""
    if folder is None:
        yield []
        return
    refuse_links(folder)
    writer = TensorBoard(folder, step=step)
    try:
        yield [ScalarLog(writer)]
    finally:
        writer.close()


def require_tensorboard() -> None:
    """Raise unless TensorBoard can be written.

    Raises:
        MissingDependency: The package is not installed.
    """
    if find_spec("tensorboard") is None:
        raise MissingDependency(
            "tensorboard",
            None,
            "is needed to log to TensorBoard",
            "pip install 'gossamer[tensorboard]'",
        )


def sender_of(log: Any) -> Send:
    """How values reach a tracker.

    Raises:
        InvalidValue: It is none that is known.
    """
    # A logger of Python's has a method log, too, which takes a level and a text.
    if not isinstance(log, logging.Logger | type):
        if callable(getattr(log, "add_scalar", None)):
            return partial(_send_each, log.add_scalar)
        for name in ("log_metrics", "log"):
            if callable(getattr(log, name, None)):
                return partial(_send_all, getattr(log, name))
        if callable(log):
            return partial(_call, log)
    raise InvalidValue(
        "log",
        type(log).__name__ if not isinstance(log, type) else f"the class {log.__name__}",
        "must be a tracker: log(values, step=), log_metrics(values, step=), "
        "add_scalar(name, value, step), or a function of values and step",
        "e.g. torch.utils.tensorboard.SummaryWriter(folder)",
    )


def _send_each(add: Callable[..., object], values: Mapping[str, float], step: int) -> None:
    for name, value in values.items():
        add(name, value, step)


def _send_all(log: Callable[..., object], values: Mapping[str, float], step: int) -> None:
    log(dict(values), step=step)


def _call(log: Callable[..., object], values: Mapping[str, float], step: int) -> None:
    log(dict(values), step)


def _named(group: str, values: Mapping[str, Any]) -> dict[str, float]:
    """Names with their group, without what is not known."""
    known = {key: value for key, value in values.items() if value is not None}
    return {f"{group}/{key}": value for key, value in known.items()}
