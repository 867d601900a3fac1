"""The forward passes that give all samples of a block of rows.

A pass takes so many rows that activations stay in the cache. Where samples differ by the layers'
noise alone and a block has fewer, one pass takes the rows of several samples: weights are read once
for all of them, and at batch 1 samples fill the lanes that rows would leave empty.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gossamer.nn import NeedsOwnPass, Noise, holding_draws
from gossamer.ops import fold_seed
from gossamer.prediction.draws import Draws, NoiseDraws
from gossamer.prediction.finite import blame
from gossamer.prediction.inputs import (
    InputRows,
    are_vectors,
    repeated_rows,
    split_rows,
    values_per_row,
)
from gossamer.prediction.outputs import PLAIN, Call
from gossamer.prediction.row_wise import RowWise

ROW_BLOCK = 256
"""Rows that are predicted at a time: every sample is drawn once for all of them.

Fixed, as the numbers below, because local noise is drawn per pass: a prediction must not depend on
how much memory there is.
"""

PASS_ROWS, PASS_VALUES, IMAGE_VALUES = 1024, 2**20, 2**17
"""Vectors of a pass and their values; values of a pass of images: with more the activations leave
the cache. All but the last pass take at least 8 rows: fewer are all overhead."""

WHOLE_ROWS = 32
"""All but the last pass take a multiple of it where so many rows fit, as 32 images of 3x32x32 do:
full lanes for two to four threads."""

SHARED_ROWS, SHARED_IMAGES = 256, 32
"""Rows of a pass that samples with weights of their own share; for images also under local noise.

Vectors share up to ``PASS_ROWS`` under local noise, where all samples read the same weights.
"""

MEETING_ROWS = 128
"""Rows of a pass where a layer computes statistics over them, also in evaluation."""

HELD_VALUES = 2**26
"""Outputs of all samples that wait for the last one where samples are run one after the other."""

_MIN_DRAWS = 8
"""Under weight noise every sample of a pass draws its own weights.

