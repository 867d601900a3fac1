"""The face to scikit-learn: estimators with ``fit`` and ``predict`` for tables.

>>> from gossamer.sklearn import SparseBayesClassifier, SparseBayesRegressor
"""

from __future__ import annotations

from gossamer.sklearn.classifier import SparseBayesClassifier
from gossamer.sklearn.distribution import PredictiveDistribution
from gossamer.sklearn.regressor import SparseBayesRegressor

__all__ = ["PredictiveDistribution", "SparseBayesClassifier", "SparseBayesRegressor"]
