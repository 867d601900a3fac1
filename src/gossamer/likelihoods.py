"""Likelihoods: how network outputs and targets meet.

Each gives one log-likelihood per example, summed over its target's elements.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gossamer.core.gaussian import raw_from_std, std_from_raw
from gossamer.errors import InvalidData, InvalidValue, UnknownName

NoiseStd = float | Literal["learn", "head"]


class Likelihood(nn.Module):
    """p(target | output). Subclasses may own parameters, which the method trains along."""

    name = "likelihood"
    has_labels = False
    """Whether targets are labels, whose log-likelihood has a bounded curvature."""
    has_noise = False
    """Whether there is a scale of noise beside the output."""

    def options(self) -> dict[str, Any]:
        """What ``make_likelihood`` needs beside the name to make another of its kind."""
        return {}

    def log_lik(self, output: Tensor, target: Tensor) -> Tensor:
        """Log-likelihood of each example: ``[B]``."""
        raise InvalidValue("likelihood", self.name, "must define log_lik")

    def accuracy(self, output: Tensor, target: Tensor) -> float | None:
        """Share of right labels where there are labels, else ``None``."""
        return None


class Categorical(Likelihood):
    """Classes from logits.

    Output ``[B, C]`` or, for a class per position, ``[B, C, ...]`` as in ``F.cross_entropy``; with
    ``class_dim=-1`` ``[B, ..., C]``, as language models and token taggers give. Target int64: the
    output's shape without its class axis.

    Args:
        class_dim: The axis of the output that holds the classes; not 0, which holds the rows.
            ``None``: not known. Training then takes 1; prediction refuses an output that has more
            than two axes, unless it is that of a convolutional network for images.

    Example:
        >>> tokens, target = torch.randn(2, 7, 5), torch.zeros(2, 7, dtype=torch.long)
        >>> Categorical(class_dim=-1).log_lik(tokens, target).shape
        torch.Size([2])
    """

    name = "categorical"
    has_labels = True

    def __init__(self, class_dim: int | None = 1) -> None:
        super().__init__()
        if class_dim is not None and (type(class_dim) is not int or class_dim == 0):
            raise InvalidValue(
                "class_dim",
                class_dim,
                "must be the number of an axis other than 0, which holds the rows",
                "use -1 for [B, ..., C] and 1 for [B, C, ...]",
            )
        self.class_dim = class_dim

    def options(self) -> dict[str, Any]:
        """``class_dim`` where it is not 1."""
        return {} if self.class_dim == 1 else {"class_dim": self.class_dim}

    def at(self, class_dim: int | None) -> Categorical:
        """The same likelihood for outputs that hold their classes elsewhere."""
        checked = Categorical(class_dim).class_dim
        found = copy.copy(self)
        found.class_dim = checked
        return found

    def class_axis(self, dims: int) -> int:
        """The class axis, counted from 0, of an output with ``dims`` axes; 1 where not known.

        Raises:
            InvalidData: The output has no such axis beside that of its rows.
        """
        given = 1 if self.class_dim is None else self.class_dim
        axis = given + dims if given < 0 else given
        if not 1 <= axis < dims:
            rule = f"must be an axis of the output, which has {dims}, and not its first"
            raise InvalidData("class_dim", given, rule)
        return axis

    def classes_first(self, output: Tensor) -> Tensor:
        """The output as ``[B, C, ...]``, a view."""
        if output.dim() < 2:  # named by who checks labels
            return output
        axis = self.class_axis(output.dim())
        return output if axis == 1 else output.movedim(axis, 1)

    def log_lik(self, output: Tensor, target: Tensor) -> Tensor:
        """Sum over positions of log softmax at the target class."""
        output = self.classes_first(output)
        check_labels(output, target)
        logits = output.float() if _is_half(output) else output
        return -_per_example(F.cross_entropy(logits, target.long(), reduction="none"))

    def accuracy(self, output: Tensor, target: Tensor) -> float:
        """Share of positions whose largest logit is the target."""
        return float((self.classes_first(output).argmax(1) == target).float().mean())


class Bernoulli(Likelihood):
    """Two classes from one logit.

    Output ``[B]`` or ``[B, 1]`` (or any shape of the target), target 0 or 1.
    """

    name = "bernoulli"
    has_labels = True

    def log_lik(self, output: Tensor, target: Tensor) -> Tensor:
        """Sum over elements of log sigmoid(± logit)."""
        logit, target = match(output, target)
        if bool(((target != 0) & (target != 1)).any()):
            wrong = float(target[(target != 0) & (target != 1)][0])
            raise InvalidData("target", wrong, "a bernoulli target must be 0 or 1")
        return -_per_example(F.binary_cross_entropy_with_logits(logit, target, reduction="none"))

    def accuracy(self, output: Tensor, target: Tensor) -> float:
        """Share of elements on the right side of logit 0."""
        logit, target = match(output, target)
        return float(((logit > 0) == (target > 0.5)).float().mean())


class Gaussian(Likelihood):
    """Real targets: N(output, noise_std²).

    Args:
        noise_std: A number fixes it; ``"learn"`` learns one for all examples; ``"head"`` reads it
            from the network, whose output then has twice the target's columns: first the means,
            then the softplus pre-images of the noise.
    """

    name = "gaussian"
    has_noise = True

    def __init__(self, noise_std: NoiseStd = "learn") -> None:
        super().__init__()
        if isinstance(noise_std, str):
            if noise_std not in ("learn", "head"):
                raise UnknownName("noise_std", noise_std, ("learn", "head", "a positive number"))
        elif not (noise_std > 0.0 and math.isfinite(noise_std)):
            raise InvalidValue("noise_std", noise_std, "must be positive, 'learn' or 'head'")
        self.noise_std = noise_std
        if noise_std == "learn":
            # Targets are standardised, so a noise of half their spread is neutral.
            self.raw_noise_std = nn.Parameter(raw_from_std(torch.tensor(0.5)))

    def options(self) -> dict[str, Any]:
        """``noise_std`` as it was given."""
        return {"noise_std": self.noise_std}

    def mean_and_noise(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and noise std of the target, each ``[B]`` or ``[B, D]``."""
        if self.noise_std == "head":
            if output.shape[-1] % 2:
                raise InvalidData(
                    "output",
                    tuple(output.shape),
                    "needs an even number of columns: means, then raw noise",
                )
            mean, raw = output.chunk(2, dim=-1)
            return mean, std_from_raw(raw)
        if self.noise_std == "learn":
            return output, std_from_raw(self.raw_noise_std).expand_as(output)
        assert not isinstance(self.noise_std, str)
        return output, torch.full_like(output, self.noise_std)

    def log_lik(self, output: Tensor, target: Tensor) -> Tensor:
        """Sum over elements of the normal log-density."""
        mean, std = self.mean_and_noise(output)
        matched, target = match(mean, target)
        z = (target - matched) / std.reshape(matched.shape)
        return _per_example(
            -0.5 * z.square() - std.reshape(matched.shape).log() - 0.5 * math.log(2.0 * math.pi)
        )


