"""Several methods that train side by side and predict together, behind the protocol of one.

Members differ by support, weights and noise, so that their disagreement is uncertainty about the
function. Each has noise of its own: what a member learns does not depend on how many others there
are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.core.swap import SwapInfo
from gossamer.errors import InvalidValue
from gossamer.inference.batch import Batch
from gossamer.inference.method import Method, StepInfo
from gossamer.inference.state import not_own_state, require_own_state
from gossamer.likelihoods import Likelihood
from gossamer.ops import fold_seed
from gossamer.prediction import Posterior, mixture


class Members:
    """M methods behind the protocol of one: a step steps each of them on the same batch.

    Each leaves out the examples that the batch says it must (``Batch.left_out``).

    Args:
        name: Key of the method in the registry.
        starts: Build the members, each by a function that is called with that member's noise.
        seed: Member k starts with the noise of (seed, k), whatever their number.
        noise_seed: Steps of member k have the noise of (noise_seed, k); ``None`` goes on with the
            noise that it was built with.
        weights: Weights of the dense network that sparsity is told against; all members' own
            together if ``None``.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
        >>> method = gossamer.build("rigl", net, num_data=60, total_steps=20, members=2)
        >>> info = method.step((torch.randn(8, 4), torch.zeros(8, dtype=torch.int64)))
        >>> len(method.members), method.posterior().size["nnz"]
        (2, 6)
    """

    def __init__(
        self,
        name: str,
        starts: Sequence[Callable[[], Method]],
        seed: int,
        noise_seed: int | None = None,
        weights: int | None = None,
    ) -> None:
        self.name = name
        self.weights = weights
        self._noises = _noises(seed, len(starts))
        self.members: list[Method] = []
        for start, noise in zip(starts, self._noises, strict=True):
            with noise.active():
                self.members.append(start())
        if noise_seed is not None:
            self._noises = _noises(noise_seed, len(starts))
        self.model = Networks([member.model for member in self.members])

    @property
    def likelihood(self) -> Likelihood:
        """That of the first member; each has its own, which learns its own noise."""
        return self.members[0].likelihood

    @property
    def steps(self) -> int:
        """Steps taken, by all of them."""
        found = {int(getattr(member, "steps", 0)) for member in self.members}
        if len(found) > 1:
            raise InvalidValue(
                "members",
                sorted(found),
                "have taken different numbers of steps: one of them failed",
                "load the last saved state",
            )
        return found.pop()

    def step(self, batch: Batch | tuple[Tensor, ...]) -> StepInfo:
        """One step of every member, on what it may see; the numbers are means over them."""
        batch = Batch.of(batch, for_members=True)
        _ = self.steps  # a member that failed must not be left behind
        infos = []
        for number, (member, noise) in enumerate(zip(self.members, self._noises, strict=True)):
            with noise.active():
                infos.append(member.step(batch.seen_by(number)))
        return joined(infos)

    def posterior(self) -> Posterior:
        """The even mixture of the members' posteriors."""
        return mixture([member.posterior() for member in self.members], weights=self.weights)

    def state_dict(self) -> dict[str, Any]:
        """See ``Method.state_dict``; with the noise of every member."""
        members = [
            {"state": member.state_dict(), "noise": noise.state}
            for member, noise in zip(self.members, self._noises, strict=True)
        ]
        return {"method": self.name, "members": members}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See ``Method.load_state_dict``."""
        saved = state.get("members")
        if state.get("method") != self.name or not isinstance(saved, list):
            raise not_own_state(self.name, state.get("method"))
        if len(saved) != len(self.members):
            raise InvalidValue(
                "state",
                f"{len(saved)} members",
                f"was not saved by a {self.name} run of {len(self.members)} members",
                "load the state of such a run",
            )
        for member, one in zip(self.members, saved, strict=True):
            stepped: Any = member  # all are asked before the first is changed
            require_own_state(stepped, one["state"])
        for member, noise, one in zip(self.members, self._noises, saved, strict=True):
            member.load_state_dict(one["state"])
            noise.state = {kind: held.cpu().clone() for kind, held in one["noise"].items()}


class Networks(nn.ModuleList):
    """The networks of all members; their outputs, one above the other."""

    def forward(self, *inputs: Any) -> Tensor:
        """``[M, B, ...]``: what each network makes of the inputs. It is no prediction."""
        return torch.stack([network(*inputs) for network in self])


class _Noise:
    """torch's generators as one member sees them.

    Args:
        seed: Where they begin.
    """

    def __init__(self, seed: int) -> None:
        with _kept():
            torch.manual_seed(seed)
            self.state = _generators()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Inside, the generators go on where this member left them; outside they are untouched."""
        with _kept():
            _set_generators(self.state)
            try:
                yield
            finally:
                self.state = _generators()


def _noises(seed: int, count: int) -> list[_Noise]:
    return [_Noise(fold_seed(seed, number)) for number in range(count)]


@contextmanager
def _kept() -> Iterator[None]:
    before = _generators()
    try:
        yield
    finally:
        _set_generators(before)


def _generators() -> dict[str, Tensor]:
    """The state of torch's generator, and of the GPU's where one is in use."""
    found = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found["cuda"] = torch.cuda.get_rng_state()
    elif torch.backends.mps.is_available():
        found["mps"] = torch.mps.get_rng_state()
    return found


def _set_generators(state: dict[str, Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])


def joined(infos: Sequence[StepInfo]) -> StepInfo:
    """Means of what members report, and all their swaps as one."""

    def mean(name: str) -> float:
        return float(sum(getattr(info, name) for info in infos) / len(infos))

    names = ("loss", "nll", "kl", "kl_weight", "lr")
    return StepInfo(
        **{name: mean(name) for name in names},
        accuracy=None if infos[0].accuracy is None else mean("accuracy"),
        swap=_swaps([info.swap for info in infos]),
        note=_notes([info.note for info in infos]),
    )


def _notes(notes: Sequence[str | None]) -> str | None:
    told = [f"member {number}: {note}" for number, note in enumerate(notes) if note is not None]
    return "; ".join(told) or None


def _swaps(swaps: Sequence[SwapInfo | None]) -> SwapInfo | None:
    """All members' swaps as one; the layer ``fc1`` of member 1 is called ``1.fc1``."""
    found = {number: swap for number, swap in enumerate(swaps) if swap is not None}
    if not found:
        return None
    first = next(iter(found.values()))
    layers = {
        f"{number}.{name}": layer
        for number, swap in found.items()
        for name, layer in swap.layers.items()
    }
    return SwapInfo(first.step, first.fraction, layers)
