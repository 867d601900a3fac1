"""The three simulated examples of cvadam2023, Sec. 4.3: few variables matter among many.

``e, z_1 .. z_p`` are independent standard normals truncated to [-10, 10] and
``x_i = (e + z_i) / √2``, so that every pair of variables has correlation 1/2. The target depends on
the first four or five variables only. Variable i of the paper is column i - 1, named ``x{i}``.

The test set is independent of the training set; the authors' own shares its seed, and so its noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gossamer.data.build import RawData, build_dataset
from gossamer.data.dataset import DataSet
from gossamer.data.prepare.target import Task
from gossamer.errors import InvalidData, InvalidValue, UnknownName

Variant = Literal["paper", "script"]
VARIANTS: tuple[Variant, ...] = ("paper", "script")

# Where e and z_i are cut off. P(|z| > 10) is 1.5e-23: it states the law, no draw ever meets it.
BOUND = 10.0
# Example 3: the value above which a row is of class 1.
THRESHOLD = 3.0

# Rows drawn together in float64: bounds the memory beside the float32 result.
_BLOCK = 1024
_TRAIN, _TEST = 0, 1

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Example:
    """One simulated example.

    Attributes:
        name: The name ``gossamer.data.load`` takes.
        number: Its number in the paper.
        task: ``"regression"`` or ``"classification"``.
        num_features: The paper's p, the number of variables unless told.
        true_variables: Columns that the target depends on, counted from 0.
        hidden: Widths of the hidden layers of the paper's network (ReLU).
        formula: The paper's function of the true variables, x [N, p] -> [N], without noise.
        script_formula: The authors' script's; differs in Example 1 only.
    """

    name: str
    number: int
    task: Task
    num_features: int
    true_variables: tuple[int, ...]
    hidden: tuple[int, ...]
    formula: Callable[[Floats], Floats]
    script_formula: Callable[[Floats], Floats]

    def widths(self, num_features: int | None = None) -> tuple[int, ...]:
        """Layer widths of the paper's network, from the inputs to its single output."""
        return (self.num_features if num_features is None else num_features, *self.hidden, 1)

    def signal(self, x: NDArray[Any], variant: Variant = "paper") -> Floats:
        """The target without noise; for classes, what is compared with ``THRESHOLD``.

        Args:
            x: [N, p], p no less than the number of true variables.
            variant: ``"paper"`` or ``"script"``, see :func:`make`.

        Returns:
            float64 [N].
        """
        if variant not in VARIANTS:
            raise UnknownName("variant", variant, VARIANTS)
        if x.ndim != 2 or x.shape[1] < len(self.true_variables):
            rule = f"must be [N, p] with p >= {len(self.true_variables)}"
            raise InvalidData("x", f"shape {x.shape}", rule)
        chosen = self.formula if variant == "paper" else self.script_formula
        return chosen(x[:, : len(self.true_variables)].astype(np.float64))


@dataclass(frozen=True, eq=False)
class Simulation:
    """Raw training and test set of an example.

    Attributes:
        example: What was drawn.
        variant: ``"paper"`` or ``"script"``.
        seed: What it was drawn with.
        x_train: float32 [N, p]; likewise ``x_test``.
        y_train: float32 [N], or int64 [N] of 0 and 1; an exact function of the float32 inputs
            (and the noise). Likewise ``y_test``.
    """

    example: Example
    variant: Variant
    seed: int
    x_train: NDArray[np.float32]
    y_train: NDArray[Any]
    x_test: NDArray[np.float32]
    y_test: NDArray[Any]

    @property
    def num_features(self) -> int:
        """Number of variables, p."""
        return int(self.x_train.shape[1])

    def raw(self) -> RawData:
        """As a reader returns it: both parts together, columns named ``x1`` .. ``xp``."""
        x = np.concatenate([self.x_train, self.x_test])
        num_train = len(self.x_train)
        return RawData(
            self.example.name,
            {f"x{i + 1}": x[:, i] for i in range(self.num_features)},
            np.concatenate([self.y_train, self.y_test]),
            np.arange(num_train, dtype=np.int64),
            np.arange(num_train, len(x), dtype=np.int64),
            task=self.example.task,
            label_names=("0", "1") if self.example.task == "classification" else None,
            notes=(f"drawn with seed {self.seed}",),
        )

    def dataset(
        self,
        *,
        validation_fraction: float = 0.1,
        seed: int = 0,
        limit_train: int | None = None,
    ) -> DataSet:
        """Cuts validation from the training set and standardises, as for every other set.

        Args:
            validation_fraction: Share of validation among training and validation, in [0, 1).
            seed: Decides which rows validate; it draws no data.
            limit_train: At most this many training examples.
        """
        return build_dataset(
            self.raw(),
            validation_fraction=validation_fraction,
            seed=seed,
            limit_train=limit_train,
        )


