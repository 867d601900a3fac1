"""Samplers and CV-Adam as torch optimisers: a plain training loop, ``step()`` without arguments.

``.grad`` is the gradient of the **mean** negative log-likelihood of a batch; the optimiser adds the
prior N(0, 1/δ) as ``weight_decay`` = δ/N and the noise. ``temperature`` is that of the posterior of
``num_data`` = N points: 1 samples it, 0 only descends. Every setting can be given per group; a
group with ``noisy=False`` (parameters of a likelihood, say) takes plain steps without noise and
prior.

``lr`` is Δt² for SGHMC and CVSGHMC, so that torch's ``CosineAnnealingWarmRestarts`` with
``T_0`` = C gives the paper's cyclical step, Δt² = ½Δt₀²(1 + cos(π (t mod C)/C)), exactly. It is the
plain step for SGLD, and l for CVAdam.

State tensors have the parameter's shape and dtype; there is nothing else, so that slicing them all
follows a pruned parameter. Loading a ``state_dict`` goes on bit for bit if the random numbers do:
they come from torch's default generator or from the ``generator`` passed in, whose state is the
caller's to save.
"""

from gossamer.optim.cv_adam import CVAdam
from gossamer.optim.cv_sghmc import CVSGHMC
from gossamer.optim.langevin import Langevin
from gossamer.optim.natural_gradient import NaturalGradient
from gossamer.optim.sghmc import SGHMC
from gossamer.optim.sgld import SGLD

__all__ = ["CVSGHMC", "SGHMC", "SGLD", "CVAdam", "Langevin", "NaturalGradient"]
