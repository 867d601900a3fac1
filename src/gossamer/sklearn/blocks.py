"""Rows in whole blocks, so that the answer for a row never depends on the rows beside it.

Products of matrices round by their shape: a row alone, and the same row among others, would differ
in the last digits. A posterior predicts blocks of ``ROW_BLOCK`` rows; if every block is full, each
row takes the same way.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gossamer.prediction import ClassPrediction, Prediction
from gossamer.prediction.passes import ROW_BLOCK


def in_whole_blocks(x: Tensor) -> Tensor:
    """Rows [N, features] and rows of zeros up to the next whole block."""
    lacking = -len(x) % ROW_BLOCK
    return torch.cat([x, x.new_zeros(lacking, x.shape[1])]) if lacking else x


def first_rows(prediction: Prediction, count: int) -> Prediction:
    """The prediction of the first rows."""
    if isinstance(prediction, ClassPrediction):
        return replace(
            prediction,
            probs=prediction.probs[:count],
            entropy=prediction.entropy[:count],
            mutual_information=prediction.mutual_information[:count],
            energy=prediction.energy[:count],
            samples=None,
        )
    return replace(
        prediction,
        mean=prediction.mean[:count],
        epistemic=prediction.epistemic[:count],
        aleatoric=prediction.aleatoric[:count],
        samples=prediction.samples[:, :count],
        noise=prediction.noise[:, :count],
        shape=None if prediction.shape is None else prediction.shape[:, :count],
        departures=None if prediction.departures is None else prediction.departures[:, :count],
    )
