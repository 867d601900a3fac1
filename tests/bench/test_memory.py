"""Bytes are counted exactly: what is held twice counts once, what the model owns not at all."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.optim import Adam

from gossamer.bench.allocations import Allocations, resident, resident_peak
from gossamer.bench.fresh import in_fresh_process
from gossamer.bench.memory import saved_bytes, state_bytes
from gossamer.bench.networks import QUICK_RESNET, DenseStep, SparseStep
from gossamer.errors import GossamerError

FLOAT = 4


def test_state_of_adam_is_four_numbers_per_weight() -> None:
    model = nn.Linear(8, 4, bias=False)
    optimizer = Adam(model.parameters())
    assert state_bytes(model, optimizer) == FLOAT * 32
    model(torch.randn(2, 8)).sum().backward()
    optimizer.step()
    assert state_bytes(model, optimizer) == FLOAT * (4 * 32 + 1)  # 1: Adam's count of steps


def test_state_of_a_sparse_network_and_of_dense_vi() -> None:
    model = QUICK_RESNET.build()
    weights = [p.numel() for p in model.parameters() if p.dim() > 1]
    others = [p.numel() for p in model.parameters() if p.dim() == 1]
    buffers = sum(b.nbytes for b in model.buffers())
    # Four numbers per parameter, and a count of steps for each tensor of them.
    rest = FLOAT * (4 * sum(others) + len(others)) + buffers
    steps = FLOAT * 2 * len(weights)
    batch = QUICK_RESNET.batch(2)
    dense, sparse = DenseStep.variational(model, batch), SparseStep(model, 0.95, "erk", batch)
    dense.plain()
    sparse.plain()
    found = state_bytes(dense.model, dense.optimizer)
    assert found == FLOAT * 4 * 2 * sum(weights) + steps + rest
    nnz = round(0.05 * sum(weights))
    least = FLOAT * 4 * 2 * nnz + steps + rest
    indices = state_bytes(sparse.model, sparse.optimizer) - least
    # 16 bytes per kept weight in all, and the row and column pointers.
    assert (
        FLOAT * nnz < indices <= 16 * nnz + 8 * sum(sum(p.shape[:2]) + 2 for p in _matrices(model))
    )


def _matrices(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.dim() > 1]


def test_saved_bytes_leave_out_the_model_and_count_a_storage_once() -> None:
    model = nn.Linear(8, 4, bias=False)
    x = torch.randn(16, 8)

    def loss() -> torch.Tensor:
        y = model(x).exp()  # saves x, then its own result
        return (y * y).sum()  # saves the same result twice more

    assert saved_bytes(loss, model) == FLOAT * (16 * 8 + 16 * 4)


def test_peak_of_allocations(capfd: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        a = torch.zeros(1000)
        b = a + 1  # both alive: the peak
        del a
        torch.zeros(500)
        del b

    found = Allocations.during(run)
    capfd.readouterr()  # the profiler talks
    assert 2 * 1000 * FLOAT <= found.peak < 2 * 1000 * FLOAT + 100  # and the scalar 1
    assert found.peak_in("aten::add") >= 1000 * FLOAT
    assert math.isnan(found.peak_in("aten::no_such"))


def test_windows_of_allocations_start_at_zero() -> None:
    changes = ((1, 100), (3, 20), (4, 30), (5, -20), (9, -130))
    found = Allocations(changes, (("op", 2, 5), ("op", 8, 9), ("other", 0, 9)))
    assert found.peak == 150
    assert found.peak_in("op") == 50
    assert found.peak_in("other") == 150


def test_resident_memory_is_plausible() -> None:
    assert 1e7 < resident() <= resident_peak()


def test_a_failing_measurement_says_why() -> None:
    with pytest.raises(GossamerError, match=r"measurement of nothing.*KeyError"):
        in_fresh_process("nothing")
