"""``fit``: from data and a method to a trained method, without a run folder."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from gossamer.data import DataSet
from gossamer.errors import InvalidValue, UnknownName
from gossamer.inference import Method, build
from gossamer.likelihoods import Gaussian, Likelihood, make_likelihood
from gossamer.models import build_model
from gossamer.settings import check
from gossamer.train import evaluation
from gossamer.train.config import Count
from gossamer.train.device import AUTO, device_of, own_noise, resolve_device
from gossamer.train.evaluation import VALIDATION_SAMPLES
from gossamer.train.examples import DEFAULT_BATCH, Batches, Examples, Pair
from gossamer.train.loop import Epoch, Fit, Observer, TimeLimit
from gossamer.train.noise_start import noise_start
from gossamer.train.restarts import Race, Restarts
from gossamer.train.scalars import ScalarLog

Model = str | nn.Module | Callable[[], nn.Module]


@dataclass(frozen=True, eq=False)
class FitResult:
    """What a fit leaves.

    Attributes:
        method: The trained method; ``gossamer.predict(method, x)`` asks it.
        history: What each epoch reported; of restarts, those of the fit that went on.
        best_epoch: The epoch of least validation NLL, counted from 1; ``None`` without validation.
        ending: ``"finished"``, ``"patience"``, ``"time_limit"``, or ``"stopped"`` by an observer.
        seconds: That all fits took together.
    """

    method: Method
    history: tuple[Epoch, ...]
    best_epoch: int | None
    ending: Literal["finished", "patience", "time_limit", "stopped"]
    seconds: float


def fit(
    data: DataSet | Examples | tuple[Tensor, ...],
    method: str | Method = "ssvi",
    model: Model = "mlp",
    *,
    validation: Pair | None = None,
    likelihood: str | Likelihood | None = None,
    epochs: int = 60,
    batch_size: int = DEFAULT_BATCH,
    seed: int = 0,
    device: str = AUTO,
    patience: int | None = None,
    validate_every: int = 1,
    select: Literal["last", "best"] = "last",
    restarts: Restarts | None = None,
    time_limit: float | None = None,
    num_samples: int = VALIDATION_SAMPLES,
    observers: Sequence[Observer] = (),
    log: object | None = None,
    preset: str = "default",
    **settings: Any,
) -> FitResult:
    """Train a method, without a folder and without a look at the test part.

    The same data, settings, seed and device give the same bits, also those of
    :func:`gossamer.train.train`; with ``select="best"`` if that writes a checkpoint every epoch,
    since it chooses among those. torch's generators are given back as they were.

    Args:
        data: A data set, its examples, or tensors: inputs ``[N, ...]``, targets ``[N]`` or
            ``[N, D]`` and, if any, weights ``[N]`` of the examples.
        method: Key of ``gossamer.inference.METHODS``; or a method that was built for
            ``epochs`` times the batches of an epoch. A built one has its model, likelihood, device
            and settings.
        model: Name of :mod:`gossamer.models`; a network, which is copied; or a function that makes
            one, which gives each restart and each member weights of its own.
        validation: Inputs and targets to validate on; by default those of the data set.
        likelihood: Name or instance; by default categorical for classes and gaussian for numbers.
        epochs: Passes over the training part.
        batch_size: Examples per step; 64, the default, stands for all of them where there are
            fewer.
        seed: Of weights, support, order and noise.
        device: ``auto`` (a GPU of CUDA if there is one), ``cpu``, ``cuda``, ``cuda:N``, ``mps``.
        patience: Stop where the validation NLL has not improved for so many epochs.
        validate_every: Epochs between validations.
        select: Give back the ``"last"`` state, or the ``"best"`` by validation NLL.
        restarts: Several fits begin and the best goes on.
        time_limit: Seconds after which to stop. Schedules do not know of it.
        num_samples: Posterior samples per validation.
        observers: Who watches the steps and epochs, see :class:`gossamer.train.Observer`.
        log: A tracker that gets the scalars: a ``SummaryWriter``, a run of wandb, a function of
            values and step, see :class:`gossamer.train.ScalarLog`. Restarts go by their numbers.
        preset: Named settings of the method.
        **settings: Settings of the method, see ``gossamer methods NAME``; ``members=2`` and what
            else :func:`gossamer.build` knows of members. With ``leave_out`` the examples are dealt
            out by the seed, and those left out validate where nothing else does.

    Example:
        >>> import torch, gossamer
        >>> from gossamer.train import fit
        >>> x = torch.rand(200, 3, generator=torch.Generator().manual_seed(0))
        >>> y = (x.sum(1) > 1.5).long()
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> result = fit((x, y), "ssvi", net, validation=(x[:50], y[:50]), epochs=2, sparsity=0.5)
        >>> result.ending, len(result.history), result.best_epoch is not None
        ('finished', 2, True)
        >>> gossamer.predict(result.method, x[:4]).probs.shape
        torch.Size([4, 2])
    """
    counts = {
        "epochs": epochs,
        "batch_size": batch_size,
        "num_samples": num_samples,
        "validate_every": validate_every,
    }
    for name, count in counts.items():
        check(name, count, Count)
    if not isinstance(method, str):
        given = {"restarts": restarts, "likelihood": likelihood, **settings}
        given.update(model=None if model == "mlp" else model)
        given.update(preset=None if preset == "default" else preset)
        _refuse_for_built(given)
    examples = _examples(data, validation)
    if examples.left_out is None and settings.get("leave_out"):
        examples = examples.dealt(settings.get("members") or 1, settings["leave_out"], seed)
    validate = evaluation.validation_of(examples, num_samples=num_samples, seed=seed)
    if select not in ("last", "best"):
        raise UnknownName("select", select, ("last", "best"))
    if validate is None and (select == "best" or restarts is not None):
        asked = "restarts" if restarts is not None else "select"
        raise InvalidValue(asked, None, "needs a validation part", "give validation=(x, y)")
    place = resolve_device(device) if isinstance(method, str) else _place_of(method, device)
    limits = [] if time_limit is None else [TimeLimit(time_limit)]

    def start(number: int) -> Fit:
        own_seed = _seed_of(seed, number)
        torch.manual_seed(own_seed)
        feed = Batches(examples, batch_size, place)
        built = method
        if isinstance(built, str):
            kind = _likelihood(likelihood, examples)
            # A function gives every member weights of its own; of a module ``build`` decides.
            network = partial(_network, model, examples, kind, place)
            built = build(
                built,
                network() if isinstance(model, nn.Module) else network,
                num_data=len(examples.x),
                total_steps=epochs * feed.steps_per_epoch,
                likelihood=kind.to(place),
                preset=preset,
                **settings,
            )
        logs = [] if log is None else [ScalarLog(log, prefix=f"{number}/" if restarts else "")]
        return Fit(
            built,
            feed,
            epochs=epochs,
            order=torch.Generator().manual_seed(own_seed),
            validate=validate,
            validate_every=validate_every,
            patience=patience,
            observers=[*logs, *observers, *limits, *([_Best()] if select == "best" else [])],
        )

    with own_noise(place, seed):
        result = _carry_out(start, restarts, epochs)
    is_late = result.ending == "stopped" and any(limit.should_stop() for limit in limits)
    return replace(result, ending="time_limit") if is_late else result


class _Best(Observer):
    """Keeps the state of the best epoch."""

    def __init__(self) -> None:
        self.state: dict[str, Any] | None = None

    def on_epoch(self, fit: Fit, epoch: Epoch) -> None:
        if fit.best_epoch == epoch.epoch:
            self.state = copy.deepcopy(fit.method.state_dict())


def _carry_out(start: Callable[[int], Fit], restarts: Restarts | None, epochs: int) -> FitResult:
    race = None if restarts is None else Race(start, restarts, epochs)
    decided = race is None or race.run()
    chosen = start(0) if race is None else race.leader
    if decided:
        chosen.run()
    for observer in chosen.observers:
        if isinstance(observer, _Best) and observer.state is not None:
            chosen.method.load_state_dict(observer.state)
    return FitResult(
        chosen.method,
        tuple(chosen.history),
        chosen.best_epoch,
        chosen.ending or "stopped" if decided else "stopped",
        chosen.seconds if race is None else race.seconds,
    )


def _examples(data: DataSet | Examples | tuple[Tensor, ...], validation: Pair | None) -> Examples:
    if isinstance(data, Examples):
        examples = data
    elif not isinstance(data, tuple):
        examples = Examples.of(data)
    elif len(data) in (2, 3):
        x, y, *weight = data
        examples = Examples(x, y, weight=weight[0] if weight else None)
    else:
        raise InvalidValue(
            "data", f"{len(data)} values", "must be a DataSet, (x, y) or (x, y, weight)"
        )
    return examples if validation is None else replace(examples, validation=validation)


def _seed_of(seed: int, number: int) -> int:
    """The first fit has the seed itself, the others seeds that are independent of it."""
    if number == 0:
        return seed
    word = np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0]
    return int(word >> np.uint64(1))


def _place_of(method: Method, device: str) -> torch.device:
    place = device_of(method.model)
    if device != AUTO and resolve_device(device) != place:
        raise InvalidValue(
            "device", device, f"the method is on {place}", "build it from a model on that device"
        )
    return place


def _refuse_for_built(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if value is not None:
            raise InvalidValue(
                name, str(value), "cannot change a method that is built", "give it by name"
            )


def _likelihood(likelihood: str | Likelihood | None, examples: Examples) -> Likelihood:
    """A likelihood of its own for each fit: two must not train one noise."""
    if likelihood is None:
        likelihood = "gaussian" if examples.y.is_floating_point() else "categorical"
    if likelihood == "gaussian":
        start = noise_start(examples.x, examples.y)
        return Gaussian() if start is None else Gaussian(start=start)
    return copy.deepcopy(make_likelihood(likelihood))


def _network(
    model: Model, examples: Examples, likelihood: Likelihood, place: torch.device
) -> nn.Module:
    if isinstance(model, nn.Module):
        return copy.deepcopy(model).to(place)
    if not isinstance(model, str):
        return model().to(place)
    shape, size = tuple(examples.x.shape[1:]), _output_size(examples, likelihood)
    return build_model(model, input_shape=shape, output_size=size).to(place)


def _output_size(examples: Examples, likelihood: Likelihood) -> int:
    """Columns that the likelihood reads for such targets."""
    if likelihood.name == "categorical":
        if examples.preparation is not None:
            return examples.preparation.output_size
        return 1 + int(examples.y.max())
    columns = examples.y.shape[1] if examples.y.dim() > 1 else 1
    has_noise_head = isinstance(likelihood, Gaussian) and likelihood.noise_std == "head"
    return columns * (2 if has_noise_head else 1)
