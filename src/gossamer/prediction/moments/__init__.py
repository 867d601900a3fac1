"""Prediction without samples: the rules of each layer, a whole network, a posterior."""

from gossamer.prediction.moments.form import Moments
from gossamer.prediction.moments.rules import RULES, rule_of

__all__ = ["RULES", "Moments", "rule_of"]
