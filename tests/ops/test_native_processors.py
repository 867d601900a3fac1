"""The native engine on any number of threads and on every instruction set."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from cases.engines import ISAS, needs_native, using
from cases.native import (
    KINDS,
    LAYOUTS,
    TOLERANCE,
    assert_near,
    conv,
    every_dtype,
    no_memory_by_chance,  # noqa: F401 (autouse)
    problem,
)
from gossamer.ops import Layout

pytestmark = needs_native


WIDE = {
    **LAYOUTS,
    "linear-tiles": (Layout("linear", (70, 50)), (1100, 50)),
    "linear-blocks": (Layout("linear", (130, 900)), (130, 900)),
    "flat-tiles": (conv((24, 16, 3, 3), padding=1), (20, 16, 14, 14)),
    "strided-tiles": (conv((10, 8, 3, 3), 2, 1), (150, 8, 9, 9)),
}


@pytest.fixture
def usual_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("usual_threads")
@every_dtype
@pytest.mark.parametrize("name", WIDE)
def test_threads_give_the_same_bits(name, dtype):
    p = problem(*WIDE[name], dtype, density=0.1)
    for kind in KINDS:
        found = []
        for threads in (1, 2, 8):
            torch.set_num_threads(threads)
            found.append(p.solve("native", kind))
        for other in found[1:]:
            # All but the gradient of the bias, which is torch's own sum.
            same = [torch.equal(a, b) for a, b in zip(found[0][:-1], other[:-1], strict=True)]
            assert all(same), (kind, same)


@pytest.mark.parametrize("isa", ISAS)
@every_dtype
@pytest.mark.parametrize("name", WIDE)
def test_instruction_sets_agree(name, dtype, isa):
    p = problem(*WIDE[name], dtype, density=0.1)
    for kind in KINDS:
        with using("generic"):
            wanted = p.solve("native", kind)
        with using(isa):
            assert_near(p.solve("native", kind), wanted, TOLERANCE[dtype], f"{kind} {isa}")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_one_openmp_runtime():
    """In a process of its own: other packages of the tests bring runtimes along."""
    program = r"""
import re, torch, gossamer as gs
torch.set_num_threads(2)
layer = gs.to_bayesian(torch.nn.Linear(256, 256), 0.9, backend="native").train()
layer(torch.randn(64, 256)).sum().backward()
maps = open("/proc/self/maps").read()
print(*sorted(set(re.findall(r'\S*/lib(?:gomp|omp|iomp)[^/\s]*', maps))), sep="\n")
"""
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert len(found.stdout.split()) == 1, found.stdout
