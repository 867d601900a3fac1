"""Posterior samples of a chain, kept for prediction.

What did not change since the last sample (frozen weights, supports, BatchNorm counters) is kept
once: the ensemble that shares weights of the discussion of cvadam2023. Of a tensor of which few
elements changed only those are kept. Beyond a budget of memory samples go to files.
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
        self._changes: dict[int, tuple[int, int]] = {}  # base and positions of what is a change
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
        return sum(map(_nbytes, self._tensors.values()))

    @property
    def nbytes_unshared(self) -> int:
        """What all samples would take if nothing were shared."""
        return sum(_nbytes(t) for sample in self for t in sample.values())

    def add(self, state: Mapping[str, Tensor]) -> None:
        """Keep a copy of the state of a network."""
        before = self[-1] if self._samples else {}
        numbers = self._samples[-1] if self._samples else {}
        fresh = {
            name: _stored(before.get(name), tensor.detach())
            for name, tensor in state.items()
            if name not in before or not _same(before[name], tensor)
        }
        self._make_room(sum(_nbytes(t) for parts in fresh.values() for t in parts))
        sample: dict[str, int] = {}
        for name in state:
            if name not in fresh:
                sample[name] = numbers[name]
                continue
            values, *positions = fresh[name]
            sample[name] = self._keep(values)
            if positions:
                self._changes[sample[name]] = (numbers[name], self._keep(positions[0]))
        self._samples.append(sample)
        if self.folder is not None:
            self._make_room(0)  # a sample that is larger than the budget

    def clear(self) -> None:
        """Forget all samples; files are left to their owner."""
        self._samples, self._changes, self._tensors, self._files = [], {}, {}, {}
        self._next = 0

    def state_dict(self) -> dict[str, Any]:
        """All samples, each tensor once."""
        files: dict[Path, dict[str, Tensor]] = {}
        tensors = {str(n): self._part(n, files) for n in sorted({*self._tensors, *self._files})}
        changes = {str(n): list(parts) for n, parts in self._changes.items()}
        return {"samples": [dict(s) for s in self._samples], "changes": changes, "tensors": tensors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the samples of ``state``."""
        tensors = {int(n): t.clone() for n, t in state["tensors"].items()}
        samples = [{k: int(n) for k, n in s.items()} for s in state["samples"]]
        changes = {int(n): (int(b), int(p)) for n, (b, p) in state["changes"].items()}
        named = {n for s in samples for n in s.values()}.union(*changes.values())
        missing = (named | changes.keys()) - tensors.keys()
        if missing:
            raise InvalidData("samples", min(missing), "name a tensor that is not in the state")
        self.clear()
        self._samples, self._changes, self._tensors = samples, changes, tensors
        self._next = max(tensors, default=-1) + 1
        self._make_room(0)

    def _keep(self, tensor: Tensor) -> int:
        number, self._next = self._next, self._next + 1
        self._tensors[number] = tensor
        return number

    def _tensor(self, number: int, files: dict[Path, dict[str, Tensor]]) -> Tensor:
        """A tensor of a sample: as it was kept, or the changes since another one put into that."""
        if number not in self._changes:
            return self._part(number, files)
        base, positions = self._changes[number]
        found = self._tensor(base, files).clone(memory_format=torch.contiguous_format)
        found.view(-1)[self._part(positions, files).long()] = self._part(number, files)
        return found

    def _part(self, number: int, files: dict[Path, dict[str, Tensor]]) -> Tensor:
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


def _stored(before: Tensor | None, tensor: Tensor) -> tuple[Tensor, ...]:
    """A copy of the tensor; or what changed since ``before`` and where, if that is less."""
    if before is None or before.shape != tensor.shape or before.dtype != tensor.dtype:
        return (tensor.clone(),)
    flat = tensor.reshape(-1)
    where = (flat != before.reshape(-1)).nonzero().squeeze(1)
    where = where.to(torch.int32) if flat.numel() < 2**31 else where
    changes = (flat[where.long()], where)
    return changes if sum(map(_nbytes, changes)) < _nbytes(tensor) else (tensor.clone(),)


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _same(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and one.dtype == two.dtype and torch.equal(one, two)
