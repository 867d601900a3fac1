"""The law of variances against scipy's inverse gamma and simulated variances."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import chi2, invgamma

from gossamer.core.disagreement import VarianceLaw, fit_law
from gossamer.errors import InvalidData


@pytest.mark.parametrize("degrees", [1, 3, 19])
def test_values_are_quantiles_of_bayes_rule(degrees):
    """The law given an estimate, by quadrature of prior times likelihood."""
    law, seen = VarianceLaw(df=2.5, scale=0.7), 0.4
    prior = invgamma(law.df / 2, scale=law.df * law.scale / 2)

    def weight(variance):
        return prior.pdf(variance) * chi2.pdf(degrees * seen / variance, degrees) / variance

    total = quad(weight, 0.0, np.inf, epsabs=0.0)[0]
    found = law.given(torch.tensor([seen]), degrees, 5)[:, 0]
    for place, value in zip((0.1, 0.3, 0.5, 0.7, 0.9), found.tolist(), strict=True):
        below = quad(weight, 0.0, value, epsabs=0.0, limit=200)[0] / total
        assert below == pytest.approx(place, rel=1e-5)


def test_many_networks_are_believed_and_few_are_not():
    law = VarianceLaw(df=4.0, scale=1.0)
    many = law.given(torch.tensor([9.0]), 4000, 8)
    assert many.min() > 8.5
    assert many.max() < 9.6
    assert float(law.given(torch.tensor([9.0]), 1, 8).median()) < 4.0


def test_shapes_and_columns():
    law = VarianceLaw(df=4.0, scale=1.0)
    estimate = torch.rand(3, 2)
    found = law.given(estimate, 3, 7)
    assert found.shape == (7, 3, 2)
    assert found.dtype == torch.float64
    assert bool((found.diff(dim=0) > 0).all())


@pytest.mark.parametrize(("df", "degrees"), [(1.5, 3), (6.0, 1), (30.0, 9)])
def test_the_law_is_found_again(df, degrees):
    generator = np.random.default_rng(1)
    true = df * 0.2 / generator.chisquare(df, size=100_000)
    seen = torch.from_numpy(true * generator.chisquare(degrees, size=100_000) / degrees)
    law = fit_law(seen, degrees)
    assert law.df == pytest.approx(df, rel=0.1)
    assert law.scale == pytest.approx(0.2, rel=0.03)


def test_variances_that_are_all_alike_have_a_law_that_says_so():
    seen = torch.from_numpy(np.random.default_rng(0).chisquare(3, size=5000) / 3)
    law = fit_law(seen, 3)
    assert law.df > 100.0
    assert law.scale == pytest.approx(1.0, rel=0.05)


def test_what_tells_no_law():
    assert fit_law(torch.zeros(20), 3) is None
    assert fit_law(torch.tensor([0.0, 1.0]), 3) is None
    assert fit_law(torch.tensor([0.0, 1.0, 2.0]), 3) is not None
    wide = torch.logspace(-300, 300, 50, dtype=torch.float64)
    assert fit_law(wide, 3) is None or fit_law(wide, 3).df == 0.02
    with pytest.raises(InvalidData, match="df of a variance"):
        VarianceLaw(0.0, 1.0)
