"""norm_relu and its contract, with norms that know nothing of Gossamer."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gossamer.models import FusingNorm, norm_relu

X, RESIDUAL = torch.randn(2, 4, 3, 5, 5, generator=torch.Generator().manual_seed(0))


class Doubling(nn.Module):
    """A norm that keeps the contract, and notes how it was called."""

    def __init__(self, willing: bool) -> None:
        super().__init__()
        self.willing = willing
        self.calls: list[tuple[bool, bool]] = []

    def fuses(self, relu: nn.Module) -> bool:
        return self.willing and type(relu) is nn.ReLU

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None, *, relu: bool = False
    ) -> torch.Tensor:
        self.calls.append((residual is not None, relu))
        y = 2 * x if residual is None else 2 * x + residual
        return F.relu(y) if relu else y


@pytest.mark.parametrize("residual", [None, RESIDUAL])
def test_a_norm_of_one_s_own_is_asked_for_all_in_one_call(residual: torch.Tensor | None) -> None:
    norm = Doubling(willing=True)
    assert isinstance(norm, FusingNorm)
    found = norm_relu(norm, nn.ReLU(), X, residual)
    assert norm.calls == [(residual is not None, True)]
    assert torch.equal(found, (2 * X + (0 if residual is None else residual)).clamp(min=0))


@pytest.mark.parametrize(
    ("norm", "relu"),
    [(Doubling(willing=False), nn.ReLU()), (Doubling(willing=True), nn.Sigmoid())],
)
def test_a_norm_that_says_no_is_called_as_any_other(norm: Doubling, relu: nn.Module) -> None:
    found = norm_relu(norm, relu, X, RESIDUAL)
    assert norm.calls == [(False, False)]
    assert torch.equal(found, relu(2 * X + RESIDUAL))


@pytest.mark.parametrize("residual", [None, RESIDUAL])
def test_any_other_module_does_it_in_steps(residual: torch.Tensor | None) -> None:
    norm = nn.GroupNorm(1, 3)
    assert not isinstance(norm, FusingNorm)
    found = norm_relu(norm, nn.ReLU(), X, residual)
    normal = F.group_norm(X, 1)
    torch.testing.assert_close(found, F.relu(normal if residual is None else normal + residual))
