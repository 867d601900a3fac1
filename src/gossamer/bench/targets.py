"""The figures that the native engine is meant to reach, in one place.

Ratios are against dense variational inference (``dense_vi``) unless the name says otherwise.
"""

from __future__ import annotations

from gossamer.bench.result import Target


def at_least(bound: float) -> Target:
    """Larger is better."""
    return Target("≥", bound)


def at_most(bound: float) -> Target:
    """Smaller is better."""
    return Target("≤", bound)


LAYER = {
    "linear": {0.90: at_least(4.0), 0.95: at_least(6.5), 0.98: at_least(11.0)},
    "conv": {0.90: at_least(6.0), 0.95: at_least(9.5), 0.98: at_least(15.0)},
}
"""Forward and backward of one layer."""

OVER_SPARSEPROP = at_least(2.0)
"""The deterministic twin at 95 %."""

INTERCEPT = at_most(0.25)
"""Time at no weights at all, as a share of the time at 95 %."""

STEP = {0.90: at_least(4.0), 0.95: at_least(6.0)}
"""A training step of ResNet-18, ``uniform_dense_first``."""

STEP_OVER_DETERMINISTIC = {0.95: at_least(2.0)}
"""The same against deterministic dense training."""

MLP_STEP = at_least(5.0)
"""A training step of the perceptron at 95 %."""

TRANSFORMER_STEP = at_least(6.0)
"""A training step of ViT-tiny at 95 %, batch 64, one thread."""

TRANSFORMER_OVER_DETERMINISTIC = at_least(2.3)
"""The same against deterministic dense training."""

NGVI_STEP = at_most(1.08)
"""A training step of ``ngvi`` at 95 %, as a multiple of RigL's."""

STATE = at_least(13.0)
"""Parameters, gradients, optimiser state and indices at 95 %: how many times smaller."""

SAVED = at_most(0.6)
"""Bytes saved for the backward pass, as a share."""

PEAK = at_most(0.5)
"""Peak resident memory of a step, as a share."""

GROWTH = at_most(16.0)
"""MB of temporaries for addition scores on a 4096x4096 layer."""

PREDICT = at_least(5.0)
"""16 posterior samples at 95 %."""

READ = at_most(3.0)
"""Processor time of a CSV file of numbers, as a multiple of what pandas takes."""
