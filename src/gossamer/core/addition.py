"""Addition criteria (Sec. 3.3.2): where the scores E_q|E_x ∇_θ f| of free positions come from.

The positions with the highest scores enter. A criterion is a row of ``ADDITION``: how often the
loss is differentiated at a swap, and at which weights. The gradient itself is caught in the
backward pass (`gossamer.ops.growth`), so a new criterion is a new row.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gossamer.errors import InvalidValue, UnknownName


@dataclass(frozen=True)
class AdditionRule:
    """How one criterion obtains its scores.

    Attributes:
        gradient: Whether the score is a gradient at all; if not it is a uniform random number.
        own_pass: Whether it needs passes of its own (``Subspace.step(closure)``) beside the
            training backward.
        at_mean: Whether those passes use θ = μ instead of draws.
        many: Whether ``num_draws`` passes are averaged instead of one.
        score: Key of ``gossamer.core.scores.SCORES``: what of the gradient counts.
        absolute_first: Average of |gradient| (the paper) rather than |average gradient| (the
            authors' code).
    """

    gradient: bool = True
    own_pass: bool = False
    at_mean: bool = False
    many: bool = False
    score: str = "abs"
    absolute_first: bool = True

    def __post_init__(self) -> None:
        if self.own_pass and self.score != "abs":
            raise InvalidValue(
                "score", self.score, "is not averaged over passes of its own", "use own_pass=False"
            )

    def contribution(self, gradient: Tensor) -> Tensor:
        """What one pass adds to the sum that is averaged over passes."""
        return gradient.abs() if self.absolute_first else gradient


ADDITION: dict[str, AdditionRule] = {
    "grad": AdditionRule(),
    "grad_mean": AdditionRule(own_pass=True, at_mean=True),
    "grad_multi": AdditionRule(own_pass=True, many=True),
    "grad_multi_signed": AdditionRule(own_pass=True, many=True, absolute_first=False),
    "random": AdditionRule(gradient=False),
}


def addition_rule(name: str) -> AdditionRule:
    """The rule of that name, or a plain error."""
    if name not in ADDITION:
        raise UnknownName("addition", name, list(ADDITION))
    return ADDITION[name]
