"""Everything of torch that Gossamer uses and torch does not promise to keep.

Each name stands in one function with one test (tests/ops/test_torch_private.py), and no other file
of the package may use it (tests/architecture). A torch that drops or changes a name fails there.
Most functions ask what torch is doing at the moment: the native engine works on memory, where
torch's transforms and recorders see nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

Answer = TypeVar("Answer", bound=Callable[..., Any])

# Asked in every call of a layer: looking the names up costs as much as the answer.
_interpreter = torch._C._functorch.peek_interpreter_stack
_modes, _tracing = torch._C._len_torch_dispatch_stack, torch._C._get_tracing_state
_PLAIN = frozenset({Tensor, torch.nn.Parameter, torch.nn.Buffer})

NOT_OVERRIDDEN = torch._C._disabled_torch_function_impl
"""``__torch_function__`` of a class of tensors that torch computes with as with plain ones."""

NO_BACKWARD = -1
"""What ``backward_number`` gives outside of backward passes."""


def is_transformed() -> bool:
    """Whether a torch.func transform (``vmap``, ``grad``, ``jvp``) runs.

    Its tensors are wrappers without memory. Without this question they would reach a kernel, whose
    ``data_ptr`` call fails. Compiled code is asked while it is traced, where wrappers do no harm.
    """
    if torch.compiler.is_compiling():
        return False
    return _interpreter() is not None


def has_memory(tensor: Tensor) -> bool:
    """Whether a kernel may ask for the address of a tensor's values.

    Not of wrappers: those of torch.func transforms, and subclasses (fake, distributed) whose values
    lie elsewhere. Compiled code is asked while it is traced, where wrappers do no harm.
    """
    if torch.compiler.is_compiling():
        return True
    return type(tensor) in _PLAIN and _interpreter() is None


def is_recorded() -> bool:
    """Whether a dispatch mode or ``torch.jit.trace`` watches every operator.

    A kernel's work would be missing in what they record.
    """
    return _modes() > 0 or _tracing() is not None


def is_forward_differentiated() -> bool:
    """Whether forward-mode differentiation is on (``torch.autograd.forward_ad``).

    A kernel knows no tangents: they would be lost.
    """
    return bool(forward_ad._current_level >= 0)


def backward_number() -> int:
    """The number of the backward pass that runs; ``NO_BACKWARD`` outside of one.

    It tells a second use of a weight in one pass, whose gradients are summed, from the first use in
    the next. Without it every use would start anew.
    """
    return torch._C._current_graph_task_id()


def in_backward() -> bool:
    """Whether a backward pass runs: a forward inside of it recomputes (checkpointing)."""
    return backward_number() != NO_BACKWARD


def version_of(tensor: Tensor) -> int:
    """How often a tensor was changed in place; -1 if made in inference mode, which counts none.

    What was derived from a tensor is derived anew when this changes.
    """
    return -1 if tensor.is_inference() else tensor._version


def constant_when_compiled(function: Answer) -> Answer:
    """Marks a function whose answer ``torch.compile`` takes once, while it traces.

    As ``torch.compiler.assume_constant_result``, which imports the compiler to set this mark: two
    fifths of the time that importing the package takes.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def is_exported_to_onnx() -> bool:
    """Whether ``torch.onnx.export`` runs.

    Asked of torch's own flag and not of ``torch.onnx``, which whoever exports nothing need not
    import; compiled code asks nothing, since an export is never compiled.
    """
    if torch.compiler.is_dynamo_compiling():
        return False
    onnx = sys.modules.get("torch.onnx")
    return onnx is not None and bool(onnx.is_in_onnx_export())
