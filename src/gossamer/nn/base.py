"""What all sparse layers share: a support, a bias, a backend, and vectors over the support.

A Bayesian layer uses its weights in one of three ways: the mean, one draw, or local noise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from gossamer.core.gaussian import raw_from_std, std_from_raw
from gossamer.core.priors import Prior
from gossamer.core.sigma_init import SigmaRule
from gossamer.core.support import Support, check_indices
from gossamer.errors import InvalidValue
from gossamer.nn.belief import Believed
from gossamer.nn.origin import Origin
from gossamer.nn.stochastic import NeedsOwnPass, Noise
from gossamer.nn.vector import Vector
from gossamer.nn.watch import Watched, identity
from gossamer.ops import (
    Backend,
    Growth,
    Layout,
    Pattern,
    draw,
    gaussian,
    get_backend,
    in_backward,
    is_transformed,
)

FreshMoment = Callable[[Literal[1, 2], Tensor], Tensor | float]


def fresh_moment(order: Literal[1, 2], kept: Tensor) -> Tensor | float:
    """The optimiser's moments of a weight that was not there before.

    The first are 0. The second are the mean of those that are kept: zero would make Adam's first
    steps up to (1 - β₁)/√(1 - β₂) = 3.2 times the learning rate, and several times that over the
    following ones.

    Args:
        order: Of the moment.
        kept: ``[k]``, that of the weights that stay.
    """
    return kept.mean() if order == 2 else 0.0


class SparseLayer(Watched):
    """A linear map whose weight lives on a support.

    Args:
        layout: Shape and geometry of the weight.
        support: The kept positions.
        bias: Dense, deterministic; or ``None``.
        backend: Name of what computes the layer.
        draws_weights: The layer is used under two names or shares its parameters, so all its uses
            must see one θ: local noise, which is independent per use, would be wrong.

    Attributes:
        growth: Set while the layer is armed: backward passes then catch addition scores in it.
        shared_seed: The seed that all uses of a shared weight take in one forward pass.
        in_shared_forward: Whether the converted root is in that forward pass.
        stand_in: Computes the layer in place of its own backend, for a while; it must take the
            pattern of that.
        origin: What the torch module was, where that was not torch's own class.
        products: Sparse products of a training pass: two where the output has a variance.
    """

    products: ClassVar[int] = 1

    indices: Tensor | None
    bias: nn.Parameter | None
    stand_in: Backend | None = None
    origin: Origin | None = None

    def __init__(
        self,
        layout: Layout,
        support: Support,
        bias: nn.Parameter | None,
        *,
        backend: str = "masked",
        draws_weights: bool = False,
    ) -> None:
        super().__init__()
        get_backend(backend)
        if support.shape != layout.shape:
            raise InvalidValue("support shape", support.shape, f"must equal {layout.shape}")
        self.layout = layout
        self._backend_name = backend
        self.draws_weights = draws_weights
        self.shared_seed: Tensor | None = None
        self.in_shared_forward = False
        self.growth: Growth | None = None
        self.register_parameter("bias", bias)
        self.register_buffer("indices", support.indices)
        self._derived_from: tuple[int, int] | None = None
        self._pattern: Pattern | None = None
        self.note_support()
        self.refresh_pattern()

    @property
    def backend(self) -> Backend:
        """The backend that computes this layer."""
        return get_backend(self._backend_name) if self.stand_in is None else self.stand_in

    def use_backend(self, name: str) -> None:
        """Let another backend compute this layer from now on."""
        get_backend(name)
        self._backend_name = name
        self.refresh_pattern()

    @property
    def pattern(self) -> Pattern:
        """The support as the backend reads it."""
        if torch.compiler.is_compiling():
            return self._present_pattern()
        if is_transformed():  # wrappers have no memory by which to tell what was derived from them
            return Pattern(self.indices)
        if self._is_stale():
            self.refresh_pattern()
        if self._pattern is None:
            self._pattern = self._present_pattern()
        return self._pattern

    def _present_pattern(self) -> Pattern:
        found = (getattr(self, f"pattern_{name}", None) for name in self.backend.derived)
        return Pattern(self.indices, tuple(tensor for tensor in found if tensor is not None))

    def _apply(self, *args: Any, **kwargs: Any) -> SparseLayer:
        self._pattern = None  # holds the buffers that a move replaces
        super()._apply(*args, **kwargs)
        return self

    def _is_stale(self) -> bool:
        return self.indices is not None and identity(self.indices) != self._derived_from

    def refresh_pattern(self) -> None:
        """Derive anew what the backend needs; after every change of ``indices``.

        Tensors keep their identity where their shape allows it, so that compiled graphs hold.
        """
        found = self.backend.prepare(self.indices, self.layout)
        derived = {f"pattern_{n}": t for n, t in zip(self.backend.derived, found, strict=False)}
        for name in [n for n in self._buffers if n.startswith("pattern_") and n not in derived]:
            delattr(self, name)  # of another backend, or of a support that had more to prepare
        for name, tensor in derived.items():
            held = getattr(self, name, None)
            if held is not None and held.shape == tensor.shape and held.device == tensor.device:
                held.copy_(tensor)
            else:
                self.register_buffer(name, tensor, persistent=False)
        self._derived_from = None if self.indices is None else identity(self.indices)
        self._pattern = None

    @property
    def support(self) -> Support:
        """The kept positions, as a value that shares the layer's index buffer."""
        return Support(self.layout.shape, self.indices)

    @property
    def nnz(self) -> int:
        """Number of kept weights."""
        return self.support.nnz

    @property
    def sparsity(self) -> float:
        """Share of weights removed."""
        return self.support.sparsity

    @property
    def density(self) -> float:
        """Share of weights kept."""
        return self.support.density

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """Everything that lives on the support, the weights' values first."""
        raise InvalidValue("layer", type(self).__name__, "must be Bayesian or deterministic")

    @property
    def factors(self) -> tuple[Vector, ...]:
        """Parameters of the weight that do not live on its support, and stay where it moves."""
        return ()

    def fresh_values(self, stayed: Tensor, sigma: SigmaRule) -> dict[str, Tensor | float]:
        """What every vector holds for a weight that enters the support.

        Args:
            stayed: int64 ``[k]``, the slots of the weights that stay.
            sigma: From the standard deviations of those that stay to that of a fresh one.

        Returns:
            By the name of the vector: 0 for values.
        """
        return {vector.name: 0.0 for vector in self.vectors if vector.role == "value"}

    def fresh_moment(self, order: Literal[1, 2], kept: Tensor) -> Tensor | float:
        """What the optimiser's moments of a weight are that enters the support."""
        return fresh_moment(order, kept)

    def leading(self) -> nn.Parameter:
        """The parameter that carries the weights' values: the first of ``vectors``.

        The mean, or the values of a deterministic layer.
        """
        return self.vectors[0].parameter

    @property
    def weight_std(self) -> Tensor | None:
        """Standard deviations ``[nnz]``; ``None`` where a weight has one value."""
        return None

    @property
    def weight_variance(self) -> Tensor | None:
        """Their squares."""
        return None

    @property
    def marginal_std(self) -> Tensor | None:
        """Standard deviations ``[nnz]`` of the kept weights under the whole posterior."""
        return self.weight_std

    def absent_variance(self, square: Tensor) -> Tensor | None:
        """What weights off the support add to the variance of the outputs, from x²."""
        return None

    @property
    def notes(self) -> tuple[str, ...]:
        """What ``summary`` should say of the layer beside its numbers."""
        return ()

    def current_values(self) -> Tensor:
        """The values ``[nnz]`` that ``weight`` shows: a draw while sampling, else the mean."""
        return self.leading()

    @property
    def weight(self) -> Tensor:
        """The dense weight, zero off the support, differentiable.

        For parents that read it instead of calling the layer. Writing to it changes nothing, which
        the layer's next use reports.
        """
        return self.shown_weight()

    def shown_weight(self) -> Tensor:
        """``weight``: a method, since compiled code knows no property of a base class."""
        self.require_unwritten()
        return self.show(self.as_stored(self.computed_weight()), self.leading())

    def as_stored(self, weight: Tensor) -> Tensor:
        """A dense weight in the form that the torch module has it in."""
        return weight

    def take_rest(self, module: nn.Module) -> None:
        """Take what the torch module holds beside weight and bias; most hold nothing."""

    def computed_weight(self) -> Tensor:
        """``weight``, for those who do not write to it."""
        return self.backend.weight(self.current_values(), self.pattern, self.layout, self.growth)

    def forward(self, x: Tensor) -> Tensor:
        """The linear map of ``x``."""
        self.require_call(x)
        return self.compute(x, self.layout)

    def compute(self, x: Tensor, layout: Layout) -> Tensor:
        """The map with the weights of this call: the mean, or one draw."""
        values = self.pass_values()
        return self.backend.product(x, values, self.pattern, layout, self.bias, self.growth)

    def pass_values(self) -> Tensor:
        """The values ``[nnz]`` of a forward pass."""
        return self.current_values()

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        stored = state_dict.get(prefix + "indices")
        if stored is not None:
            check_indices(stored, self.layout.numel, prefix + "indices")
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self.note_support()
        self.refresh_pattern()

    def extra_repr(self) -> str:
        """Shape and sparsity, for ``print(model)``."""
        return f"shape={tuple(self.layout.shape)}, nnz={self.nnz}, sparsity={self.sparsity:.4g}"


