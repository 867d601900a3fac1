"""What Gossamer asks of torch beyond torch's promises: each answer where it must change."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from gossamer.ops import torch_private as private


class Identity(torch.autograd.Function):
    """The identity; its backward notes what the functions say there."""

    seen: list[tuple[int, bool]]

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        Identity.seen.append((private.backward_number(), private.in_backward()))
        return gradient


def test_transforms_are_seen_from_inside():
    inside: list[bool] = []

    def watched(x: Tensor) -> Tensor:
        inside.append(private.is_transformed())
        return x.sum()

    vmap(watched)(torch.ones(2, 3))
    grad(watched)(torch.ones(3))
    assert inside == [True, True]
    watched(torch.ones(3))
    assert inside[-1] is False
    assert not private.is_transformed()


def test_compiled_code_is_not_taken_for_a_transform():
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: x + float(private.is_transformed()), backend="eager", fullgraph=True
    )
    assert torch.equal(compiled(torch.zeros(2)), torch.zeros(2))
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:.*jit.trace. is deprecated:DeprecationWarning")
def test_recorders_are_seen():
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    assert not private.is_recorded()
    with Mode():
        assert private.is_recorded()
    found: list[bool] = []

    def traced(x: Tensor) -> Tensor:
        found.append(private.is_recorded())
        return x + 1

    torch.jit.trace(traced, torch.ones(2), check_trace=False)
    assert found == [True]
    assert not private.is_recorded()


def test_forward_mode_is_seen():
    assert not private.is_forward_differentiated()
    with forward_ad.dual_level():
        assert private.is_forward_differentiated()
    assert not private.is_forward_differentiated()


def test_uses_in_one_backward_pass_share_a_number():
    """Two uses in one pass, then a pass of its own."""
    Identity.seen = []
    assert private.backward_number() == private.NO_BACKWARD
    assert not private.in_backward()
    x = torch.ones(2, requires_grad=True)
    Identity.apply(Identity.apply(x)).sum().backward()
    Identity.apply(x).sum().backward()
    (first, one), (second, two), (third, three) = Identity.seen
    assert [one, two, three] == [True] * 3
    assert first == second != private.NO_BACKWARD
    assert third not in (first, private.NO_BACKWARD)
    assert not private.in_backward()


def test_the_version_counts_changes_in_place():
    x = torch.zeros(3)
    before = private.version_of(x)
    assert private.version_of(x) == before, "asking changes nothing"
    x.add_(1)
    after = private.version_of(x)
    assert after != before
    x[0] = 5.0
    assert private.version_of(x) not in (before, after)
    with torch.inference_mode():
        frozen = torch.zeros(3)
    assert private.version_of(frozen) == -1


def test_a_marked_answer_is_taken_once():
    asked: list[int] = []

    def answer() -> float:
        asked.append(len(os.listdir()))  # which the compiler cannot trace
        return 2.0

    torch._dynamo.reset()
    marked = private.constant_when_compiled(answer)
    compiled = torch.compile(lambda x: x * marked(), backend="eager", fullgraph=True)
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert len(asked) == 1
    torch._dynamo.reset()


def test_the_compiler_is_not_imported():
    code = (
        "import sys, gossamer as gs; gs.to_bayesian, gs.Subspace, gs.predict, gs.fit; "
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_export_to_onnx_is_seen(monkeypatch):
    assert not private.is_exported_to_onnx()
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    assert private.is_exported_to_onnx()


def test_a_class_that_overrides_nothing_computes_as_plain_tensors():
    class Marked(torch.Tensor):
        __torch_function__ = private.NOT_OVERRIDDEN

    marked = torch.ones(2).as_subclass(Marked)
    assert not torch.overrides.has_torch_function((marked,))
    assert type(marked + marked) is torch.Tensor
