"""scikit-learn's own checks, all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from gossamer.sklearn import SparseBayesClassifier, SparseBayesRegressor

SMALL: dict[str, Any] = {"max_steps": 60, "hidden": (16,), "sparsity": 0.5}
FEW: dict[str, Any] = {**SMALL, "members": 4, "method_options": {"lr_factor": 10.0}}
"""Of the regressor: few networks that have learnt something after so few steps."""

# scikit-learn skips check_array_api_input unless scipy was imported under SCIPY_ARRAY_API=1; the
# test below runs it so. No other check is skipped, and none is expected to fail.
_CHECK = """
from gossamer.sklearn import {name}
from sklearn.utils.estimator_checks import check_array_api_input
check_array_api_input("{name}", {name}(**{small}), array_namespace="numpy")
"""


@pytest.mark.filterwarnings("ignore")  # which the checks provoke, and assert where they matter
@parametrize_with_checks([SparseBayesClassifier(**SMALL), SparseBayesRegressor(**FEW)])
def test_check_of_scikit_learn(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.parametrize("name", ["SparseBayesClassifier", "SparseBayesRegressor"])
def test_arrays_of_the_array_api(name: str) -> None:
    code = _CHECK.format(name=name, small=SMALL)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "SCIPY_ARRAY_API": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([SparseBayesClassifier(), SparseBayesRegressor()])
def test_check_of_scikit_learn_with_plain_defaults(
    estimator: Any, check: Callable[[Any], None]
) -> None:
    check(estimator)
