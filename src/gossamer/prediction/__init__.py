"""Prediction from a posterior that stands alone, without the method that trained it.

The average over its samples or moments in one pass, each with its epistemic and aleatoric part.
"""

from gossamer.prediction.archive import load
from gossamer.prediction.conformal.fit import calibrated, calibrated_by_scores
from gossamer.prediction.draws import Centre, Draws, GaussianDraws, NoiseDraws, StoredDraws
from gossamer.prediction.finish.finish import Finish
from gossamer.prediction.finish.fit import last_layer, tempered
from gossamer.prediction.inputs import Inputs, Shared
from gossamer.prediction.low_rank import LowRankCentre, LowRankDraws
from gossamer.prediction.mixing import Mixture, mixture
from gossamer.prediction.outputs import Output
from gossamer.prediction.posterior import Posterior
from gossamer.prediction.prediction import ClassPrediction, Prediction, RealPrediction
from gossamer.prediction.source import HasPosterior, posterior_of, predict, predict_moments

__all__ = [
    "Centre",
    "ClassPrediction",
    "Draws",
    "Finish",
    "GaussianDraws",
    "HasPosterior",
    "Inputs",
    "LowRankCentre",
    "LowRankDraws",
    "Mixture",
    "NoiseDraws",
    "Output",
    "Posterior",
    "Prediction",
    "RealPrediction",
    "Shared",
    "StoredDraws",
    "calibrated",
    "calibrated_by_scores",
    "last_layer",
    "load",
    "mixture",
    "posterior_of",
    "predict",
    "predict_moments",
    "tempered",
]
