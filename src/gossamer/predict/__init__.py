"""Posterior prediction.

The average over samples, or moments in one pass, and the split into epistemic and aleatoric
uncertainty.
"""

from gossamer.predict.predict import predict
from gossamer.predict.predict_moments import predict_moments
from gossamer.predict.prediction import ClassPrediction, Prediction, RealPrediction

__all__ = ["ClassPrediction", "Prediction", "RealPrediction", "predict", "predict_moments"]
