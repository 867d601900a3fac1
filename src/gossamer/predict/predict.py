"""Posterior prediction: average over samples, in bounded memory, reproducible by seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gossamer.errors import InvalidData, InvalidValue, UnknownName
from gossamer.inference import Likelihood, Method
from gossamer.inference import likelihood as make_likelihood
from gossamer.nn import BayesianLayer, Noise, sampling
from gossamer.ops import fold_seed
from gossamer.predict.assemble import assemble, join
from gossamer.predict.prediction import Prediction

ROW_BLOCK = 128
"""Rows per forward pass.

Fixed, because local noise is drawn per block: a prediction must not depend on how much memory there
is.
"""


@dataclass(frozen=True)
class _Network:
    """A bare model seen as a source of posterior samples."""

    model: nn.Module
    likelihood: Likelihood

    @property
    def max_samples(self) -> int | None:
        return None if any(isinstance(m, BayesianLayer) for m in self.model.modules()) else 1

    def sample(self, index: int, *, seed: int, noise: Noise) -> AbstractContextManager[nn.Module]:
        return sampling(self.model, seed=seed, noise=noise)


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
        seed: Fixes all noise. Sample s and row block b depend on (seed, s, b) alone.
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
    origin = (
        _Network(source, make_likelihood(likelihood)) if isinstance(source, nn.Module) else source
    )
    if origin.max_samples is not None:
        num_samples = min(num_samples, origin.max_samples)
    parts = []
    with torch.no_grad(), _evaluating(origin.model):
        for block, rows in enumerate(torch.split(x, ROW_BLOCK)):
            outputs = []
            for s in range(num_samples):
                drawn = fold_seed(seed, s) if noise == "weight" else fold_seed(seed, s, block)
                with origin.sample(s, seed=drawn, noise=noise) as net:
                    outputs.append(net(rows))
            part = assemble(origin.likelihood, torch.stack(outputs))
            parts.append(part if keep_samples else join([part], keep_samples=False))
    return join(parts, keep_samples=keep_samples)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, with the mode of every submodule restored whatever happens."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode
