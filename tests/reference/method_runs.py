"""Short runs of any method of the table, for the tests that all methods share."""

from __future__ import annotations

import dataclasses
import re

import torch
from torch import nn

import gossamer as gs
from gossamer.inference import METHODS, StepInfo

TOTAL = 24
JOINT = re.compile(r"_([xc])(\d)$")
CONVERTIBLE = 4 * 16 + 16 * 3
# Used where a method has such a setting: several swaps within a short run.
SETTINGS = {
    "lr": 0.02,
    "sparsity": 0.5,
    "update_every": 3,
    "swap_fraction": 0.6,
    "end_fraction": 1.0,
    "num_draws": 2,
}

# Without momentum or adaptation a step must be larger. Five members would have too few weights.
OWN_SETTINGS = {"csgld": {"lr": 0.3}, "ensemble": {"members": 2}}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def base(name: str) -> str:
    """The key in the registry: ``rigl_x2`` is ``rigl`` with two members, ``rigl_c2`` in cycles."""
    return JOINT.sub("", name)


def has(name: str, setting: str) -> bool:
    return setting in {f.name for f in dataclasses.fields(METHODS[base(name)].config)}


def build(name: str, *, seed: int = 0, net: nn.Module | None = None, **options):
    torch.manual_seed(seed)
    arguments = {"num_data": 60, "total_steps": TOTAL, **options}
    for key, value in {**SETTINGS, **OWN_SETTINGS.get(base(name), {})}.items():
        if has(name, key) and "preset" not in options:
            arguments.setdefault(key, value)
    joint = JOINT.search(name)
    if joint is not None:
        arguments.update(members=int(joint[2]))
        # The network of all cycles is one: it has the sparsity that a test asks for.
        cycles = {"harvest": "cycles", "member_sparsity": arguments.get("sparsity")}
        arguments.update(cycles if joint[1] == "c" else {"member_start": "own"})
    return gs.build(base(name), network() if net is None else net, **arguments)


def clusters(n: int = 60, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Three classes far apart in four dimensions."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    centres = 3.0 * torch.eye(3, 4)
    return centres[y] + 0.3 * torch.randn(n, 4, generator=generator), y


def run(method, steps: int) -> list[StepInfo]:
    x, y = clusters()
    return [method.step((x, y)) for _ in range(steps)]
