"""``cvadam2023/paths``: Fig. 1, paths of weights by channel, and Fig. 2, sparsity over training.

The runs are those of ``cvadam2023/fashion`` at 90 % (same seed, same steps), watched: LeNet on
Fashion-MNIST under DFP and DPF; but every layer has the sparsity, so that most channels leave
the convolution too. Accuracy is that of the present network on the validation images, not of the
samples kept so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

import torch
from torch import Tensor

from gossamer.core.groups import Grouping
from gossamer.errors import InvalidValue
from gossamer.experiments.cvadam2023.fashion import SPIKES, base_config, pruned_options
from gossamer.experiments.experiment import Experiment, Finished, Scope
from gossamer.experiments.fits import fit_of
from gossamer.experiments.news import Watch
from gossamer.experiments.outcome import Outcome, TextTable
from gossamer.experiments.task import FunctionTask, Values
from gossamer.inference import StepInfo
from gossamer.inference.methods.em_mcmc import EMMCMC
from gossamer.inference.pruning import units_of
from gossamer.metrics import accuracy
from gossamer.nn import sparse_layers
from gossamer.prediction import ClassPrediction, predict
from gossamer.report.path_figures import draw_channels, draw_sparsity
from gossamer.report.style import draw_file
from gossamer.train import Epoch, Fit, Observer, RunConfig

TARGET = 0.9
LAYER = "conv2"
"""The layer of Fig. 1: the first convolution with more than one input channel."""
WEIGHTS = 12
"""Paths per channel."""
RECORDS = 12
"""Points of a path per epoch, about."""


@dataclass(frozen=True)
class Course:
    """A run over training, at epochs 0, 1, ...

    Attributes:
        epoch: Epochs done.
        accuracy: Of the present network, on the validation part.
        soft_sparsity: Share of all weights that are zero or under the spike; 0 in the warm-up.
        hard_sparsity: Share that is zero.
        stored: Weights that are held, masked ones included.
    """

    epoch: list[int] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    soft_sparsity: list[float] = field(default_factory=list)
    hard_sparsity: list[float] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class ChannelPaths:
    """Some weights of one input channel over training.

    Attributes:
        channel: Its number.
        kept: Whether any of its weights takes part at the end.
        weights: ``[weight][time]``, as they are held: 0 once they left under DFP; under DPF w
            itself, masked or not.
    """

    channel: int
    kept: bool
    weights: list[list[float]]


@dataclass(frozen=True)
class Observed:
    """What was seen of one run.

    Attributes:
        course: Per epoch.
        times: Epochs done at the points of the paths.
        channels: One for every input channel of the layer.
    """

    course: Course
    times: list[float]
    channels: list[ChannelPaths]


def observe(
    config: RunConfig,
    watch: Watch,
    *,
    layer: str = LAYER,
    weights: int = WEIGHTS,
    records: int = RECORDS,
) -> Observed:
    """Train an ``em_mcmc`` run and watch its masks, its accuracy and the weights of one layer.

    Args:
        config: The run.
        watch: Told after every epoch.
        layer: Whose weights are followed.
        weights: Weights followed per input channel, evenly spread.
        records: Points per epoch, about.
    """
    with torch.random.fork_rng(devices=[]):
        assembly, fit = fit_of(config)
        method, data = fit.method, assembly.dataset
        if not isinstance(method, EMMCMC):
            raise InvalidValue("method", config.method, "has no masks to watch", "use em_mcmc")
        validation = data.x_val.to(fit.device), data.y_val.to(fit.device)
        chosen = _followed(method, layer, weights)
        seen = _Seen(method, validation, layer, chosen, records, watch)
        seen.note(0)
        fit.observers.append(seen)
        fit.run()
    paths = torch.stack(seen.weights, dim=2)  # [channel, weight, time]
    alive = _channels_kept(method, layer)
    return Observed(
        seen.course,
        seen.times,
        [
            ChannelPaths(number, bool(alive[number]), _rounded(channel))
            for number, channel in enumerate(paths)
        ],
    )


class _Seen(Observer):
    """What is seen of a run: its course, and the weights that are followed."""

    def __init__(
        self,
        method: EMMCMC,
        validation: tuple[Tensor, Tensor],
        layer: str,
        chosen: Tensor,
        records: int,
        watch: Watch,
    ) -> None:
        self.course = Course()
        self.times = [0.0]
        self.weights = [_dense(method, layer)[chosen]]
        self._method, self._validation, self._watch = method, validation, watch
        self._layer, self._chosen, self._records = layer, chosen, records

    def on_step(self, fit: Fit, info: StepInfo) -> None:
        per_epoch = fit.feed.steps_per_epoch
        if fit.step % max(1, per_epoch // self._records) == 0 or fit.step == fit.total_steps:
            self.times.append(fit.step / per_epoch)
            self.weights.append(_dense(self._method, self._layer)[self._chosen])

    def on_epoch(self, fit: Fit, epoch: Epoch) -> None:
        self.note(epoch.epoch)
        right, sparsity = self.course.accuracy[-1], self.course.hard_sparsity[-1]
        figures = f"acc {right:.3f} sparsity {sparsity:.3f}"
        self._watch.tell(epoch.epoch / fit.epochs, figures)

    def note(self, epoch: int) -> None:
        """Add the present state to the course."""
        course, method = self.course, self._method
        x, y = self._validation
        with method.pruner.effective():
            found = predict(method.model, x, 1, keep_samples=False)
        assert isinstance(found, ClassPrediction)
        warm = method.steps >= method.config.warmup * method.schedule.steps
        course.epoch.append(epoch)
        course.accuracy.append(accuracy(found.probs, y))
        course.soft_sparsity.append(method.pruner.soft_sparsity() if warm else 0.0)
        course.hard_sparsity.append(method.pruner.hard_sparsity)
        course.stored.append(sum(group.layer.nnz for group in method.pruner.weights))


def _dense(method: EMMCMC, name: str) -> Tensor:
    """The layer's flat dense weight as it is held, on the CPU."""
    layer = sparse_layers(method.model)[name]
    dense = torch.zeros(layer.layout.numel)
    dense[layer.support.positions().cpu()] = layer.leading().detach().cpu()
    return dense


