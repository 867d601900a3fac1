"""Posterior prediction: average over samples, in bounded memory, reproducible by seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gossamer.errors import InvalidData, InvalidValue, UnknownName
from gossamer.inference import Method
from gossamer.likelihoods import Likelihood
from gossamer.nn import Noise
from gossamer.prediction.assemble import assemble, join
from gossamer.prediction.passes import ROW_BLOCK, Passes
from gossamer.prediction.prediction import Prediction
from gossamer.prediction.source import source_of


def predict(
    source: nn.Module | Method,
    x: Tensor,
    num_samples: int = 5,
    *,
    noise: Noise = "weight",
    seed: int = 0,
    likelihood: str | Likelihood = "categorical",
    keep_samples: bool = True,
) -> Prediction:
    """The predictive distribution of every row of ``x``.

    Args:
        source: A method, or a converted model (any module is accepted; without Bayesian layers it
            gives one sample).
        x: Inputs ``[B, ...]``, on the model's device.
        num_samples: Posterior samples S to average; a deterministic network has only one.
        noise: ``weight`` draws one θ per sample for all rows; ``local`` is the training noise,
            independent per row and pixel.
        seed: Fixes all noise. Under ``weight``, sample s depends on (seed, s) alone. Under
            ``local``, samples may share passes, and the noise of a row depends on (seed, sample,
            block, rows of the block): not on memory, threads or further samples.
        likelihood: For a bare model: how its outputs are to be read. A method has its own.
        keep_samples: For classes: keep the ``[S, B, C]`` probabilities of the samples.

    Returns:
        ``ClassPrediction`` or ``RealPrediction``. The model's mode, BatchNorm statistics and
        torch's generator are left as they were.

    Example:
        >>> pred = predict(bnn, x, num_samples=16)  # doctest: +SKIP
        >>> pred.probs, pred.entropy, pred.mutual_information  # doctest: +SKIP
    """
    if num_samples < 1:
        raise InvalidValue("num_samples", num_samples, "must be at least 1")
    if noise not in ("weight", "local"):
        raise UnknownName("noise", str(noise), ("weight", "local"))
    if x.dim() < 1 or x.shape[0] == 0:
        raise InvalidData("x", tuple(x.shape), "must have at least one row")
    origin = source_of(source, likelihood)
    if origin.max_samples is not None:
        num_samples = min(num_samples, origin.max_samples)
    passes = Passes(origin, num_samples, noise, seed)
    parts = []
    with torch.no_grad(), evaluating(origin.model):
        for block, rows in enumerate(torch.split(x, ROW_BLOCK)):
            part = assemble(origin.likelihood, passes.outputs(rows, block))
            parts.append(part if keep_samples else join([part], keep_samples=False))
    return join(parts, keep_samples=keep_samples)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, with the mode of every submodule restored whatever happens."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode
