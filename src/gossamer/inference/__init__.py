"""Methods behind one protocol (``methods/``, one file each), and the pieces for own loops."""

from gossamer.core.swap import LayerSwap, SwapInfo
from gossamer.inference.batch import Batch
from gossamer.inference.group import Alone, Group
from gossamer.inference.method import Method, MethodEntry, StepInfo
from gossamer.inference.objective import (
    ELBO,
    ElboParts,
    Energy,
    KLScale,
    Objective,
    check_kl_scale,
)
from gossamer.inference.parameters import parameter_groups
from gossamer.inference.registry import (
    METHODS,
    build,
    method_entry,
    register_method,
    resolve_config,
)
from gossamer.inference.subspace import Subspace, SwapRule

__all__ = [
    "ELBO",
    "METHODS",
    "Alone",
    "Batch",
    "ElboParts",
    "Energy",
    "Group",
    "KLScale",
    "LayerSwap",
    "Method",
    "MethodEntry",
    "Objective",
    "StepInfo",
    "Subspace",
    "SwapInfo",
    "SwapRule",
    "build",
    "check_kl_scale",
    "method_entry",
    "parameter_groups",
    "register_method",
    "resolve_config",
]
