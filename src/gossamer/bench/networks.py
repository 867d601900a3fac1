"""The networks of the benchmarks, and one training step of each kind of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam
from torch.optim.optimizer import Optimizer

from gossamer.bench.dense_vi import dense_kl, to_dense_vi
from gossamer.inference import ELBO, Subspace, parameter_groups
from gossamer.models import build_model
from gossamer.nn import to_bayesian
from gossamer.ops import AUTO

NUM_DATA = 50_000
LR = 1e-4
SWAP_STEP = 10**6
"""A swap happens where the measurement says, by a count set by hand, and never by itself."""
SWAPS_PER_STEP = 1 / 100
"""The default of ``Subspace``: a swap every 100 steps."""


@dataclass(frozen=True)
class Network:
    """A network and its data.

    Attributes:
        name: For a reader.
        model: Key of ``gossamer.models.MODELS``.
        input_shape: Of one example.
        hidden: Widths, of a perceptron.
    """

    name: str
    model: str
    input_shape: tuple[int, ...]
    hidden: tuple[int, ...] = ()

    def build(self) -> nn.Module:
        """The plain torch network."""
        options: dict[str, object] = {"hidden": self.hidden} if self.hidden else {}
        return build_model(self.model, input_shape=self.input_shape, output_size=10, **options)

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """Random examples and classes."""
        return torch.randn(size, *self.input_shape), torch.randint(10, (size,))


RESNET = Network("ResNet-18", "resnet18", (3, 32, 32))
MLP = Network("MLP 784-1024-1024-10", "mlp", (784,), (1024, 1024))
LENET = Network("LeNet", "lenet", (1, 28, 28))
QUICK_RESNET = Network("ResNet-20", "resnet20", (3, 8, 8))
QUICK_MLP = Network("MLP 64-64-64-10", "mlp", (64,), (64, 64))
QUICK_LENET = Network("LeNet 16x16", "lenet", (1, 16, 16))


def networks(*, quick: bool) -> tuple[Network, Network]:
    """The residual network and the perceptron."""
    return (QUICK_RESNET, QUICK_MLP) if quick else (RESNET, MLP)


def channels_last(model: nn.Module) -> nn.Module:
    """A copy whose weights lie channels last."""
    twin: nn.Module = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return twin


class DenseStep:
    """Training steps of a dense network: forward, loss and KL, backward, Adam.

    Args:
        model: The network.
        kl: Its KL; ``None`` for a deterministic one.
        batch: Inputs and classes.
    """

    def __init__(
        self,
        model: nn.Module,
        kl: Callable[[nn.Module], Tensor] | None,
        batch: tuple[Tensor, Tensor],
    ) -> None:
        self.model = model.train()
        self.kl = kl
        self.optimizer: Optimizer = Adam(model.parameters(), lr=LR)
        self.x, self.y = batch

    @classmethod
    def variational(cls, model: nn.Module, batch: tuple[Tensor, Tensor]) -> DenseStep:
        """Dense VI, whatever ``model`` is."""
        return cls(to_dense_vi(model), dense_kl, batch)

    def loss(self) -> Tensor:
        """The objective on the batch."""
        loss = F.cross_entropy(self.model(self.x), self.y)
        return loss if self.kl is None else loss + self.kl(self.model) / NUM_DATA

    def plain(self) -> None:
        """One step."""
        loss = self.loss()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


class SparseStep:
    """Training steps of a sparse Bayesian network, as the README has them.

    Args:
        model: The plain torch network.
        sparsity: Share of weights removed.
        distribution: Over the layers.
        batch: Inputs and classes.
        backend: Engine; ``auto`` is what a user gets.
    """

    def __init__(
        self,
        model: nn.Module,
        sparsity: float,
        distribution: str,
        batch: tuple[Tensor, Tensor],
        backend: str = AUTO,
    ) -> None:
        self.model = to_bayesian(
            model, sparsity, sparsity_distribution=distribution, backend=backend
        ).train()
        self.optimizer: Optimizer = Adam(parameter_groups(self.model, lr=LR))
        self.elbo = ELBO(self.model, NUM_DATA)
        # So long a run is always at its beginning, where swaps are largest.
        self.subspace = Subspace(
            self.model, self.optimizer, total_steps=1000 * SWAP_STEP, update_every=SWAP_STEP
        )
        self.x, self.y = batch

    def loss(self) -> Tensor:
        """The objective on the batch."""
        return self.elbo(F.cross_entropy(self.model(self.x), self.y))

    def plain(self) -> None:
        """A step without a swap."""
        loss = self.loss()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.subspace.step()

    def arm(self) -> None:
        """Make the next step one with a swap."""
        self.subspace.load_state_dict({**self.subspace.state_dict(), "steps": SWAP_STEP - 1})

    def swap(self) -> None:
        """A step with a swap: arming, a backward pass that catches scores, the exchange."""
        self.arm()
        self.plain()


def with_swaps(plain: float, swap: float) -> float:
    """The cost of an average step, of which every hundredth swaps."""
    return (1 - SWAPS_PER_STEP) * plain + SWAPS_PER_STEP * swap
