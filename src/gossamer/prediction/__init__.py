"""Posterior prediction.

The average over samples, or moments in one pass, and the split into epistemic and aleatoric
uncertainty.
"""

from gossamer.prediction.predict import predict
from gossamer.prediction.predict_moments import predict_moments
from gossamer.prediction.prediction import ClassPrediction, Prediction, RealPrediction

__all__ = ["ClassPrediction", "Prediction", "RealPrediction", "predict", "predict_moments"]
