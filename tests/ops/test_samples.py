"""Many draws of a weight in one call: the native kernel and the loop against draws by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cases.engines import ISAS, needs_native, using
from gossamer.core.support import Support
from gossamer.ops import BACKENDS, Layout, Pattern, normal_like
from gossamer.ops.native.samples import runs_together

CONV = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1)}
LAYOUTS = {
    "linear": (Layout("linear", (13, 10)), (10,)),
    "one output": (Layout("linear", (1, 40)), (40,)),
    "flat": (Layout("conv", (6, 4, 3, 3), **CONV), (4, 9, 8)),
    "pointwise": (
        Layout("conv", (5, 7, 1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1)),
        (7, 3, 4),
    ),
    "strided groups": (
        Layout("conv", (6, 2, 3, 3), (2, 2), ((1, 0), (0, 2)), (1, 2), groups=2),
        (4, 9, 8),
    ),
    "reflected": (
        Layout("conv", (5, 4, 3), (1,), ((2, 2),), (2,), padding_mode="reflect"),
        (4, 11),
    ),
    "volume": (Layout("conv", (3, 2, 2, 2, 2), (1,) * 3, ((1, 1),) * 3, (1,) * 3), (2, 4, 3, 5)),
    "transposed": (
        Layout("conv_transpose", (4, 3, 3, 3), (2, 2), ((1, 1),) * 2, (1, 1), (1, 1), 2),
        (4, 5, 4),
    ),
    # More channels, pixels and weights than the blocks of one task hold.
    "blocks": (Layout("conv", (70, 60, 3, 3), **CONV), (60, 16, 17)),
    "wide": (Layout("linear", (300, 700)), (700,)),
}
every_layout = pytest.mark.parametrize("name", LAYOUTS)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
TOLERANCE = {torch.float32: 5e-5, torch.float64: 1e-10}


@pytest.fixture(autouse=True)
def _no_memory_by_chance():
    """torch then fills fresh memory with NaN: what the engine forgets to write is seen."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    with torch.no_grad():
        yield
    torch.use_deterministic_algorithms(before)


class Problem:
    """Weights of one layer, inputs of S samples."""

    def __init__(self, name: str, samples: int, rows: int, dtype: torch.dtype, density=0.3) -> None:
        self.layout, shape = LAYOUTS[name]
        generator = torch.Generator().manual_seed(samples * 100 + rows)
        nnz = max(1, int(density * self.layout.numel))
        self.indices = Support.random(self.layout.shape, nnz, generator).indices

        def draw(*size: int) -> Tensor:
            return torch.randn(size, generator=generator, dtype=dtype)

        self.x, self.mean, self.bias = draw(samples * rows, *shape), draw(nnz), draw(100_000)
        self.bias = self.bias[: self.layout.fan_out]
        self.std = draw(nnz).abs()
        self.seeds = torch.randint(2**62, (samples,), generator=generator)

    def solve(self, engine: str) -> Tensor:
        backend = BACKENDS[engine]
        pattern = Pattern(self.indices, backend.prepare(self.indices, self.layout))
        return backend.samples(
            self.x, self.mean, self.std, pattern, self.layout, self.bias, self.seeds
        )

    def by_hand(self) -> Tensor:
        """Each sample's θ, and the masked product of its rows."""
        pattern, parts = Pattern(self.indices), []
        rows = self.x.shape[0] // len(self.seeds)
        for s, seed in enumerate(self.seeds):
            values = self.mean + self.std * normal_like(seed, self.mean)
            part = self.x[s * rows : (s + 1) * rows]
            product = BACKENDS["masked"].product
            parts.append(product(part, values, pattern, self.layout, self.bias, None))
        return torch.cat(parts)


def assert_near(got: Tensor, wanted: Tensor) -> None:
    atol = TOLERANCE[wanted.dtype] * max(1.0, float(wanted.abs().max()))
    torch.testing.assert_close(got, wanted, rtol=0, atol=atol)


@every_layout
@every_dtype
@pytest.mark.parametrize("engine", sorted(BACKENDS))
def test_is_the_loop_over_samples(name, dtype, engine):
    """Odd rows; samples below, at and above the numbers of lanes, and no multiple of them."""
    sizes = [(3, 2)] if name in ("blocks", "wide") else [(1, 3), (5, 1), (8, 2), (16, 3), (19, 1)]
    for samples, rows in sizes:
        p = Problem(name, samples, rows, dtype)
        assert_near(p.solve(engine), p.by_hand())


@needs_native
@pytest.mark.parametrize("isa", ISAS)
@every_layout
def test_every_instruction_set(name, isa):
    p = Problem(name, 19, 3, torch.float64)
    with using(isa):
        assert_near(p.solve("native"), p.by_hand())


@needs_native
@every_layout
@every_dtype
def test_an_input_that_all_samples_share(name, dtype):
    """One row expanded: read with stride 0, as if it had been copied."""
    p = Problem(name, 19, 1, dtype)
    p.x = p.x[:1].expand(19, *p.x.shape[1:])
    assert p.x.stride(0) == 0
    shared = p.solve("native")
    p.x = p.x.contiguous()
    assert torch.equal(shared, p.solve("native"))
    assert_near(shared, p.by_hand())


@needs_native
@pytest.mark.parametrize("name", ["linear", "flat"])
def test_memory_layouts(name):
    p = Problem(name, 5, 3, torch.float64)
    p.x = p.x.transpose(0, -1).contiguous().transpose(0, -1)
    assert not p.x.is_contiguous()
    assert_near(p.solve("native"), p.by_hand())


@needs_native
@pytest.mark.parametrize("name", ["linear", "strided groups", "blocks"])
def test_same_bits_on_any_number_of_threads(name):
    p = Problem(name, 19, 3, torch.float32)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(p.solve("native"))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@needs_native
def test_empty_rows_and_no_bias():
    """Outputs without any weight hold the bias, or zero."""
    p = Problem("linear", 7, 2, torch.float64, density=0.05)
    assert_near(p.solve("native"), p.by_hand())
    p.bias = None
    assert_near(p.solve("native"), p.by_hand())


@pytest.mark.parametrize("engine", sorted(BACKENDS))
def test_a_full_support(engine):
    """Without indices: whoever takes it, the numbers are the same."""
    p = Problem("linear", 5, 2, torch.float64, density=1.0)
    wanted = p.by_hand()
    p.indices = None
    assert_near(p.solve(engine), wanted)


@needs_native
def test_a_sample_does_not_depend_on_its_neighbours():
    p = Problem("flat", 19, 2, torch.float32)
    whole = p.solve("native")
    p.x, p.seeds = p.x[6:10], p.seeds[3:5]
    assert torch.equal(p.solve("native"), whole[6:10])


@needs_native
def test_gradients_take_the_other_way():
    """The kernel has none: where they are wanted the samples run in turn."""
    p = Problem("linear", 3, 2, torch.float64)
    with torch.enable_grad():
        assert not runs_together(Layout("linear", (3, 2)))
        p.mean.requires_grad_()
        p.solve("native").sum().backward()
        wanted = torch.autograd.grad(p.by_hand().sum(), p.mean)[0]
    torch.testing.assert_close(p.mean.grad, wanted, rtol=1e-10, atol=1e-10)
