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

from gossamer.core.families import negative_binomial_log_prob, student_log_density
from gossamer.core.gaussian import raw_from_std, std_from_raw
from gossamer.errors import InvalidData, InvalidValue, UnknownName

NoiseStd = float | Literal["learn", "head"]
Learnt = float | Literal["learn"]

NOISE_START = 0.5
"""Std at which a learnt noise starts that nobody told where."""

_LEAST_DF = 2.0
"""Of Student's t: at and below it there is no variance, and no standard deviation to report."""


class Likelihood(nn.Module):
    """p(target | output). Subclasses may own parameters, which the method trains along."""

    name = "likelihood"
    has_labels = False
    """Whether targets are labels, whose log-likelihood has a bounded curvature."""
    has_noise = False
    """Whether there is a scale of noise beside the output."""
    has_counts = False
    """Whether targets are counts, whole numbers that must not be shifted or scaled."""

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
        start: Where a learnt one starts. Targets are standardised, so half their spread is neutral;
            ``gossamer.train`` starts at what a linear map leaves over.
    """

    name = "gaussian"
    has_noise = True

    def __init__(self, noise_std: NoiseStd = "learn", start: float = NOISE_START) -> None:
        super().__init__()
        if isinstance(noise_std, str):
            if noise_std not in ("learn", "head"):
                raise UnknownName("noise_std", noise_std, ("learn", "head", "a positive number"))
        elif not (noise_std > 0.0 and math.isfinite(noise_std)):
            raise InvalidValue("noise_std", noise_std, "must be positive, 'learn' or 'head'")
        if not (start > 0.0 and math.isfinite(start)):
            raise InvalidValue("start", start, "must be positive: it is a standard deviation")
        self.noise_std, self.start = noise_std, float(start)
        if noise_std == "learn":
            self.raw_noise_std = nn.Parameter(raw_from_std(torch.tensor(self.start)))

    def options(self) -> dict[str, Any]:
        """``noise_std`` as it was given, ``start`` where it is not 0.5."""
        own = {} if self.start == NOISE_START else {"start": self.start}
        return {"noise_std": self.noise_std, **own}

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


class Heteroscedastic(Gaussian):
    """Real targets with a noise for every row: N(output, noise²), both read from the network.

    The same as ``Gaussian("head")``: the output has twice the target's columns, first the means,
    then the softplus pre-images of the noise.

    Example:
        >>> Heteroscedastic().log_lik(torch.zeros(5, 2), torch.zeros(5)).shape
        torch.Size([5])
    """

    name = "heteroscedastic"

    def __init__(self) -> None:
        super().__init__("head")

    def options(self) -> dict[str, Any]:
        """None."""
        return {}


class StudentT(Likelihood):
    """Real targets with outliers: output + scale · t, Student's t with ν degrees of freedom.

    Its tails fall as a power, so that a few wild targets pull less on the mean than under normal
    noise. The noise of a prediction is its standard deviation, scale · √(ν/(ν − 2)).

    Args:
        scale: A number fixes it; ``"learn"`` learns one for all examples.
        degrees_of_freedom: ν > 2, since below there is no variance: a number, or ``"learn"``. Large
            ones are normal noise.

    Example:
        >>> likelihood = StudentT(scale=0.5, degrees_of_freedom=4.0)
        >>> likelihood.log_lik(torch.zeros(3, 1), torch.zeros(3)).shape
        torch.Size([3])
    """

    name = "student_t"
    has_noise = True

    def __init__(self, scale: Learnt = "learn", degrees_of_freedom: Learnt = "learn") -> None:
        super().__init__()
        self.scale = _learnt("scale", scale, 0.0)
        self.degrees_of_freedom = _learnt("degrees_of_freedom", degrees_of_freedom, _LEAST_DF)
        if self.scale == "learn":
            # As that of ``Gaussian``: half the spread of a standardised target.
            self.raw_scale = nn.Parameter(raw_from_std(torch.tensor(0.5)))
        if self.degrees_of_freedom == "learn":
            # ν = 6: tails clearly heavier than normal ones, and room to both sides.
            self.raw_df = nn.Parameter(raw_from_std(torch.tensor(4.0)))

    def options(self) -> dict[str, Any]:
        """Both as they were given."""
        return {"scale": self.scale, "degrees_of_freedom": self.degrees_of_freedom}

    def scale_and_df(self) -> tuple[Tensor, Tensor]:
        """Both as tensors: 0-d."""
        scale, df = self.scale, self.degrees_of_freedom
        return (
            std_from_raw(self.raw_scale) if isinstance(scale, str) else _number(scale),
            _LEAST_DF + std_from_raw(self.raw_df) if isinstance(df, str) else _number(df),
        )

    def log_lik(self, output: Tensor, target: Tensor) -> Tensor:
        """Sum over elements of the log-density."""
        mean, target = match(output, target)
        scale, df = (value.to(mean) for value in self.scale_and_df())
        return _per_example(student_log_density((target - mean) / scale, df) - scale.log())


class Poisson(Likelihood):
    """Counts from log rates.

    Output ``[B]`` or ``[B, 1]`` (or the target's shape), target a whole number ≥ 0.

    Args:
        offset: Is added to the output: the log of the rate that an output of 0 stands for.
    """

    name = "poisson"
    has_counts = True

    def __init__(self, offset: float = 0.0) -> None:
        super().__init__()
        self.offset = _finite("offset", offset)

    def options(self) -> dict[str, Any]:
        """``offset`` where there is one."""
        return {"offset": self.offset} if self.offset else {}

    def log_lik(self, output: Tensor, target: Tensor) -> Tensor:
        """Sum over elements of the Poisson log-probability."""
        log_rate, target = match(output, target)
        _check_counts(self.name, target)
        log_rate = log_rate + self.offset if self.offset else log_rate
        return _per_example(target * log_rate - log_rate.exp() - torch.lgamma(target + 1.0))


class NegativeBinomial(Likelihood):
    """Counts that spread more than Poisson's: mean μ = exp(output + offset), variance μ + α μ².

    Args:
        dispersion: α: a number above 0, or ``"learn"``. Small ones are Poisson's counts.
        offset: As of ``Poisson``.

    Example:
        >>> NegativeBinomial(0.5).log_lik(torch.zeros(4, 1), torch.arange(4)).shape
        torch.Size([4])
    """

    name = "negative_binomial"
    has_counts = True

    def __init__(self, dispersion: Learnt = "learn", offset: float = 0.0) -> None:
        super().__init__()
        self.dispersion = _learnt("dispersion", dispersion, 0.0)
        self.offset = _finite("offset", offset)
        if self.dispersion == "learn":
            self.raw_dispersion = nn.Parameter(raw_from_std(torch.tensor(0.5)))

    def options(self) -> dict[str, Any]:
        """``dispersion`` as it was given, ``offset`` where there is one."""
        return {"dispersion": self.dispersion, **({"offset": self.offset} if self.offset else {})}

    def alpha(self) -> Tensor:
        """The dispersion as a tensor: 0-d."""
        if isinstance(self.dispersion, str):
            return std_from_raw(self.raw_dispersion)
        return _number(self.dispersion)

    def log_lik(self, output: Tensor, target: Tensor) -> Tensor:
        """Sum over elements of the log-probability."""
        log_mean, target = match(output, target)
        _check_counts(self.name, target)
        # In float64: log Γ(y + 1/α) and log Γ(1/α) are large where α is small, and nearly alike.
        wide = (log_mean.double() + self.offset, self.alpha().to(log_mean.device).double())
        each = negative_binomial_log_prob(target.double(), *wide)
        return _per_example(each.to(log_mean.dtype))


LIKELIHOODS: dict[str, type[Likelihood]] = {
    kind.name: kind
    for kind in (
        Categorical,
        Bernoulli,
        Gaussian,
        Heteroscedastic,
        StudentT,
        Poisson,
        NegativeBinomial,
    )
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


def _learnt(name: str, value: Learnt, least: float) -> Learnt:
    """A number above ``least``, or ``"learn"``."""
    if isinstance(value, str):
        if value != "learn":
            raise UnknownName(name, value, ("learn", f"a number above {least:g}"))
        return value
    if not (value > least and math.isfinite(value)):
        raise InvalidValue(name, value, f"must be a number above {least:g}, or 'learn'")
    return float(value)


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def _finite(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise InvalidValue(name, value, "must be finite")
    return float(value)


def _check_counts(name: str, target: Tensor) -> None:
    wrong = (target < 0) | (target != target.round()) | ~torch.isfinite(target)
    if bool(wrong.any()):
        raise InvalidData(
            "target", float(target[wrong][0]), f"a {name} target must be a whole number ≥ 0"
        )


def check_labels(output: Tensor, target: Tensor) -> None:
    """Raise unless ``target`` holds class numbers that ``output`` has columns for."""
    if target.is_floating_point() or target.dtype == torch.bool:
        raise InvalidData(
            "target dtype",
            target.dtype,
            "class labels must be integers",
            "for real targets give likelihood='gaussian'; for class numbers use target.long()",
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