def make(
    example: Example | str,
    num_train: int = 10_000,
    num_test: int = 1_000,
    num_features: int | None = None,
    *,
    seed: int = 0,
    variant: Variant = "paper",
) -> Simulation:
    """Draws an example.

    Training set, test set, inputs and noise have generators of their own: the training set does not
    depend on ``num_test``, nor inputs and noise on ``variant``.

    Args:
        example: An example, or a name of ``EXAMPLES``.
        num_train: Rows of the training set.
        num_test: Rows of the test set.
        num_features: p, from the number of true variables up; the paper's unless told.
        seed: Two seeds, or two examples, give independent data.
        variant: ``"paper"``, or ``"script"`` for the formula of the authors' script, which closes
            the second tanh of Example 1 before the last minus.
    """
    if isinstance(example, str):
        if example not in EXAMPLES:
            raise UnknownName("example", example, list(EXAMPLES))
        example = EXAMPLES[example]
    if variant not in VARIANTS:
        raise UnknownName("variant", variant, VARIANTS)
    num_features = example.num_features if num_features is None else num_features
    _check_count("num_train", num_train, 1)
    _check_count("num_test", num_test, 1)
    needed = len(example.true_variables)
    _check_count("num_features", num_features, needed, f"{example.name} has {needed} true ones")
    _check_count("seed", seed, 0)
    x_train, y_train = _draw(example, _TRAIN, num_train, num_features, seed, variant)
    x_test, y_test = _draw(example, _TEST, num_test, num_features, seed, variant)
    return Simulation(example, variant, seed, x_train, y_train, x_test, y_test)


def truncated_normal(rng: np.random.Generator, shape: tuple[int, ...], bound: float) -> Floats:
    """Standard normals given that they lie in [-bound, bound], by rejection, which is exact.

    Args:
        rng: Where they come from.
        shape: Their shape.
        bound: Above 0; the time grows as 1/bound where it is small.
    """
    draws = rng.standard_normal(shape)
    flat = draws.reshape(-1)  # a view: what is drawn again lands in `draws`
    outside = np.flatnonzero(np.abs(flat) > bound)
    while outside.size:
        flat[outside] = rng.standard_normal(outside.size)
        outside = outside[np.abs(flat[outside]) > bound]
    return draws


def _draw(
    example: Example, part: int, num_rows: int, num_features: int, seed: int, variant: Variant
) -> tuple[NDArray[np.float32], NDArray[Any]]:
    streams = np.random.SeedSequence(seed, spawn_key=(example.number, part)).spawn(2)
    for_inputs, for_noise = (np.random.default_rng(stream) for stream in streams)
    x = np.empty((num_rows, num_features), dtype=np.float32)
    for start in range(0, num_rows, _BLOCK):
        rows = x[start : start + _BLOCK]
        draws = truncated_normal(for_inputs, (len(rows), 1 + num_features), BOUND)
        rows[:] = (draws[:, :1] + draws[:, 1:]) / np.sqrt(2.0)
    # From the rounded inputs, so that whoever holds x can recompute a label without a doubt.
    signal = example.signal(x, variant)
    if example.task == "classification":
        return x, (signal > THRESHOLD).astype(np.int64)
    return x, (signal + for_noise.standard_normal(num_rows)).astype(np.float32)


def _check_count(name: str, value: int, lowest: int, hint: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise InvalidValue(name, value, f"must be an integer >= {lowest}", hint)


def _example1(x: Floats) -> Floats:
    inner = np.tanh(x[:, 2] - 2 * x[:, 3]) - np.tanh(2 * x[:, 4])
    y: Floats = np.tanh(2 * np.tanh(2 * x[:, 0] - x[:, 1])) + 2 * np.tanh(inner)
    return y


def _example1_script(x: Floats) -> Floats:
    inner = np.tanh(x[:, 2] - 2 * x[:, 3])
    first = np.tanh(2 * np.tanh(2 * x[:, 0] - x[:, 1]))
    y: Floats = first + 2 * np.tanh(inner) - np.tanh(2 * x[:, 4])
    return y


def _example2(x: Floats) -> Floats:
    y: Floats = 5 * x[:, 1] / (1 + x[:, 0] ** 2) + 5 * np.sin(x[:, 2] * x[:, 3]) + 2 * x[:, 4]
    return y


def _example3(x: Floats) -> Floats:
    y: Floats = np.exp(x[:, 0]) + x[:, 1] ** 2 + 5 * np.sin(x[:, 2] * x[:, 3])
    return y


_FIRST_FIVE = (0, 1, 2, 3, 4)

_ROWS = (
    Example(
        *("cvadam_example1", 1, "regression", 1000, _FIRST_FIVE, (5, 3)),
        *(_example1, _example1_script),
    ),
    Example(
        *("cvadam_example2", 2, "regression", 2000, _FIRST_FIVE, (6, 4, 3)),
        *(_example2, _example2),
    ),
    # The paper prints a network of 2000 inputs beside a formula that ends at x_1000.
    Example(
        *("cvadam_example3", 3, "classification", 1000, _FIRST_FIVE[:4], (6, 4, 3)),
        *(_example3, _example3),
    ),
)

EXAMPLES: dict[str, Example] = {example.name: example for example in _ROWS}
