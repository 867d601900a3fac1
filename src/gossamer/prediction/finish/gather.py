"""One look at held-out rows: outputs and features of all samples, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass

import torch
from torch import Tensor, nn

from gossamer.errors import InvalidData, InvalidValue
from gossamer.nn import Noise
from gossamer.ops import fold_seed
from gossamer.prediction.finish.finish import Finish
from gossamer.prediction.finish.layer import last_linear, outputs_and_features, weight_norm
from gossamer.prediction.inputs import InputRows, Inputs, Several, input_rows, rows_between
from gossamer.prediction.mixing import Mixture
from gossamer.prediction.outputs import Call, Forward
from gossamer.prediction.passes import ROW_BLOCK, Passes
from gossamer.prediction.posterior import Posterior


@dataclass(frozen=True)
class Sampling:
    """How many samples of a posterior are looked at, and with which noise.

    Attributes:
        count: Samples of each member; no more than it has.
        noise: ``weight`` or ``local``.
        seed: Fixes all noise.
    """

    count: int
    noise: Noise
    seed: int

    def passes(self, posterior: Posterior, finish: Finish) -> Passes:
        """Passes of a posterior that is no mixture, to be read by ``finish``."""
        return self._passes(posterior, finish.caller(Forward(posterior.output)))

    def _passes(self, posterior: Posterior, call: Call) -> Passes:
        count = self._of(posterior)
        row_wise = posterior.row_wise
        return Passes(posterior.draws, count, self.noise, self.seed, call, row_wise)

    def outputs(self, posterior: Posterior, finish: Finish, x: InputRows) -> Tensor:
        """What the networks give for ``finish`` to read, ``[S, n, ...]``."""
        found = torch.cat(list(self.passes(posterior, finish).blocks(x)), 1)
        if not bool(torch.isfinite(found).all()):
            raise InvalidData(
                "outputs of held-out rows", None, "must be finite", "check the inputs and weights"
            )
        return found

    def features(
        self, posterior: Posterior, x: InputRows
    ) -> tuple[str, Iterator[tuple[Tensor, Tensor, slice]]]:
        """Name of the last layer; then, for every block, outputs, features and its rows.

        Outputs are ``[S, B, C]``, features ``[S, B, F + 1]``, both float64.
        """
        forward = Forward(posterior.output)
        with posterior.draws.sample(0, seed=self.seed, noise="weight") as network:
            layer, columns = last_linear(network, rows_between(x, 0, 2), forward)

        def call(network: nn.Module, rows: InputRows) -> Tensor:
            return torch.cat(outputs_and_features(network, layer, rows, forward), 1)

        passes = self._passes(posterior, call)

        def blocks() -> Iterator[tuple[Tensor, Tensor, slice]]:
            for number, found in enumerate(passes.blocks(x)):
                rows = slice(number * ROW_BLOCK, number * ROW_BLOCK + found.shape[1])
                outputs, features = found.double().tensor_split([columns], dim=2)
                yield outputs, features, rows

        return layer, blocks()

    def weight_norm(self, posterior: Posterior, layer: str) -> float:
        """Mean over samples of |W|² of the last layer."""
        found = []
        for index in range(self._of(posterior)):
            with posterior.draws.sample(index, seed=self.seed + index, noise="weight") as network:
                found.append(weight_norm(network, layer))
        return sum(found) / len(found)

    def _of(self, posterior: Posterior) -> int:
        return min(self.count, posterior.max_samples or self.count)


@dataclass(frozen=True)
class Look:
    """What of a posterior is looked at: just what ``Posterior.predict`` would average.

    Attributes:
        num_samples: In all.
        noise: ``weight`` or ``local``.
        seed: Fixes all noise.
    """

    num_samples: int
    noise: Noise
    seed: int

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise InvalidValue("num_samples", self.num_samples, "must be at least 1")

    def at(self, posterior: Posterior) -> list[tuple[Posterior, Sampling]]:
        """The members of a mixture with their samples; any other posterior is its only one."""
        count = min(self.num_samples, posterior.max_samples or self.num_samples)
        if not isinstance(posterior, Mixture):
            return [(posterior, Sampling(count, self.noise, self.seed))]
        each = -(-count // len(posterior.members))
        return [
            (member, Sampling(each, self.noise, fold_seed(self.seed, number)))
            for number, member in enumerate(posterior.members)
        ]


def checked_rows(held_out: tuple[Inputs, Tensor], posterior: Posterior) -> tuple[InputRows, Tensor]:
    """Inputs and targets where the posterior lives.

    Raises:
        InvalidValue: There are none.
        InvalidData: They do not fit one another, or are not finite.
    """
    given = tuple(held_out) if isinstance(held_out, tuple | list) else ()
    if len(given) != 2 or not isinstance(given[1], Tensor) or not _may_be_inputs(given[0]):
        raise InvalidValue(
            "held_out",
            type(held_out).__name__,
            "must be a pair: inputs and a tensor of targets that no step was trained on",
            "hold out 5 to 10 % of the training rows",
        )
    x = _on(posterior.device, given[0])
    y = given[1].to(posterior.device)
    first = x if isinstance(x, Tensor) else x.tensors[0]
    if first.dim() < 1 or y.dim() < 1 or len(x) != len(y) or len(x) < 2:
        shapes = f"{tuple(first.shape)} and {tuple(y.shape)}"
        raise InvalidData("held_out shapes", shapes, "must have the same rows, two at least")
    # Of several inputs one may be a mask to be added, whose -inf is meant.
    for name, part in (("inputs", x), ("targets", y)):
        if isinstance(part, Several):
            continue
        if part.is_floating_point() and not bool(torch.isfinite(part).all()):
            raise InvalidData(f"held-out {name}", None, "must be finite", "remove the rows")
    return x, y


def _may_be_inputs(given: object) -> bool:
    return isinstance(given, Tensor | Mapping | list | tuple) or is_dataclass(given)


def _on(device: torch.device, given: Inputs) -> InputRows:
    if isinstance(given, Tensor):
        return given.to(device)
    rows = input_rows(given)
    return rows if isinstance(rows, Tensor) else rows.each(lambda tensor: tensor.to(device))
