"""The data sets, each with its network and length of training: the same for every contender."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gossamer.train import RunConfig


@dataclass(frozen=True)
class Problem:
    """A data set to learn.

    Attributes:
        key: Its name in files.
        label: Its name for a reader.
        config: What all contenders share; a tenth of the training rows is held out for
            temperatures and last layers.
        is_image: Whether the criteria of the image sets are for it.
        splits: Standard splits that seeds go through, if it has any.
    """

    key: str
    label: str
    config: RunConfig
    is_image: bool = True
    splits: int = 0

    def seeded(self, seed: int, data_dir: str | None, device: str) -> RunConfig:
        """The config of one repeat."""
        split = seed % self.splits if self.splits else 0
        return replace(self.config, seed=seed, split=split, data_dir=data_dir, device=device)


_LENET = RunConfig(model="lenet", batch_size=128)
_TABLE = RunConfig(model="mlp", batch_size=64, epochs=150)

PROBLEMS: tuple[Problem, ...] = (
    Problem("digits", "digits, MLP", RunConfig(data="digits", model="mlp", epochs=40)),
    Problem("energy", "energy, MLP", replace(_TABLE, data="energy"), False, splits=20),
    Problem("concrete", "concrete, MLP", replace(_TABLE, data="concrete"), False, splits=20),
    Problem(
        "protein",
        "protein (10,000), MLP",
        replace(_TABLE, data="protein", limit_train=10_000, epochs=20),
        False,
        splits=5,
    ),
    Problem(
        "mnist",
        "MNIST (8,000), LeNet",
        replace(
            _LENET, data="mnist", limit_train=8_000, epochs=12, ood=("notmnist", "fashion_mnist")
        ),
    ),
    Problem(
        "fashion",
        "Fashion-MNIST (20,000), LeNet",
        replace(
            _LENET, data="fashion_mnist", limit_train=20_000, epochs=10, ood=("notmnist", "mnist")
        ),
    ),
    Problem(
        "cifar10",
        "CIFAR-10 (10,000), ResNet-20",
        RunConfig(
            data="cifar10",
            model="resnet20",
            batch_size=128,
            limit_train=10_000,
            epochs=20,
            ood=("cifar100", "svhn"),
        ),
    ),
)
"""The quick ones first, so that an interrupted experiment has something to show."""

SCALES: dict[str, tuple[str, ...]] = {
    "small": tuple(problem.key for problem in PROBLEMS),
    "quick": ("digits",),
    "grey": ("digits", "mnist", "fashion"),
    "tables": ("energy", "concrete", "protein"),
    "cifar": ("cifar10",),
}
"""Which of them a scale takes; rows of one scale serve the others."""


def problems_of(scale: str) -> tuple[Problem, ...]:
    """The problems of a scale, in order."""
    return tuple(problem for problem in PROBLEMS if problem.key in SCALES[scale])
