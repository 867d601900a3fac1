"""Methods, one file each, behind one protocol; and the pieces for loops of one's own."""

from gossamer.inference.method import Method, StepInfo
from gossamer.inference.objective import ELBO, ElboParts, KLScale, check_kl_scale
from gossamer.inference.parameters import parameter_groups
from gossamer.inference.registry import METHODS, build, method_entry, resolve_config
from gossamer.inference.subspace import LayerSwap, Subspace, SwapInfo

__all__ = [
    "ELBO",
    "METHODS",
    "ElboParts",
    "KLScale",
    "LayerSwap",
    "Method",
    "StepInfo",
    "Subspace",
    "SwapInfo",
    "build",
    "check_kl_scale",
    "method_entry",
    "parameter_groups",
    "resolve_config",
]