class DeterministicLayer(SparseLayer):
    """A sparse layer with one value per kept weight.

    Attributes:
        weight_values: ``[nnz]``.
    """

    def __init__(
        self,
        layout: Layout,
        support: Support,
        values: Tensor,
        bias: nn.Parameter | None,
        **options: Any,
    ) -> None:
        super().__init__(layout, support, bias, **options)
        self.weight_values = nn.Parameter(values)

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """``weight_values``."""
        return (Vector("weight_values", self.weight_values, "value"),)

    def leading(self) -> nn.Parameter:
        """``weight_values``."""
        return self.weight_values


class BayesianLayer(Believed, SparseLayer):
    """A sparse layer with an independent Gaussian per kept weight: N(weight_mean, weight_std²).

    ``train()``: local reparameterisation, Eq. (4). ``eval()``: the means, like Dropout. Inside
    ``gossamer.sampling``: as the context says.

    Attributes:
        weight_mean: ``[nnz]``.
        weight_raw_std: ``[nnz]``, softplus pre-image of the standard deviation.

    What it believes before any data is that of ``Believed``.
    """

    products = 2

    def __init__(
        self,
        layout: Layout,
        support: Support,
        mean: Tensor,
        std: Tensor,
        bias: nn.Parameter | None,
        *,
        prior: Prior,
        **options: Any,
    ) -> None:
        super().__init__(layout, support, bias, **options)
        self.prior = prior
        self.weight_mean = nn.Parameter(mean)
        self.weight_raw_std = nn.Parameter(raw_from_std(std))
        self.register_parameter("absent_log_out", None)
        self.register_parameter("absent_log_in", None)
        self.register_buffer("prior_mean", None)

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """``weight_mean`` and ``weight_raw_std``."""
        return (
            Vector("weight_mean", self.weight_mean, "value"),
            Vector("weight_raw_std", self.weight_raw_std, "scale"),
        )

    def fresh_values(self, stayed: Tensor, sigma: SigmaRule) -> dict[str, Tensor | float]:
        """Mean 0, and a standard deviation by rule: one of 0 would have no gradient, Eq. (5)."""
        std = self.weight_std
        raw = raw_from_std(sigma(std[stayed] if stayed.numel() else std))
        return {"weight_mean": 0.0, "weight_raw_std": raw}

    @property
    def weight_std(self) -> Tensor:
        """Standard deviations ``[nnz]``, in float32 at least."""
        return std_from_raw(gaussian.at_least_float32(self.weight_raw_std))

    @property
    def weight_variance(self) -> Tensor:
        """Variances ``[nnz]``, in float32 at least."""
        return gaussian.variance_of(self.weight_raw_std)

    def leading(self) -> nn.Parameter:
        """``weight_mean``."""
        return self.weight_mean

    def noise(self) -> Noise | None:
        """As everywhere, but a weight with several uses is drawn as a whole."""
        wanted = super().noise()
        return "weight" if wanted and self.draws_weights else wanted

    def current_values(self) -> Tensor:
        """One draw θ ``[nnz]`` while sampling, else the mean."""
        if self.noise() is None:
            return self.weight_mean
        return draw(self.weight_mean, self.weight_std, self.seed("weight"))

    def computed_weight(self) -> Tensor:
        """As everywhere; a draw has noise off the support too where absent weights have some."""
        found, absent = super().computed_weight(), self.absent()
        if absent is None or self.noise() is None:
            return found
        return found + absent.draw(self.seed("weight")).to(found.dtype)

    def pass_values(self) -> Tensor:
        """``current_values``, drawn once where the context holds draws."""
        state = self.sampling_state
        if state is None or not state.holds or torch.compiler.is_compiling():
            return self.current_values()
        if state.drawn is None:
            state.drawn = self.current_values()
        return state.drawn

    def compute(self, x: Tensor, layout: Layout) -> Tensor:
        """The map with the noise that the mode asks for."""
        noise, state, absent = self.noise(), self.sampling_state, self.absent(layout)
        if noise == "weight" and state is not None and state.is_shared:
            _require_rows(x, state.rows, layout)
            mean, std, seeds = self.weight_mean, self.weight_std, state.next_seed("weight")
            y = self.backend.samples(x, mean, std, self.pattern, layout, self.bias, seeds)
            return y if absent is None else y + absent.samples(x, seeds)
        if noise != "local":
            y = super().compute(x, layout)
            if absent is None or noise is None:
                return y
            return y + absent.product(x, self.draw_absent(absent))
        seed = self.seed("local")
        y = self.backend.local(
            x,
            self.weight_mean,
            self.weight_variance,
            self.pattern,
            layout,
            self.bias,
            seed,
            self.growth,
        )
        return y if absent is None else y + absent.local(x, seed).to(y.dtype)

    def seed(self, noise: Noise | None = None) -> Tensor:
        """As everywhere, but all uses of a shared weight have one seed in a forward pass."""
        shares = self.sampling_state is None and self.shared_seed is not None
        # Inside the backward pass this is a recomputation (activation checkpointing).
        if shares and (self.in_shared_forward or in_backward()):
            assert self.shared_seed is not None
            return self.shared_seed
        return super().seed(noise)


def _require_rows(x: Tensor, rows: int | None, layout: Layout) -> None:
    """Raise unless the leading axis of ``x`` is that of the samples' rows.

    A model may reorder its axes; more than one axis of rows could be in any order.
    """
    expected = 1 if layout.is_lookup else layout.dims + 2
    if x.dim() != expected or x.shape[0] != rows:
        rule = f"needs {rows} rows, sample by sample, on the first of {expected} axes"
        raise NeedsOwnPass("input of a layer", tuple(x.shape), rule, "run the samples in turn")
