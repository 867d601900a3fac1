"""Every public metric has an example; that they run is in tests/architecture/test_doctests.py."""

from __future__ import annotations

from gossamer import metrics


def test_every_public_function_has_an_example():
    functions = [getattr(metrics, name) for name in metrics.__all__]
    documented = [item for item in functions if ">>>" in (item.__doc__ or "")]
    containers = {
        metrics.ReliabilityCurve,
        metrics.RiskCoverageCurve,
        metrics.Selection,
        metrics.SelectiveCurve,
    }
    assert set(functions) - set(documented) == containers
