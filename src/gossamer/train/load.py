"""The posterior of a run back from its folder, without its data and without its optimiser."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from gossamer.data import Preparation
from gossamer.errors import CheckpointError, NonFinite, UnknownName
from gossamer.prediction import Posterior, load
from gossamer.train.assembly import Facts, build_method
from gossamer.train.checkpoint import best, latest, load_checkpoint, run_of
from gossamer.train.config import RunConfig
from gossamer.train.device import CPU, portable, resolve_device
from gossamer.train.folder import RunFolder
from gossamer.train.seal import require_own_files, sums_of


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """What evaluating and predicting need of a run.

    Attributes:
        config: Its settings.
        posterior: What it learnt, with its preparation.
        step: Optimiser steps behind it.
        notice: A sentence for the user where a damaged file was passed over, else ``None``.
    """

    config: RunConfig
    posterior: Posterior
    step: int
    notice: str | None

    @property
    def preparation(self) -> Preparation:
        """How raw input becomes network input, and outputs original units."""
        assert self.posterior.preparation is not None
        return self.posterior.preparation


def load_run(
    path: str | os.PathLike[str],
    *,
    select: Literal["last", "best"] | None = None,
    device: str = "cpu",
) -> LoadedRun:
    """The posterior of a run, finished or not, from its folder alone.

    A finished run has it in a file of its own, which is all that is read. Otherwise, or where
    another checkpoint is asked for, the method is built and takes on a checkpoint.

    Args:
        path: The run folder.
        select: Which checkpoint; by default the one that the run's own test metrics are of.
        device: Where the posterior goes, whatever device it was trained on:
            ``auto|cpu|cuda|cuda:N|mps``.

    Raises:
        CheckpointError: Not a run folder, damaged, or nothing was saved yet.
        NonFinite: A weight is NaN or infinite: nothing could be answered.
    """
    folder = RunFolder(Path(path))
    config, facts = folder.read_config()
    if select not in (None, "last", "best"):
        raise UnknownName("select", str(select), ("last", "best"))
    place = resolve_device(device)
    preparation = folder.read_preparation()
    chosen = "best" if config.select == "best" else "last"
    notice: str | None = None
    if select in (None, chosen) and folder.posterior.exists():
        try:
            stored = load(folder.posterior)
        except CheckpointError as error:
            notice = f"{error.name} {error.rule}; going on from the checkpoints"
        else:
            require_own_files(folder, stored.about.get("files"), "the run's posterior")
            _require_same(folder, stored, preparation)
            here = stored if place == CPU else stored.to(place)
            return LoadedRun(config, here, int(stored.about["step"]), None)
    found = best(folder.checkpoints) if (select or chosen) == "best" else latest(folder.checkpoints)
    if found is None:
        raise CheckpointError(
            "run folder",
            str(folder.path),
            "has no checkpoint yet",
            "train on with: gossamer train --resume --out " + str(folder.path),
        )
    require_own_files(folder, run_of(found.path), f"checkpoint {found.path.name}")
    with torch.random.fork_rng(devices=[]):  # the fresh weights and support are replaced at once
        method = build_method(config, facts, place)
    state = load_checkpoint(found)
    method.load_state_dict(portable(state["method"], state.get("device", "cpu"), place))
    posterior = method.posterior()
    try:
        posterior.require_finite()
    except NonFinite as error:
        name = f"{error.name} in {found.path}"
        raise NonFinite(name, error.value, error.rule, error.hint) from error
    posterior.preparation = preparation
    posterior.about = about_run(config, facts, found.step, sums_of(folder))
    bare = "without the run's finishing step, which only its posterior file holds"
    unfinished = None if config.finish == "none" else bare
    notices = [text for text in (notice, found.notice, unfinished) if text is not None]
    return LoadedRun(config, posterior, found.step, "; ".join(notices) or None)


def about_run(
    config: RunConfig, facts: Facts, step: int, files: Mapping[str, str]
) -> dict[str, Any]:
    """What the posterior of a run tells of it: how to build the network, how to predict.

    ``files`` are the checksums of the run's unchanging files.
    """
    return {
        "model": {
            "name": config.model,
            "input_shape": list(facts.input_shape),
            "output_size": facts.output_size,
            "options": {**facts.model_options, **config.model_options},
        },
        "method": config.method,
        "step": step,
        "num_samples": config.num_samples,
        "seed": config.seed,
        "files": dict(files),
    }


def _require_same(folder: RunFolder, posterior: Posterior, preparation: Preparation) -> None:
    """Posteriors of earlier versions know no checksum of preparation.json; all hold its content."""
    if posterior.preparation != preparation:
        raise CheckpointError(
            "preparation.json",
            str(folder.path),
            "is not the one that the run's posterior was saved with",
            "take the file from a backup",
        )
