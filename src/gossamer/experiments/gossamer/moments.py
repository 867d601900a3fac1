"""``gossamer/moments``: how far predictions from moments are from sampling, on digits at 95 %.

The reference is the average over 1,000 samples with local noise, which makes the same assumption of
independence. Fewer samples of other seeds and weight noise stand beside it, on the test images and
on the same images under noise, where predictions are uncertain.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch
from torch import Tensor

from gossamer.experiments.experiment import Experiment, Finished, Scope
from gossamer.experiments.fits import Told, fit_of
from gossamer.experiments.news import Watch
from gossamer.experiments.outcome import Outcome, TextTable
from gossamer.experiments.task import FunctionTask, Values
from gossamer.inference import Method
from gossamer.metrics import accuracy, ece, nll
from gossamer.nn import Noise
from gossamer.prediction import ClassPrediction, predict, predict_moments
from gossamer.train import RunConfig

REFERENCE_SAMPLES = 1000
SAMPLES = (10, 100)
PIXEL_NOISE = 0.3
"""Standard deviation, in units of the prepared pixels' own."""

CONFIGS = {
    "mlp": RunConfig(data="digits", model="mlp", epochs=40, method_options={"sparsity": 0.95}),
    "resnet20": RunConfig(
        data="digits", model="resnet20", epochs=20, method_options={"sparsity": 0.95}
    ),
}
"""The network of ``gossamer/demo``, and a residual one of 20 layers."""


@dataclass(frozen=True)
class Compared:
    """One way to predict against the reference, over all images.

    Attributes:
        way: How it was predicted.
        largest: Largest difference of a class probability.
        mean: Mean over images of the largest difference.
        same_label: Share of images with the reference's label.
        information: Sum of the mutual information over that of the reference.
        ranking: Spearman's correlation of the mutual information with the reference's.
        accuracy: Share of right labels.
        nll: Mean negative log-likelihood.
        ece: Expected calibration error.
        seconds: Of the prediction of all images.
    """

    way: str
    largest: float
    mean: float
    same_label: float
    information: float
    ranking: float
    accuracy: float
    nll: float
    ece: float
    seconds: float


def compare(
    way: str, got: ClassPrediction, reference: ClassPrediction, y: Tensor, seconds: float
) -> Compared:
    """The figures of one way."""
    difference = (got.probs - reference.probs).abs().amax(1)
    information = got.mutual_information.sum() / reference.mutual_information.sum()
    return Compared(
        way,
        float(difference.max()),
        float(difference.mean()),
        float((got.label == reference.label).float().mean()),
        float(information),
        spearman(got.mutual_information, reference.mutual_information),
        accuracy(got.probs, y),
        nll(got.probs, y),
        ece(got.probs, y),
        seconds,
    )


def spearman(a: Tensor, b: Tensor) -> float:
    """Correlation of the ranks of two vectors without ties."""
    ranks = torch.stack([a.argsort().argsort(), b.argsort().argsort()]).double()
    return float(torch.corrcoef(ranks)[0, 1])


def compare_ways(
    method: Method,
    x: Tensor,
    y: Tensor,
    *,
    reference_samples: int = REFERENCE_SAMPLES,
    told: Callable[[str], None] = lambda text: None,
) -> list[Compared]:
    """Moments, few samples and weight noise against many samples with local noise.

    Args:
        method: Whose predictions.
        x: Images.
        y: Their labels [B].
        reference_samples: Of the reference.
        told: Called with every way before it begins.
    """

    def sampled(samples: int, noise: Noise, seed: int) -> ClassPrediction:
        found = predict(method, x, samples, noise=noise, seed=seed, keep_samples=False)
        assert isinstance(found, ClassPrediction)
        return found

    def by_moments() -> ClassPrediction:
        found = predict_moments(method, x)
        assert isinstance(found, ClassPrediction)
        return found

    ways: dict[str, Callable[[], ClassPrediction]] = {
        f"local noise, {reference_samples} samples": lambda: sampled(reference_samples, "local", 0),
        "moments": by_moments,
    }
    for samples in SAMPLES:
        ways[f"local noise, {samples} samples"] = lambda n=samples: sampled(n, "local", 1)  # type: ignore[misc]
    ways["weight noise, 10 samples"] = lambda: sampled(10, "weight", 1)
    ways[f"weight noise, {reference_samples} samples"] = lambda: sampled(
        reference_samples, "weight", 1
    )
    found: list[Compared] = []
    reference: ClassPrediction | None = None
    for way, run in ways.items():
        told(way)
        began = time.perf_counter()
        got = run()
        seconds = time.perf_counter() - began
        reference = reference or got
        found.append(compare(way, got, reference, y, seconds))
    return found


def trained(config: RunConfig, watch: Watch) -> tuple[Method, Tensor, Tensor]:
    """The method of a run after its last epoch, and the test part on its device."""
    assembly, fit = fit_of(config)
    fit.observers.append(Told(watch, share=0.5))
    fit.run()
    data = assembly.dataset
    return fit.method, data.x_test.to(fit.device), data.y_test.to(fit.device)


def compare_kinds(config: RunConfig, watch: Watch) -> Values:
    """All ways on clean and on noisy images, by kind of image: :class:`Compared` as JSON values."""
    method, x, y = trained(config, watch)
    generator = torch.Generator().manual_seed(config.seed)
    noisy = x + PIXEL_NOISE * torch.randn(x.shape, generator=generator).to(x.device)
    found = {}
    for share, (kind, inputs) in ((0.5, ("test images", x)), (0.75, ("with pixel noise", noisy))):
        rows = compare_ways(method, inputs, y, told=partial(watch.tell, share))
        found[kind] = [asdict(row) for row in rows]
    return found


def tasks(scope: Scope) -> list[FunctionTask[RunConfig]]:
    """A task for every network."""
    return [
        FunctionTask(name, compare_kinds, replace(config, seed=scope.seed, device=scope.device))
        for name, config in CONFIGS.items()
    ]


def conclude(found: Finished) -> Outcome:
    """A table for every network and kind of image."""
    values = {
        f"{name}, {kind}": rows
        for name, kinds in found.rows.items()
        for kind, rows in kinds.items()
    }
    parts: list[TextTable | str] = []
    for place, rows in values.items():
        parts += [f"### {place}", _table([Compared(**row) for row in rows])]
    return Outcome(values, tuple(parts))


_DECIMALS = {
    "largest Δp": ("largest", 4),
    "mean Δp": ("mean", 4),
    "same label": ("same_label", 4),
    "information": ("information", 3),
    "ranking": ("ranking", 3),
    "accuracy": ("accuracy", 4),
    "NLL": ("nll", 4),
    "ECE": ("ece", 4),
    "seconds": ("seconds", 2),
}
"""Columns: the figure and its decimals."""


def _table(found: list[Compared]) -> TextTable:
    rows = [
        [row.way, *(f"{getattr(row, name):.{digits}f}" for name, digits in _DECIMALS.values())]
        for row in found
    ]
    return TextTable(["", *_DECIMALS], rows)


EXPERIMENT = Experiment(
    key="gossamer/moments",
    title="predictions from moments against sampling on digits at 95 %",
    tasks=tasks,
    conclude=conclude,
)
