"""Calls of the native engine and what the masked backend says of them.

Tolerances are relative to a tensor's largest value: 1e-10 in float64, where rounding stays below
1e-13; 5e-5 in float32, whose sums of some thousand products round to 1e-6 to 1e-5.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import gossamer as gs
from gossamer.core.support import Support
from gossamer.ops import BACKENDS, Layout, Pattern

every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
KINDS = ("product", "local", "moments")
TOLERANCE = {torch.float32: 5e-5, torch.float64: 1e-10}


@pytest.fixture(autouse=True)
def no_memory_by_chance():
    """torch then fills fresh memory with NaN: what the engine forgets to write is seen."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


def conv(shape, stride=1, padding=0, dilation=1, kind="conv", output_padding=0, groups=1) -> Layout:
    n = len(shape) - 2
    extra = (output_padding,) * n if kind == "conv_transpose" else ()
    pads = ((padding, padding),) * n
    return Layout(kind, shape, (stride,) * n, pads, (dilation,) * n, extra, groups)


LAYOUTS = {
    "linear": (Layout("linear", (12, 10)), (9, 10)),
    "flat": (conv((6, 4, 3, 3), padding=1), (5, 4, 9, 8)),
    "strided": (conv((6, 2, 3, 3), stride=2, padding=1, groups=2), (5, 4, 9, 8)),
    "line": (conv((5, 4, 3), padding=2, dilation=2), (5, 4, 11)),
    "volume": (conv((3, 2, 2, 2, 2), padding=1), (3, 2, 4, 3, 5)),
    "transposed": (conv((4, 3, 3, 3), 2, 1, 1, "conv_transpose", 1, 2), (5, 4, 5, 4)),
}
every_layout = pytest.mark.parametrize("name", LAYOUTS)


@dataclass
class Problem:
    """One call and the gradients that come back."""

    layout: Layout
    support: Support
    x: Tensor
    mean: Tensor
    variance: Tensor
    bias: Tensor
    gradients: tuple[Tensor, Tensor] | None = None

    def solve(self, engine: str, kind: str) -> list[Tensor]:
        """Outputs, then gradients of x, mean, variance if any, and bias."""
        indices = self.support.indices
        pattern = Pattern(indices, BACKENDS[engine].prepare(indices, self.layout))
        x, mean, variance, bias = (
            t.detach().requires_grad_() for t in (self.x, self.mean, self.variance, self.bias)
        )
        run, leaves = getattr(BACKENDS[engine], kind), [x, mean, variance, bias]
        if kind == "product":
            outputs = (run(x, mean, pattern, self.layout, bias, None),)
            del leaves[2]
        else:
            rest = (torch.tensor(7), None) if kind == "local" else ()
            outputs = run(x, mean, variance, pattern, self.layout, bias, *rest)
            outputs = outputs if kind == "moments" else (outputs,)
        ups = self.gradients
        if ups is None:
            generator = torch.Generator().manual_seed(3)
            ups = torch.randn(2, *outputs[0].shape, generator=generator, dtype=x.dtype)
        return [*outputs, *torch.autograd.grad(outputs, leaves, tuple(ups)[: len(outputs)])]


def problem(layout: Layout, shape, dtype, density=0.4, support=None) -> Problem:
    generator = torch.Generator().manual_seed(1)
    nnz = max(1, min(layout.numel - 1, int(density * layout.numel)))
    support = support or Support.random(layout.shape, nnz, generator)

    def draw(*size):
        return torch.randn(size, generator=generator, dtype=dtype)

    # Variances away from zero: the square root there would magnify rounding.
    variance = draw(support.nnz).square() + 0.1
    return Problem(layout, support, draw(*shape), draw(support.nnz), variance, draw(layout.fan_out))


def assert_near(got: list[Tensor], wanted: list[Tensor], tolerance: float, what: str = "") -> None:
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        atol = tolerance * max(1.0, float(b.detach().norm(float("inf"))) if b.numel() else 0.0)
        torch.testing.assert_close(a, b, rtol=0, atol=atol, msg=lambda m, i=i: f"{what} {i}: {m}")


def assert_same_as_masked(p: Problem, kinds=KINDS) -> None:
    for kind in kinds:
        wanted = p.solve("masked", kind)
        assert_near(p.solve("native", kind), wanted, TOLERANCE[p.x.dtype], kind)


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(150, 20), nn.Linear(20, 3)
    )


def converted(seed: int) -> nn.Module:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(seed)
    bnn = gs.to_bayesian(
        net(), 0.7, sparsity_distribution="uniform", backend="native", generator=generator
    )
    return bnn.train()


def step(model: nn.Module, plain: nn.Module, x: Tensor, seed: int) -> list[Tensor]:
    plain.zero_grad()
    torch.manual_seed(seed)
    y = model(x)
    y.square().sum().backward()
    return [y.detach(), *(p.grad.clone() for p in plain.parameters())]