class Poisson(Likelihood):
    """Counts from log rates.

    Output ``[B]`` or ``[B, 1]`` (or the target's shape), target a whole number ≥ 0.
    """

    name = "poisson"

    def log_lik(self, output: Tensor, target: Tensor) -> Tensor:
        """Sum over elements of the Poisson log-probability."""
        log_rate, target = match(output, target)
        wrong = (target < 0) | (target != target.round()) | ~torch.isfinite(target)
        if bool(wrong.any()):
            raise InvalidData(
                "target", float(target[wrong][0]), "a poisson target must be a whole number ≥ 0"
            )
        return _per_example(target * log_rate - log_rate.exp() - torch.lgamma(target + 1.0))


LIKELIHOODS: dict[str, type[Likelihood]] = {
    kind.name: kind for kind in (Categorical, Bernoulli, Gaussian, Poisson)
}


def make_likelihood(spec: str | Likelihood, **options: Any) -> Likelihood:
    """The likelihood of that name with its options; an instance passes through.

    Example:
        >>> make_likelihood("gaussian", noise_std=0.1).name
        'gaussian'
    """
    if isinstance(spec, Likelihood):
        return spec
    if spec not in LIKELIHOODS:
        raise UnknownName("likelihood", str(spec), list(LIKELIHOODS))
    try:
        return LIKELIHOODS[spec](**options)
    except TypeError as error:
        raise InvalidValue("likelihood options", options, f"do not fit {spec}: {error}") from error


def check_labels(output: Tensor, target: Tensor) -> None:
    """Raise unless ``target`` holds class numbers that ``output`` has columns for."""
    if target.is_floating_point() or target.dtype == torch.bool:
        raise InvalidData(
            "target dtype", target.dtype, "class labels must be integers", "use target.long()"
        )
    if output.dim() < 2 or target.shape != (output.shape[0], *output.shape[2:]):
        rule = f"must be the output's shape {tuple(output.shape)} without its class axis, 1"
        last = output.dim() > 2 and target.shape == output.shape[:-1]
        hint = "give the likelihood class_dim=-1: gossamer.Categorical(class_dim=-1)"
        raise InvalidData("target shape", tuple(target.shape), rule, hint if last else "")
    classes = output.shape[1]
    if target.numel() and (int(target.min()) < 0 or int(target.max()) >= classes):
        wrong = int(target.min()) if int(target.min()) < 0 else int(target.max())
        raise InvalidData(
            "target", wrong, f"labels must lie in [0, {classes})", "check the number of classes"
        )


def match(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Output and target of one shape.

    A single column may stand with or without its axis. Never broadcasts.
    """
    output = output.float() if _is_half(output) else output
    target = target.to(output.dtype)
    if output.shape == target.shape:
        return output, target
    if output.shape == (*target.shape, 1) or (*output.shape, 1) == target.shape:
        return output.reshape(target.shape), target
    raise InvalidData(
        "target shape", tuple(target.shape), f"must fit the output's shape {tuple(output.shape)}"
    )


def _per_example(values: Tensor) -> Tensor:
    return values.flatten(1).sum(1) if values.dim() > 1 else values


def _is_half(x: Tensor) -> bool:
    return x.dtype in (torch.float16, torch.bfloat16)
