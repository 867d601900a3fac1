"""Where the noise of real targets starts: at the error of a ridge regression on rows it left out.

A learnt noise that starts far from its true size spends the run on the way there: too small, and
every row pulls like ten; too large, and intervals are wide to the end of a short run. A network
ends a little below what a linear map leaves over, so that is where it starts.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MOST_ROWS = 2000
"""Rows that are looked at: enough to tell a standard deviation to 2 %."""
_PENALTY = 1.0
"""Of the squared coefficients, beside a sum of squares over the rows; inputs are standardised."""
_BOUNDS = (0.02, 1.0)
"""Of the start, in units of the targets' own: below, a linear map was already right."""


def noise_start(x: Tensor, y: Tensor) -> float | None:
    """Standard deviation that a linear map leaves over, by leave-one-out residuals.

    They have a closed form: the residual of a row by its own fit, over one minus its leverage.

    Args:
        x: Inputs ``[N, features]``, about standardised; ``None`` is returned for other shapes.
        y: Targets ``[N]`` or ``[N, D]``, standardised.

    Returns:
        Between 0.02 and 1; the root mean square over the columns of ``y``. ``None`` where there are
        no linear maps of the inputs, or fewer than three rows.

    Example:
        >>> x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
        >>> noise = torch.randn(500, generator=torch.Generator().manual_seed(1))
        >>> round(noise_start(x, x @ torch.tensor([1.0, 2.0, 0.0]) + 0.3 * noise), 1)
        0.3
    """
    if x.dim() != 2 or len(x) < 3 or y.dim() > 2:
        return None
    step = -(-len(x) // _MOST_ROWS)
    rows = x[::step].double()
    target = y[::step].double().reshape(len(rows), -1)
    rows, target = rows - rows.mean(0), target - target.mean(0)
    count, columns = rows.shape
    if columns <= count:
        gram = rows.T @ rows + _PENALTY * torch.eye(columns, dtype=rows.dtype)
        solved = torch.linalg.solve(gram, rows.T)
        fitted, leverage = rows @ (solved @ target), (rows * solved.T).sum(1)
    else:
        kernel = rows @ rows.T
        hat = torch.linalg.solve(kernel + _PENALTY * torch.eye(count, dtype=rows.dtype), kernel).T
        fitted, leverage = hat @ target, hat.diagonal()
    # The mean of the targets is one more coefficient, of leverage 1 / count.
    kept = (1.0 - leverage - 1.0 / count).clamp(min=1e-6)
    residual = (target - fitted) / kept[:, None]
    found = float(residual.square().mean().sqrt())
    low, high = _BOUNDS
    return min(max(found, low), high)
