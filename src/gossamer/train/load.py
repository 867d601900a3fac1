"""A trained method back from a run folder, without its data."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from gossamer.data import Preparation
from gossamer.errors import CheckpointError, UnknownName
from gossamer.inference import Method
from gossamer.train.assembly import build_method
from gossamer.train.checkpoint import best, latest, load_checkpoint
from gossamer.train.config import RunConfig
from gossamer.train.device import portable, resolve_device
from gossamer.train.folder import RunFolder


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """What evaluating and predicting need of a run.

    Attributes:
        config: Its settings.
        preparation: How raw input becomes network input, and outputs original units.
        method: The trained method.
        step: Optimiser steps behind it.
        notice: A sentence for the user where a damaged checkpoint was passed over, else ``None``.
    """

    config: RunConfig
    preparation: Preparation
    method: Method
    step: int
    notice: str | None


def load_run(
    path: str | os.PathLike[str],
    *,
    select: Literal["last", "best"] | None = None,
    device: str = "cpu",
) -> LoadedRun:
    """Rebuild the method of a run, finished or not, from its folder alone.

    Args:
        path: The run folder.
        select: Which checkpoint; by default the one that the run's own test metrics are of.
        device: Where the method goes, whatever device it was trained on:
            ``auto|cpu|cuda|cuda:N|mps``.

    Raises:
        CheckpointError: Not a run folder, damaged, or nothing was saved yet.
    """
    folder = RunFolder(Path(path))
    config, facts = folder.read_config()
    select = select or ("best" if config.select == "best" else "last")
    if select not in ("last", "best"):
        raise UnknownName("select", select, ("last", "best"))
    found = best(folder.checkpoints) if select == "best" else latest(folder.checkpoints)
    if found is None:
        raise CheckpointError(
            "run folder",
            str(folder.path),
            "has no checkpoint yet",
            "train on with: gossamer train --resume --out " + str(folder.path),
        )
    place = resolve_device(device)
    with torch.random.fork_rng(devices=[]):  # the fresh weights and support are replaced at once
        method = build_method(config, facts, place)
    state = load_checkpoint(found)
    method.load_state_dict(portable(state["method"], state.get("device", "cpu"), place))
    return LoadedRun(config, folder.read_preparation(), method, found.step, found.notice)
