"""A posterior that stands alone: what prediction needs, and nothing of training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gossamer.data import Findings, Preparation, columns_of
from gossamer.data.prepare import Columns as RawColumns
from gossamer.data.readers.frames import is_frame
from gossamer.errors import InvalidData, InvalidValue, UnknownName
from gossamer.likelihoods import Categorical, Likelihood
from gossamer.nn import Noise, summary
from gossamer.prediction.archive import save
from gossamer.prediction.combine import join
from gossamer.prediction.draws import Draws, NoiseDraws, on_device, own_copy
from gossamer.prediction.finish.finish import Finish
from gossamer.prediction.finite import (
    Finite,
    require_finite_answer,
    require_finite_columns,
    require_finite_weights,
)
from gossamer.prediction.inputs import InputRows, Inputs, input_rows, rows_between
from gossamer.prediction.moments.predict import moments_of
from gossamer.prediction.outputs import (
    PLAIN,
    Forward,
    Output,
    checked_output,
    class_dim_of,
    with_known_axis,
)
from gossamer.prediction.passes import ROW_BLOCK, Passes, is_cut, rows_meet_in
from gossamer.prediction.prediction import Prediction
from gossamer.prediction.row_wise import RowWise
from gossamer.prediction.table import Columns, answer_columns


class Posterior:
    """Networks, how their outputs are read, and how raw input becomes theirs.

    Predicting never changes it, and any number of threads get the bits of one thread. It never
    answers from, nor with, a number that is not finite. It shares its tensors with whom it came
    from: it is of the moment at which it was asked for. After more training ask the method anew;
    until then an old one shows some tensors of now and some of then. ``frozen`` and ``save`` keep
    what it is.

    Args:
        draws: Where the networks come from, see ``gossamer.prediction.draws``.
        likelihood: How outputs are read.
        preparation: How raw input becomes network input, and outputs original units and label
            names; ``None`` where the caller does that.
        about: What else is worth keeping, as JSON values: ``model`` (name, input_shape,
            output_size, options of ``gossamer.models.build_model``) lets an archive be loaded
            without the network; ``num_samples`` and ``seed`` are the defaults of tables.
        finish: What held-out rows taught beyond the networks: a temperature, a Gaussian last layer,
            a calibration (``gossamer.tempered``, ``gossamer.last_layer``,
            ``gossamer.prediction.calibrated``).
        output: Which tensor of the networks' output predicts, see ``predict``; ``None`` where they
            give nothing else.
    """

    def __init__(
        self,
        draws: Draws,
        likelihood: Likelihood,
        preparation: Preparation | None = None,
        about: Mapping[str, Any] | None = None,
        finish: Finish | None = None,
        output: Output | None = None,
    ) -> None:
        self.draws = draws
        self.likelihood = likelihood
        self.preparation = preparation
        self.about: dict[str, Any] = dict(about or {})
        self.finish = Finish() if finish is None else finish
        self.output = checked_output(output)
        self.row_wise = RowWise()

    @property
    def class_dim(self) -> int | None:
        """The axis of the networks' outputs that holds the classes, as it was given.

        1 by default, as in training; ``None`` where it is not known, or there are no logits.
        """
        return class_dim_of(self.likelihood)

    @property
    def max_samples(self) -> int | None:
        """Number of different networks; ``None`` if unlimited."""
        return self.draws.max_samples

    def predict(
        self,
        x: Inputs,
        num_samples: int = 5,
        *,
        noise: Noise = "weight",
        seed: int = 0,
        keep_samples: bool = True,
        output: Output | None = None,
        class_dim: int | None = None,
    ) -> Prediction:
        """The predictive distribution of every row of ``x``.

        Args:
            x: Inputs ``[B, ...]``, on the networks' device. For networks of several arguments a
                mapping (or dataclass) of keyword arguments or a tuple (or list) of positional ones:
                every tensor in it has B rows and is cut and repeated with the others. Plain values
                and 0-d tensors are handed on as they are, other tensors that all rows share as
                ``gossamer.prediction.Shared(tensor)``.
            num_samples: Posterior samples S to average; no more than there are.
            noise: ``weight`` draws one θ per sample for all rows; ``local`` is the training noise,
                independent per row and pixel.
            seed: Fixes all noise. Under ``weight``, sample s depends on (seed, s) alone. Under
                ``local``, samples may share passes, and the noise of a row depends on (seed,
                sample, block, rows of the block): not on memory, threads or further samples.
            keep_samples: For classes: keep the ``[S, B, C]`` probabilities of the samples.
            output: Which tensor predicts where networks give several: the name of an attribute or
                key (``"logits"``), or a function of the output. By default the posterior's own.
            class_dim: For classes: the axis of the outputs that holds them, -1 for tokens
                ``[B, T, C]``. By default the posterior's own: 1, as in training. Of a bare model it
                is not known where outputs have more than two axes, unless they are images of a
                convolutional network.

        Raises:
            NonFinite: A weight or an answer is NaN or infinite.
            InvalidData: Inputs whose rows differ; an output that is no tensor, or does not tell
                where its classes are.
            InvalidValue: The network holds tensors for the rows and reads them by place.
        """
        if output is not None or class_dim is not None:
            own = self.reading(output=output, class_dim=class_dim)
            return own.predict(x, num_samples, noise=noise, seed=seed, keep_samples=keep_samples)
        if num_samples < 1:
            raise InvalidValue("num_samples", num_samples, "must be at least 1")
        if noise not in ("weight", "local"):
            raise UnknownName("noise", str(noise), ("weight", "local"))
        rows = input_rows(x)
        return self.of_rows(rows, num_samples, noise=noise, seed=seed, keep_samples=keep_samples)

    def of_rows(
        self,
        rows: InputRows,
        num_samples: int,
        *,
        noise: Noise,
        seed: int,
        keep_samples: bool = True,
    ) -> Prediction:
        """What ``predict`` gives, of inputs and settings that were checked."""
        if self.max_samples is not None:
            num_samples = min(num_samples, self.max_samples)
        with torch.no_grad():
            parts = [
                part if keep_samples else join([part], keep_samples=False)
                for part in self.blocks(rows, num_samples, noise, seed)
            ]
        return join(parts, keep_samples=keep_samples)

    def blocks(
        self, x: InputRows, num_samples: int, noise: Noise, seed: int, temperature: float = 1.0
    ) -> Iterator[Prediction]:
        """The prediction of every block of ``ROW_BLOCK`` rows, with its samples.

        Arguments are as in ``predict``, which has checked them; ``temperature`` is a further one.
        """
        call = self.finish.caller(Forward(self.output))
        passes = Passes(self.draws, num_samples, noise, seed, call, self.row_wise)
        for block, outputs in enumerate(passes.blocks(x)):
            part = self.finish.prediction(self.read_as(outputs, x), outputs, temperature)
            first = block * ROW_BLOCK
            rows = rows_between(x, first, first + ROW_BLOCK)
            require_finite_answer(part, first, partial(passes.blame, rows, block))
            yield part

    def read_as(self, outputs: Tensor, x: InputRows) -> Likelihood:
        """The likelihood that reads outputs ``[S, B, ...]`` of ``x``."""
        return with_known_axis(self.likelihood, outputs, x, self.draws.network)

    def reading(self, *, output: Output | None = None, class_dim: int | None = None) -> Posterior:
        """The same posterior over the same tensors, whose outputs are read in another way.

        Args:
            output: As in ``predict``; what it was if ``None``.
            class_dim: As in ``predict``; what it was if ``None``.

        Raises:
            InvalidValue: There are no logits whose axis could be named.
        """
        likelihood = self.likelihood
        if class_dim is not None:
            if not isinstance(likelihood, Categorical):
                raise InvalidValue(
                    "class_dim",
                    class_dim,
                    f"is for logits of classes, which the {likelihood.name} likelihood has not",
                    "leave it out",
                )
            likelihood = likelihood.at(class_dim)
        found = Posterior(
            self.draws,
            likelihood,
            self.preparation,
            self.about,
            self.finish,
            self.output if output is None else output,
        )
        found.row_wise = self.row_wise
        return found

    def predict_moments(self, x: Tensor, *, keep_samples: bool = False) -> Prediction:
        """The predictive distribution of every row of ``x``, approximately and in one pass.

        Every activation is carried as a Gaussian, independent of the others: its mean and variance
        go through linear layers, convolutions, BatchNorm, average pooling and sums exactly, through
        ReLU exactly for a Gaussian, through max pooling by Clark's formula. So it approximates
        ``predict(..., noise="local")`` with many samples. Probabilities and labels are near those;
        epistemic uncertainty is too small in deep networks, whose activations are correlated:
        docs/prediction.md says by how much.

        Outputs m, v become a prediction through 256 fixed points of N(m, v) (a Sobol sequence,
        standardised): nothing is random, and for a Gaussian likelihood mean and standard deviation
        are exactly m and √v. Every part of a prediction is there; the energy is the mean over those
        points.

        Args:
            x: Inputs ``[B, ...]``, on the network's device.
            keep_samples: For classes: keep the probabilities at the fixed points.

        Raises:
            InvalidValue: The posterior is no Gaussian of layers, or the network holds something
                without a rule; the message names it. So does an output of several tensors.
            InvalidData: Inputs of several tensors: moments are carried for one.
            NonFinite: A weight or an answer is NaN or infinite.
        """
        if not isinstance(x, Tensor):
            raise InvalidData(
                "x",
                type(x).__name__,
                "must be one tensor: moments are carried through networks of one argument",
                "use predict",
            )
        input_rows(x)
        return self.moments(x, keep_samples=keep_samples)

    def moments(self, x: Tensor, *, keep_samples: bool, temperature: float = 1.0) -> Prediction:
        """What ``predict_moments`` gives, at a further temperature."""
        if not isinstance(self.draws, NoiseDraws):
            raise InvalidValue(
                "posterior",
                type(self.draws).__name__,
                "has no Gaussian posterior in its layers",
                "use predict",
            )
        if self.finish.head is not None:
            raise InvalidValue(
                "posterior",
                None,
                "has a Gaussian last layer, which moments would leave out",
                "use predict",
            )

        self.finish.require_uncalibrated()
        if self.output is not None:
            raise InvalidValue(
                "output",
                self.output if isinstance(self.output, str) else None,
                "is for predict: moments are carried to the one tensor that a network gives",
                "return that tensor from the network, or use predict",
            )

        if is_cut(x, rows_meet=rows_meet_in(self.draws.network)):
            with torch.no_grad():
                self.row_wise.require(self.draws, x, PLAIN)

        def read(outputs: Tensor) -> Prediction:
            return self.finish.prediction(self.read_as(outputs, x), outputs, temperature)

        return moments_of(self.draws, read, x, keep_samples=keep_samples, class_dim=self.class_dim)

    def predict_table(
        self,
        rows: RawColumns | NDArray[Any] | Tensor,
        num_samples: int | None = None,
        *,
        noise: Noise = "weight",
        seed: int | None = None,
        level: float | None = None,
        findings: Findings | None = None,
    ) -> Columns:
        """Answers for raw rows as columns: label names, or original units with an interval.

        Args:
            rows: As ``gossamer.data.load_inputs`` gives them: columns by name, in any order, or an
                array; or a data frame of pandas, polars or arrow.
            num_samples: As in ``predict``; what ``about`` says, or 5, if ``None``.
            noise: As in ``predict``.
            seed: As in ``predict``; what ``about`` says, or 0, if ``None``.
            level: Mass of the interval, whose ends are named by it: ``lower_90``, ``upper_90``, or
                of the set of labels, which is there if it is told.
            findings: Is told what was noticed of the rows, see ``Preparation.prepare``.

        Returns:
            See ``gossamer.prediction.table.answer_columns``.

        Raises:
            NonFinite: A weight or an answer is NaN or infinite.
        """
        if self.preparation is None:
            raise InvalidValue(
                "posterior",
                None,
                "does not know how raw rows become inputs",
                "give it a preparation, or prepare the rows and call predict",
            )
        count = self.about.get("num_samples", 5) if num_samples is None else num_samples
        chosen = self.about.get("seed", 0) if seed is None else seed
        table = columns_of(rows, "rows") if is_frame(rows) else rows
        x = self.preparation.prepare(table, findings).to(self.device)
        prediction = self.predict(x, count, noise=noise, seed=chosen, keep_samples=False)
        columns = answer_columns(prediction, self.preparation, level)
        require_finite_columns(columns)
        return columns

    def require_finite(self) -> None:
        """Look through all samples at once; predicting looks at those that it uses.

        Raises:
            NonFinite: A weight is NaN or infinite; the message names it.
        """
        if isinstance(self.draws, Finite):
            self.draws.require_finite()
        require_finite_weights(self.likelihood.named_parameters(prefix="likelihood"))

    @property
    def device(self) -> torch.device:
        """Where its networks live."""
        first = next(self.draws.network.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    @property
    def size(self) -> dict[str, float | int]:
        """``nnz`` and ``sparsity`` of the network that predicts, which is the latest sample."""
        with self.draws.sample(0, seed=0, noise="weight") as network:
            total = summary(network)
        return {"nnz": total.nnz, "sparsity": total.sparsity}

    def network(self, index: int = 0, *, seed: int = 0) -> nn.Module:
        """A network of one's own, over tensors of its own: posterior sample ``index``.

        Stochastic layers come with their distribution; ``gossamer.sampling`` draws from it.

        Args:
            index: Number of the sample.
            seed: Fixes the draw where weights are drawn as a whole.
        """
        with self.draws.sample(index, seed=seed, noise="weight") as network:
            return own_copy(network)

    def frozen(self) -> Posterior:
        """The same posterior over tensors of its own, which nobody trains on."""
        return self.moved(_clone, own_copy)

    def to(self, device: str | torch.device) -> Posterior:
        """A copy on another device; off the CPU its layers run on the masked backend."""
        target = torch.device(device)
        moved = self.moved(lambda t: t.detach().to(target, copy=True), partial(_place, target))
        moved.likelihood.to(target)
        return moved

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to one file, whole or not at all; ``gossamer.prediction.load`` reads it.

        Raises:
            InvalidValue: It holds something that a file cannot, which the message names.
            CheckpointError: The file could not be written.
        """
        save(self, path)

    def moved(
        self, move: Callable[[Tensor], Tensor], place: Callable[[nn.Module], nn.Module]
    ) -> Posterior:
        """A copy: ``move`` gives every tensor's, ``place`` every network's and the likelihood's."""
        likelihood = own_copy(self.likelihood)
        assert isinstance(likelihood, Likelihood)
        draws, finish = self.draws.moved(move, place), self.finish.moved(move)
        return Posterior(draws, likelihood, self.preparation, self.about, finish, self.output)

    def finished(self, finish: Finish) -> Posterior:
        """The same posterior over the same tensors, with another finishing step."""
        found = self.reading()
        found.finish = finish
        return found

    @property
    def finish_figures(self) -> dict[str, float]:
        """``temperature``, ``last_layer_scale``, ``calibration_rows``: as far as there are any."""
        return self.finish.figures

    def __repr__(self) -> str:
        count = "any number of" if self.max_samples is None else self.max_samples
        kind = type(self.draws).__name__
        return f"Posterior({kind}, {self.likelihood.name}, {count} samples)"


def _clone(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _place(device: torch.device, network: nn.Module) -> nn.Module:
    return on_device(network, device)
