"""Posterior samples of a chain, kept for prediction.

What did not change since the last sample (frozen weights, supports, BatchNorm counters) is kept
once: the ensemble that shares weights of the discussion of cvadam2023. Beyond a budget of memory
samples go to files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from gossamer.errors import InvalidData, InvalidValue

Sample = dict[str, Tensor]
"""The state of a network."""


class Collection:
    """Samples in the order of collection.

    Args:
        budget: Bytes of memory; ``None`` for no limit.
        folder: Where samples beyond the budget go, the oldest first; without it the budget refuses
            further ones.
    """

    def __init__(self, budget: int | None = None, folder: str | Path | None = None) -> None:
        if budget is not None and budget < 0:
            raise InvalidValue("budget", budget, "must not be negative")
        self.budget = budget
        self.folder = None if folder is None else Path(folder)
        self._samples: list[dict[str, int]] = []
        self._tensors: dict[int, Tensor] = {}  # those in memory
        self._files: dict[int, Path] = {}  # those on disk
        self._next = 0

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Sample:
        """Sample number ``index``; its tensors must not be changed."""
        names = self._samples[index]
        files: dict[Path, dict[str, Tensor]] = {}
        return {name: self._tensor(number, files) for name, number in names.items()}

    def __iter__(self) -> Iterator[Sample]:
        return (self[i] for i in range(len(self)))

    @property
    def nbytes(self) -> int:
        """Memory held, each tensor once."""
        return sum(t.numel() * t.element_size() for t in self._tensors.values())

    @property
    def nbytes_unshared(self) -> int:
        """What all samples would take if nothing were shared."""
        return sum(t.numel() * t.element_size() for sample in self for t in sample.values())

    def add(self, state: Mapping[str, Tensor]) -> None:
        """Keep a copy of the state of a network."""
        before = self[-1] if self._samples else {}
        numbers = self._samples[-1] if self._samples else {}
        fresh = {
            name: tensor.detach().clone()
            for name, tensor in state.items()
            if name not in before or not _same(before[name], tensor)
        }
        self._make_room(sum(t.numel() * t.element_size() for t in fresh.values()))
        sample: dict[str, int] = {}
        for name in state:
            if name in fresh:
                self._tensors[self._next] = fresh[name]
                sample[name], self._next = self._next, self._next + 1
            else:
                sample[name] = numbers[name]
        self._samples.append(sample)
        if self.folder is not None:
            self._make_room(0)  # a sample that is larger than the budget

    def clear(self) -> None:
        """Forget all samples; files are left to their owner."""
        self._samples, self._tensors, self._files, self._next = [], {}, {}, 0

    def state_dict(self) -> dict[str, Any]:
        """All samples, each tensor once."""
        files: dict[Path, dict[str, Tensor]] = {}
        tensors = {str(n): self._tensor(n, files) for n in sorted({*self._tensors, *self._files})}
        return {"samples": [dict(s) for s in self._samples], "tensors": tensors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the samples of ``state``."""
        tensors = {int(n): t.clone() for n, t in state["tensors"].items()}
        samples = [{k: int(n) for k, n in s.items()} for s in state["samples"]]
        missing = {n for s in samples for n in s.values()} - tensors.keys()
        if missing:
            raise InvalidData("samples", min(missing), "name a tensor that is not in the state")
        self.clear()
        self._samples, self._tensors, self._next = samples, tensors, max(tensors, default=-1) + 1
        self._make_room(0)

    def _tensor(self, number: int, files: dict[Path, dict[str, Tensor]]) -> Tensor:
        if number in self._tensors:
            return self._tensors[number]
        path = self._files[number]
        if path not in files:
            files[path] = load_file(path)
        return files[path][str(number)]

    def _make_room(self, needed: int) -> None:
        """Write the oldest tensors away until ``needed`` bytes fit beside the rest."""
        if self.budget is None or self.nbytes + needed <= self.budget:
            return
        if self.folder is None:
            raise InvalidValue(
                "budget",
                f"{self.budget} bytes",
                f"does not hold sample {len(self)}, {self.nbytes + needed} bytes in all",
                "raise it, give a folder, or collect fewer samples",
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        leaving: dict[str, Tensor] = {}
        for number in sorted(self._tensors):
            if self.nbytes + needed <= self.budget:
                break
            leaving[str(number)] = self._tensors.pop(number).contiguous()
        if leaving:
            # A name of its own: another run with this folder must not write over it.
            name = f"samples-{next(iter(leaving))}-{uuid4().hex}.safetensors"
            path = self.folder / name
            save_file(leaving, path)
            self._files |= {int(number): path for number in leaving}


def _same(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and one.dtype == two.dtype and torch.equal(one, two)