def _followed(method: EMMCMC, name: str, weights: int) -> Tensor:
    """Flat positions of the weights to follow: ``[channels, weights]``."""
    layer = sparse_layers(method.model).get(name)
    if layer is None or layer.support.indices is not None:
        raise InvalidValue("layer", name, "is no layer that starts dense")
    units = units_of(layer)
    ids = Grouping.of(layer.support, units, "input").ids
    members = ids.argsort(stable=True).view(units.count("input"), -1)
    places = torch.linspace(0, members.shape[1] - 1, min(weights, members.shape[1]))
    return members[:, places.round().long()]


def _channels_kept(method: EMMCMC, name: str) -> Tensor:
    """Whether any weight of an input channel takes part: bool ``[channels]``."""
    units = units_of(sparse_layers(method.model)[name])
    with method.pruner.effective():
        used = _dense(method, name).nonzero().squeeze(1)
    return torch.bincount(units.of(used, "input"), minlength=units.count("input")) > 0


def _rounded(paths: Tensor) -> list[list[float]]:
    return [[round(value, 6) for value in path] for path in paths.tolist()]


def record(config: RunConfig, watch: Watch) -> Values:
    """An :class:`Observed` as JSON values."""
    return asdict(observe(config, watch))


def tasks(scope: Scope) -> list[FunctionTask[RunConfig]]:
    """Both runs."""
    return [
        FunctionTask(
            pruning.upper(),
            record,
            replace(
                base_config(scope.data_dir),
                method="em_mcmc",
                method_options=pruned_options(pruning, TARGET, "layer"),
                seed=scope.seed,
                device=scope.device,
            ),
        )
        for pruning in SPIKES
    ]


def conclude(found: Finished) -> Outcome:
    """The table of both courses, and the figures."""
    values: Values = {
        "target": TARGET,
        "layer": LAYER,
        "runs": {label: row["course"] for label, row in found.rows.items()},
        "paths": {
            label: {"epoch": row["times"], "channels": row["channels"]}
            for label, row in found.rows.items()
        },
    }
    if len(found.rows) < len(found.tasks):  # one diverged: there is nothing to compare
        return Outcome(values, ())
    parts = (_table(values["runs"]), _kept(values["paths"]))
    return Outcome(values, parts, figures=figures(values))


def figures(values: Values) -> dict[str, str]:
    """Fig. 1, for DFP and for DPF, and Fig. 2 as SVG, from the outcome's values."""
    channels = f"paths of weights of {values['layer']} by input channel"
    course = "accuracy, soft and hard sparsity over training, DFP and DPF"
    paths = values["paths"]
    return {
        "fig1.svg": draw_file(draw_channels, paths["DFP"], title=f"{channels}, DFP"),
        "fig1-dpf.svg": draw_file(draw_channels, paths["DPF"], title=f"{channels}, DPF"),
        "fig2.svg": draw_file(draw_sparsity, values["runs"], title=course),
    }


def _table(runs: Mapping[str, Values]) -> TextTable:
    forms = {"accuracy": ".4f", "soft_sparsity": ".4f", "hard_sparsity": ".4f", "stored": ",d"}
    names = ("accuracy", "soft", "hard", "weights held")
    courses = list(runs.values())
    rows = [
        [
            str(epoch),
            *(
                format(course[key][place], form)
                for course in courses
                for key, form in forms.items()
            ),
        ]
        for place, epoch in enumerate(courses[0]["epoch"])
    ]
    return TextTable(["epoch", *(f"{label} {name}" for label in runs for name in names)], rows, 0)


def _kept(paths: Mapping[str, Values]) -> str:
    lines = []
    for label, seen in paths.items():
        kept = ", ".join(str(one["channel"]) for one in seen["channels"] if one["kept"])
        lines.append(f"- {label}: input channels of {LAYER} kept: {kept or 'none'}")
    return "\n".join([*lines, "", "Figures: fig1.svg (DFP), fig1-dpf.svg, fig2.svg."])


EXPERIMENT = Experiment(
    key="cvadam2023/paths",
    title="paths of weights by channel; soft and hard sparsity over training (Fig. 1, Fig. 2)",
    tasks=tasks,
    conclude=conclude,
)
