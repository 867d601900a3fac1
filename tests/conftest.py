"""Settings of all tests: one thread per worker, no deadlines on shared machines, a fixed seed."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import settings

os.environ.setdefault("MPLBACKEND", "Agg")
torch.set_num_threads(1)
settings.register_profile("gossamer", deadline=None, derandomize=True)
settings.load_profile("gossamer")


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)
