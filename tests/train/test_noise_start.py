"""The start of a learnt noise against leave-one-out fits one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from gossamer.likelihoods import Gaussian
from gossamer.train import RunConfig, fit
from gossamer.train.assembly import assemble
from gossamer.train.noise_start import noise_start


@pytest.mark.parametrize(("rows", "columns", "outputs"), [(40, 3, 1), (30, 30, 1), (25, 60, 2)])
def test_residuals_are_those_of_fits_without_the_row(rows, columns, outputs):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, columns))
    y = x[:, :outputs] * 0.5 + 0.4 * generator.normal(size=(rows, outputs))
    found = noise_start(torch.tensor(x), torch.tensor(y))
    x, y = x - x.mean(0), y - y.mean(0)
    errors = []
    for row in range(rows):
        others = np.arange(rows) != row
        # The means stay those of all rows, with a row's own share 1 / n in its fitted value.
        model = Ridge(alpha=1.0, fit_intercept=False).fit(x[others], y[others])
        gram = x[others].T @ x[others] + np.eye(columns)
        own = x[row] @ np.linalg.solve(gram, x[row])
        leverage = own / (1.0 + own)
        residual = (y[row] - model.predict(x[row : row + 1])[0]) * (1.0 - leverage)
        errors.append(residual / (1.0 - leverage - 1.0 / rows))
    assert found == pytest.approx(min(1.0, float(np.sqrt(np.mean(np.square(errors))))), rel=1e-8)


def test_it_stays_within_bounds_and_tells_where_there_is_none():
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    assert noise_start(x, torch.zeros(50)) == 0.02, "a linear map is right"
    many = torch.randn(20, 400, generator=torch.Generator().manual_seed(1))
    noise = torch.randn(20, generator=torch.Generator().manual_seed(5))
    assert noise_start(many, noise) == 1.0, "nothing can be told"
    assert noise_start(x[:2], x[:2, 0]) is None
    assert noise_start(torch.randn(8, 1, 4, 4), torch.randn(8)) is None


def test_many_rows_are_thinned_out():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50_000, 4, generator=generator)
    y = x.sum(1) + 0.3 * torch.randn(50_000, generator=generator)
    assert noise_start(x, y) == pytest.approx(0.3, rel=0.06)


def test_fit_and_train_start_there_unless_told():
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    y = x[:, :1] + 0.1 * torch.randn(200, 1, generator=torch.Generator().manual_seed(1))
    expected = noise_start(x, y)
    assert expected == pytest.approx(0.1, rel=0.2)
    options = {"epochs": 1, "batch_size": 200, "lr": 1e-9}
    for likelihood, start in ((None, expected), ("gaussian", expected), (Gaussian(), 0.5)):
        method = fit((x, y), "rigl", likelihood=likelihood, **options).method
        noise = method.likelihood.mean_and_noise(y)[1].detach()
        assert float(noise[0]) == pytest.approx(start, rel=1e-4)

    config = RunConfig(data="diabetes", method="rigl")
    found = assemble(config)
    start = noise_start(found.dataset.x_train, found.dataset.y_train)
    assert found.facts.likelihood_options == {"start": start}
    assert found.method.likelihood.start == start
    told = assemble(RunConfig(data="diabetes", method="rigl", likelihood_options={"start": 0.3}))
    assert told.method.likelihood.start == 0.3
    head = assemble(
        RunConfig(data="diabetes", method="rigl", likelihood_options={"noise_std": "head"})
    )
    assert head.facts.likelihood_options == {}
