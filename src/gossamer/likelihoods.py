"""Likelihoods: how network outputs and targets meet.

Each gives one log-likelihood per example, summed over its target's elements.
"""

from __future__ import annotations

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

    Output ``[B, C]`` or ``[B, C, ...]``, target int64 ``[B]`` or ``[B, ...]``.
    """

    name = "categorical"
    has_labels = True

    def log_lik(self, output: Tensor, target: Tensor) -> Tensor:
        """Sum over positions of log softmax at the target class."""
        check_labels(output, target)
        logits = output.float() if _is_half(output) else output
        return -_per_example(F.cross_entropy(logits, target.long(), reduction="none"))

    def accuracy(self, output: Tensor, target: Tensor) -> float:
        """Share of positions whose largest logit is the target."""
        return float((output.argmax(1) == target).float().mean())


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
        rule = f"must be the output's shape {tuple(output.shape)} without its class axis"
        raise InvalidData("target shape", tuple(target.shape), rule)
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