That pays while rows alone would leave most lanes empty, and if at least so many samples fit.
"""

_LANES = 16
"""Of the widest vectors: samples of a pass under weight noise, if there are as many."""


class Passes:
    """Outputs of all samples, block by block.

    Args:
        draws: The networks.
        num_samples: S.
        noise: ``weight`` or ``local``.
        seed: Fixes all noise.
        call: Runs a network on rows; a finishing step may read more than the outputs.
        row_wise: What was found out about the networks before; nothing by default.
    """

    def __init__(
        self,
        draws: Draws,
        num_samples: int,
        noise: Noise,
        seed: int,
        call: Call = PLAIN,
        row_wise: RowWise | None = None,
    ) -> None:
        self.draws, self.num_samples, self.noise, self.seed = draws, num_samples, noise, seed
        self.call = call
        self.row_wise = RowWise() if row_wise is None else row_wise
        self.rows_meet = rows_meet_in(draws.network)
        self.may_share = draws.by_noise and not self.rows_meet

    def blocks(self, x: InputRows) -> Iterator[Tensor]:
        """``[S, B, ...]`` for every block of ``ROW_BLOCK`` rows of ``x``.

        Where samples differ by noise, they are drawn block by block: that takes the least memory.
        Where a sample has to be loaded or built, it is asked for once for as many blocks as
        ``HELD_VALUES`` allows, almost always for all.
        """
        blocks = split_rows(x, ROW_BLOCK)
        if is_cut(x, rows_meet=self.rows_meet):
            self.row_wise.require(self.draws, x, self.call)
        if self.draws.by_noise:
            yield from (self.outputs(rows, block) for block, rows in enumerate(blocks))
            return
        start = 0
        while start < len(blocks):
            stretch = self._stretch(blocks, start)
            held = [[output] for output in stretch]
            for sample in range(1, self.num_samples):
                of_sample = self._of_sample(sample, blocks[start : start + len(stretch)], start)
                for outputs, output in zip(held, of_sample, strict=True):
                    outputs.append(output)
            for outputs in held:
                yield torch.stack(outputs)
            start += len(stretch)

    def _stretch(self, blocks: Sequence[InputRows], start: int) -> list[Tensor]:
        """Outputs of sample 0 for the blocks from ``start``, until all samples' would be many."""
        found: list[Tensor] = []
        values = 0
        with closing(self._of_sample(0, blocks[start:], start)) as outputs:
            for output in outputs:
                found.append(output)
                values += output.numel() * self.num_samples
                if values >= HELD_VALUES:
                    break
        return found

    def _of_sample(
        self, sample: int, blocks: Sequence[InputRows], first: int
    ) -> Generator[Tensor, None, None]:
        """Outputs of one sample for consecutive blocks, the network asked for as rarely as can."""
        if self.draws.uses_seed and self.noise == "local":
            for number, rows in enumerate(blocks):
                yield self._alone(rows, first + number, sample)
            return
        seed = self._seed(sample, 0)
        with self.draws.sample(sample, seed=seed, noise=self.noise) as network:
            for rows in blocks:
                yield self._run(network, rows)

    def outputs(self, rows: InputRows, block: int) -> Tensor:
        """``[S, B, ...]`` for rows ``[B, ...]``, the block of that number."""
        at_once = self._samples_per_pass(rows)
        if at_once > 1:
            try:
                firsts = range(0, self.num_samples, at_once)
                found = torch.cat([self._together(rows, block, s, at_once) for s in firsts])
                self.row_wise.require_once(self.draws, rows, self.call)
                return found
            except NeedsOwnPass:
                self.may_share = False  # nor will it in the next block
            except (RuntimeError, IndexError):
                # A network that holds tensors for its rows finds too few for those of all samples.
                self.row_wise.require(self.draws, rows, self.call)
                raise
        return torch.stack([self._alone(rows, block, s) for s in range(self.num_samples)])

    def blame(self, rows: InputRows, block: int) -> str:
        """Where the outputs of a block went wrong, in words."""
        for sample in range(self.num_samples):
            seed = self._seed(sample, block)
            with self.draws.sample(sample, seed=seed, noise=self.noise) as network:
                if not bool(torch.isfinite(self._run(network, rows)).all()):
                    return f"{blame(network, rows)} in sample {sample}"
        return "the likelihood overflowed"

    def _samples_per_pass(self, rows: InputRows) -> int:
        if not self.may_share:
            return 1
        most = SHARED_IMAGES
        if are_vectors(rows):
            fitting = min(PASS_ROWS, PASS_VALUES // max(1, values_per_row(rows)))
            most = fitting if self.noise == "local" else SHARED_ROWS
        most //= len(rows)
        if self.noise == "weight":
            most = max(_LANES, most) if most >= _MIN_DRAWS else 1
        return min(self.num_samples, max(1, most))

    def _seed(self, sample: int, block: int) -> int:
        if self.noise == "weight":
            return fold_seed(self.seed, sample)
        return fold_seed(self.seed, sample, block)

    def _alone(self, rows: InputRows, block: int, sample: int) -> Tensor:
        seed = self._seed(sample, block)
        with self.draws.sample(sample, seed=seed, noise=self.noise) as network:
            return self._run(network, rows)

    def _run(self, network: nn.Module, rows: InputRows) -> Tensor:
        parts = passes_of(rows, rows_meet=self.rows_meet)
        if len(parts) == 1:
            return self.call(network, rows)
        with holding_draws(network):
            return torch.cat([self.call(network, part) for part in parts])

    def _together(self, rows: InputRows, block: int, first: int, at_once: int) -> Tensor:
        assert isinstance(self.draws, NoiseDraws)
        samples = range(first, min(first + at_once, self.num_samples))
        seeds = [self._seed(s, block) for s in samples]
        # Of a single row this is a view: nothing is copied before the first layer.
        repeated = repeated_rows(rows, len(seeds))
        count = len(repeated)
        with self.draws.together(seeds=seeds, rows=count, noise=self.noise) as network:
            output = self.call(network, repeated)
        if output.dim() == 0 or output.shape[0] != count:
            raise NeedsOwnPass("output shape", tuple(output.shape), f"must have {count} rows")
        return output.reshape(len(seeds), -1, *output.shape[1:])


def passes_of(rows: InputRows, *, rows_meet: bool) -> tuple[InputRows, ...]:
    """Rows ``[B, ...]`` cut for the passes of one sample.

    Args:
        rows: Of one block.
        rows_meet: Whether a layer computes statistics over the rows of a pass.
    """
    if rows_meet:
        return split_rows(rows, MEETING_ROWS)
    values = PASS_VALUES if are_vectors(rows) else IMAGE_VALUES
    fitting = max(8, min(ROW_BLOCK, values // max(1, values_per_row(rows))))
    whole = WHOLE_ROWS if fitting >= WHOLE_ROWS else 8
    return (rows,) if len(rows) <= fitting else split_rows(rows, fitting // whole * whole)


def is_cut(x: InputRows, *, rows_meet: bool) -> bool:
    """Whether all rows take more than one pass of a sample."""
    if len(x) > ROW_BLOCK:
        return True
    # Of so few rows nobody makes several passes, and they should not wait for the question.
    return len(x) > 8 and len(passes_of(x, rows_meet=rows_meet)) > 1


def rows_meet_in(model: nn.Module) -> bool:
    """Whether some layer computes statistics over the rows of a pass, also in evaluation."""
    return any(isinstance(m, _BatchNorm) and m.running_mean is None for m in model.modules())
