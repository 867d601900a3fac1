"""What a sparse layer notices of writes from outside: to its support, to the weight it showed.

Averages of a model (EMA, SWA) are deep copies whose buffers somebody keeps equal to the model's.
Where the model's support moves, such a copy would have new positions and old values.
"""

from __future__ import annotations

import copy
from threading import Lock
from typing import Any
from uuid import uuid4
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from gossamer.errors import InvalidValue
from gossamer.ops import NOT_OVERRIDDEN, is_recorded, is_transformed, version_of

_LIVING: WeakSet[Watched] = WeakSet()
_LOCK = Lock()


class Watched(nn.Module):
    """A layer that knows its copies, and whether its tensors were written to by others."""

    indices: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self._family = uuid4().int  # a copy has that of its original
        self._support_set: tuple[int, int] | None = None
        self._shown: tuple[Tensor, int] | None = None
        self._enlist()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy, or one that was pickled."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.__dict__.setdefault("_family", uuid4().int)
        self._shown = None
        self.note_support()
        self._enlist()

    def _enlist(self) -> None:
        with _LOCK:
            _LIVING.add(self)

    def _apply(self, *args: Any, **kwargs: Any) -> Watched:
        was_written = self.support_was_written
        super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        if not was_written:  # on another device it is another tensor
            self.note_support()
        return self

    def note_support(self) -> None:
        """The support is what the layer was given: by construction, a move or a loaded state."""
        # What an exporter puts in place of a tensor has no memory to tell it by.
        indices = self.indices
        self._support_set = identity(indices) if type(indices) is Tensor else None

    @property
    def support_was_written(self) -> bool:
        """Whether somebody else wrote into the index buffer, whatever the values."""
        if type(self.indices) is not Tensor or self._support_set is None:
            return False
        where, version = identity(self.indices)
        return where == self._support_set[0] and version != self._support_set[1]

    def show(self, weight: Tensor, values: Tensor) -> Tensor:
        """Remember a computed weight that is handed out: writing to it would change nothing.

        Args:
            weight: Computed from ``values``.
            values: The parameter. A full support shows a view of it, which may be written to.
        """
        unknown = torch.compiler.is_compiling() or is_transformed() or is_recorded()
        if unknown or type(weight) is not Tensor or weight.is_inference():
            return weight
        if _shares_memory(weight, values):
            return weight
        # An alias without memory of its own: it counts the writes to the weight, and a dense
        # tensor would not be kept alive for it.
        alias = weight.detach()
        alias.data = weight.detach().new_empty(0)
        self._shown = (alias, version_of(alias))
        return weight.as_subclass(ShownWeight)

    def require_unwritten(self) -> None:
        """Raise where somebody wrote to the weight that was shown last."""
        if torch.compiler.is_compiling() or self._shown is None:
            return
        alias, version = self._shown
        if version_of(alias) != version:
            self._shown = None
            raise InvalidValue(
                f"weight of {type(self).__name__}",
                None,
                "was written to, which changes nothing: it is computed from the layer's parameters",
                "write to weight_mean or weight_values, or to a clone() of it",
            )

    def require_call(self, x: Tensor) -> None:
        """Raise where a call is not one that the layer may compute.

        ``torch.fx`` would record the positions of today as a constant beside the parameters, which
        a swap gives other positions.
        """
        self.require_unwritten()
        if isinstance(x, Proxy):
            raise InvalidValue(
                f"torch.fx trace of {type(self).__name__}",
                None,
                "would keep mean and support of now, whatever happens to the layer",
                "trace gossamer.to_deterministic(model), or use a Tracer whose is_leaf_module is "
                "True for sparse layers",
            )

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.require_unwritten()
        super()._save_to_state_dict(*args, **kwargs)


class ShownWeight(Tensor):
    """A computed weight that was handed out: a plain tensor whose ``data`` counts writes too.

    ``Tensor.data`` has a count of its own, so that ``layer.weight.data.mul_(2)`` would change
    nothing and nobody would notice. Results, copies and pickles are plain tensors.
    """

    __torch_function__ = NOT_OVERRIDDEN  # type: ignore[assignment]

    @property
    def data(self) -> Tensor:
        """The values without their history, as of any tensor; writes to them are counted."""
        return self.detach()

    @data.setter
    def data(self, values: Tensor) -> None:
        raise InvalidValue(
            "data of a computed weight",
            tuple(values.shape),
            "changes nothing: the weight is computed from the layer's parameters",
            "write to weight_mean or weight_values",
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(self.as_subclass(Tensor))

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return copy.deepcopy(self.as_subclass(Tensor), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(Tensor).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def copies_of(layer: Watched) -> list[Watched]:
    """Every living copy of a layer, copies of copies and the original too."""
    with _LOCK:
        living = list(_LIVING)
    return [each for each in living if each._family == layer._family and each is not layer]


def identity(indices: Tensor) -> tuple[int, int]:
    """Where positions lie and how often they were changed there."""
    return indices.data_ptr(), version_of(indices)


def _shares_memory(weight: Tensor, values: Tensor) -> bool:
    return weight.untyped_storage().data_ptr() == values.untyped_storage().data_ptr()
