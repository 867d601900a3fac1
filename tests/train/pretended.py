"""A pretended device: its tensors hold real values, say that they are elsewhere, and refuse to mix.

It stands in for a GPU where there is none: a tensor that was left on the CPU meets one that moved,
and the operation between them is an error, as it would be there. torch's device ``meta`` lends its
name, because that is the one foreign device which every torch accepts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

ELSEWHERE = torch.device("meta")
_MIX = ("aten::_to_copy", "aten::copy_", "gossamer::")
"""Operations that may take both: moves, and our own, whose seeds and counters stay on the CPU.

What our own do inside is not looked at here.
"""


class Away(Tensor):
    """A tensor on the pretended device; ``inner`` holds its values."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> Away:
        made: Away = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=ELSEWHERE,
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Literals(TorchFunctionMode):
    """Numbers that become tensors: torch would make them there without values.

    And ``tensor.data = other``, which says nothing to the operations below.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func == torch.Tensor.data.__set__ and isinstance(args[0], Away):  # type: ignore[attr-defined]
            func(*args)
            args[0].inner = args[1].inner
            return None
        device = kwargs.get("device")
        if func not in (torch.tensor, torch.as_tensor) or device is None:
            return func(*args, **kwargs)
        return func(*args, **{**kwargs, "device": None}).to(device)


@contextmanager
def pretending(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """Within the block there is a device elsewhere, which every name of a device stands for."""
    real = torch.autocast

    def autocast(kind: str, **options: Any) -> AbstractContextManager[Any]:
        return nullcontext() if kind == ELSEWHERE.type else real(kind, **options)

    with monkeypatch.context() as patch, _Literals(), _Operations():
        patch.setattr(torch, "autocast", autocast)  # torch has none for this name
        for module in ("run", "load", "fitting"):
            patch.setattr(f"gossamer.train.{module}.resolve_device", lambda name: ELSEWHERE)
        yield ELSEWHERE


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func.name().partition(".")[0]
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    away = [t for t in tensors if isinstance(t, Away)]
    here = [t for t in tensors if not isinstance(t, Away) and t.dim() > 0]  # numbers may mix
    if away and here and not name.startswith(_MIX):
        shapes = [[tuple(t.shape) for t in side] for side in (away, here)]
        raise RuntimeError(f"{func} mixes devices: {shapes[0]} elsewhere, {shapes[1]} on the CPU")
    goes_away = bool(away)
    if kwargs.get("device") is not None:
        goes_away = torch.device(kwargs["device"]) == ELSEWHERE
        kwargs = {**kwargs, "device": torch.device("cpu")}
    elif name == "aten::copy_":
        goes_away = isinstance(args[0], Away)
    result = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
    if args and isinstance(result, Tensor) and result is _inner(args[0]):
        return args[0]  # in place
    return tree_map(_wrapped, result) if goes_away else result


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, Away) else value


def _wrapped(value: Any) -> Any:
    return Away(value) if isinstance(value, Tensor) else value
