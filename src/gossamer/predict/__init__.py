"""Posterior prediction.

The average over samples, and its split into epistemic and aleatoric uncertainty.
"""

from gossamer.predict.predict import predict
from gossamer.predict.prediction import ClassPrediction, Prediction, RealPrediction

__all__ = ["ClassPrediction", "Prediction", "RealPrediction", "predict"]
