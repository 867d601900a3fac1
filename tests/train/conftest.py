from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from gossamer.train import RunConfig


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Bit-for-bit equality is promised for equal thread counts; the killed processes have one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def small() -> RunConfig:
    """A run of a second: 5 steps per epoch, a swap every few steps."""
    return RunConfig(
        data="digits",
        limit_train=300,
        model_options={"hidden": [16]},
        method_options={"sparsity": 0.8, "update_every": 3},
        epochs=3,
        num_samples=2,
    )
