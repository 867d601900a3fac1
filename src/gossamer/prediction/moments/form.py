"""An activation as independent Gaussians."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


class Moments:
    """Mean and variance of every element of an activation, two tensors of one shape."""

    def __init__(self, mean: Tensor, variance: Tensor) -> None:
        self._pair = (mean, variance)

    @property
    def mean(self) -> Tensor:
        """Of every element."""
        return self._pair[0]

    @property
    def variance(self) -> Tensor:
        """Of every element."""
        return self._pair[1]

    def each(self, function: Callable[[Tensor], Tensor]) -> Moments:
        """The same rearrangement of both."""
        return Moments(function(self.mean), function(self.variance))
