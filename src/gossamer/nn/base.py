"""What all sparse layers share.

A support, a bias, an engine, and the three ways to use the weights (mean, one draw, local noise).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gossamer.core.gaussian import kl_to_prior, raw_from_std, std_from_raw
from gossamer.core.support import Support, check_indices
from gossamer.errors import GossamerError, InvalidValue
from gossamer.ops import (
    Backend,
    Growth,
    Layout,
    Pattern,
    backend,
    draw,
    draw_seed,
    posterior,
)
from gossamer.ops.reading import ReadInputs, version_of

Noise = Literal["weight", "local"]

# The golden ratio in 63 bits: multiples are spread evenly, so that calls get distant seeds.
_SEED_STRIDE = 0x4F1BBCDCBFA53E0B
_SEED_RANGE = 2**62


class NeedsOwnPass(GossamerError):
    """Several samples share a pass in which a layer cannot tell them apart."""


@dataclass(eq=False)
class SamplingState:
    """How a layer samples inside ``gossamer.sampling``.

    Attributes:
        noise: ``weight``: one θ for all rows; ``local``: independent per row and pixel; ``None``:
            the means.
        seed: 0-d int64, folded from the context's seed and the layer's place in the model; a
            tensor, so that compiled graphs do not depend on its value. ``[S]`` where S samples
            share the pass: each has its own θ, and the first seed stands for the local noise.
        calls: Forward passes so far; local noise must differ between two calls of one layer.
        rows: Where samples share the pass, all their rows: those of sample 0, then of sample 1.
        holds: Whether a draw of θ serves all passes to come (``holding_draws``).
        drawn: That draw.
    """

    noise: Noise | None
    seed: Tensor
    calls: int = 0
    rows: int | None = None
    holds: bool = False
    drawn: Tensor | None = None

    @property
    def is_shared(self) -> bool:
        """Whether several samples share the pass."""
        return self.rows is not None

    def next_seed(self, noise: Noise) -> Tensor:
        """The seed of this call: the same for every draw of θ, another for each local one."""
        if noise == "weight":
            return self.seed
        self.calls += 1
        first = self.seed[0] if self.is_shared else self.seed
        return first + self.calls * _SEED_STRIDE % _SEED_RANGE

    def check_rows(self, x: Tensor, layout: Layout) -> None:
        """Raise unless the leading axis of ``x`` is that of the samples' rows, beyond doubt.

        A model may reorder its axes; more than one axis of rows could be in any order.
        """
        expected = 2 if layout.kind == "linear" else layout.dims + 2
        if x.dim() != expected or x.shape[0] != self.rows:
            rule = f"needs {self.rows} rows, sample by sample, on the first of {expected} axes"
            raise NeedsOwnPass("input of a layer", tuple(x.shape), rule, "run the samples in turn")

    def __deepcopy__(self, memo: object) -> None:
        """A copy of a sampling layer does not sample."""


class SparseLayer(nn.Module):
    """A linear map whose weight lives on a support.

    Args:
        layout: Shape and geometry of the weight.
        support: The kept positions.
        bias: Dense, deterministic; or ``None``.
        engine: Name of the backend.
        draws_weights: The layer is used under two names or shares its parameters, so all its uses
            must see one θ: local noise, which is independent per use, would be wrong.

    Attributes:
        growth: Set while the layer is armed: backward passes then catch addition scores in it.
        shared_seed: The seed that all uses of a shared weight take in one forward pass.
        in_shared_forward: Whether the converted root is in that forward pass.
    """

    indices: Tensor | None
    bias: nn.Parameter | None
    _read: ReadInputs | None = None

    def __init__(
        self,
        layout: Layout,
        support: Support,
        bias: nn.Parameter | None,
        *,
        engine: str = "masked",
        draws_weights: bool = False,
    ) -> None:
        super().__init__()
        backend(engine)
        if support.shape != layout.shape:
            raise InvalidValue("support shape", support.shape, f"must equal {layout.shape}")
        self.layout = layout
        self.engine = engine
        self.draws_weights = draws_weights
        self.shared_seed: Tensor | None = None
        self.in_shared_forward = False
        self.growth: Growth | None = None
        self.register_parameter("bias", bias)
        self.register_buffer("indices", support.indices)
        self._derived_from: tuple[int, int] | None = None
        self._pattern: Pattern | None = None
        self.refresh_pattern()

    @property
    def backend(self) -> Backend:
        """The engine that computes this layer."""
        return backend(self.engine)

    def use_engine(self, name: str) -> None:
        """Let another backend compute this layer from now on."""
        backend(name)
        self.engine = name
        self.refresh_pattern()

    @property
    def pattern(self) -> Pattern:
        """The support as the engine reads it."""
        if torch.compiler.is_compiling():
            return self._present_pattern()
        if self._is_stale():
            self.refresh_pattern()
        if self._pattern is None:
            self._pattern = self._present_pattern()
        return self._pattern

    def _present_pattern(self) -> Pattern:
        found = (getattr(self, f"pattern_{name}", None) for name in self.backend.derived)
        return Pattern(self.indices, tuple(tensor for tensor in found if tensor is not None))

    def note_read_inputs(self, inputs: Tensor | None) -> None:
        """Note that the present values are 0 but for those of some inputs.

        The engine may then leave the others out of a forward pass. It holds for these values only.

        Args:
            inputs: int64 ``[k]``, of a linear layer with a full support; ``None`` takes it back.
        """
        self._read = None if inputs is None else ReadInputs.of(inputs, self.leading())

    def _pattern_for(self, values: Tensor) -> Pattern:
        """The pattern of a product, with the inputs that are read where that is known."""
        if self._read is None or self.indices is not None or not self._read.holds_for(values):
            return self.pattern
        return replace(self.pattern, read=self._read.inputs)

    def _apply(self, *args: Any, **kwargs: Any) -> SparseLayer:
        self._pattern = None  # holds the buffers that a move replaces
        super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        return self

    def _is_stale(self) -> bool:
        return self.indices is not None and _identity(self.indices) != self._derived_from

    def refresh_pattern(self) -> None:
        """Derive anew what the engine needs; after every change of ``indices``.

        Tensors keep their identity where their shape allows it, so that compiled graphs hold.
        """
        found = self.backend.prepare(self.indices, self.layout)
        derived = {f"pattern_{n}": t for n, t in zip(self.backend.derived, found, strict=False)}
        for name in [n for n in self._buffers if n.startswith("pattern_") and n not in derived]:
            delattr(self, name)  # of another engine, or of a support that had more to prepare
        for name, tensor in derived.items():
            held = getattr(self, name, None)
            if held is not None and held.shape == tensor.shape and held.device == tensor.device:
                held.copy_(tensor)
            else:
                self.register_buffer(name, tensor, persistent=False)
        self._derived_from = None if self.indices is None else _identity(self.indices)
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

    def leading(self) -> nn.Parameter:
        """The parameter that carries the weights' values.

        The mean, or the values of a deterministic layer.
        """
        raise InvalidValue("layer", type(self).__name__, "must be Bayesian or deterministic")

    def current_values(self) -> Tensor:
        """The values ``[nnz]`` that ``weight`` shows: a draw while sampling, else the mean."""
        return self.leading()

    @property
    def weight(self) -> Tensor:
        """The dense weight, zero off the support, differentiable.

        For parents that read it instead of calling the layer.
        """
        return self.backend.weight(self.current_values(), self.pattern, self.layout, self.growth)

    def forward(self, x: Tensor) -> Tensor:
        """The linear map of ``x``."""
        return self.compute(x, self.layout)

    def compute(self, x: Tensor, layout: Layout) -> Tensor:
        """The map with the weights of this call: the mean, or one draw."""
        values = self.pass_values()
        pattern = self._pattern_for(values)
        return self.backend.product(x, values, pattern, layout, self.bias, self.growth)

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

    def leading(self) -> nn.Parameter:
        """``weight_values``."""
        return self.weight_values


class BayesianLayer(SparseLayer):
    """A sparse layer with an independent Gaussian per kept weight.

    N(weight_mean, weight_std²), prior N(0, prior_std²).

    ``train()``: local reparameterisation, Eq. (4). ``eval()``: the means, like Dropout. Inside
    ``gossamer.sampling``: as the context says.

    Attributes:
        weight_mean: ``[nnz]``.
        weight_raw_std: ``[nnz]``, softplus pre-image of the standard deviation.
    """

    def __init__(
        self,
        layout: Layout,
        support: Support,
        mean: Tensor,
        std: Tensor,
        bias: nn.Parameter | None,
        *,
        prior_std: float,
        **options: Any,
    ) -> None:
        super().__init__(layout, support, bias, **options)
        if not prior_std > 0.0:
            raise InvalidValue("prior_std", prior_std, "must be positive")
        self.prior_std = float(prior_std)
        self.weight_mean = nn.Parameter(mean)
        self.weight_raw_std = nn.Parameter(raw_from_std(std))
        self.sampling_state: SamplingState | None = None

    @property
    def weight_std(self) -> Tensor:
        """Standard deviations ``[nnz]``, in float32 at least."""
        return std_from_raw(posterior.at_least_float32(self.weight_raw_std))

    @property
    def weight_variance(self) -> Tensor:
        """Variances ``[nnz]``, in float32 at least."""
        return posterior.variance_of(self.weight_raw_std)

    def leading(self) -> nn.Parameter:
        """``weight_mean``."""
        return self.weight_mean

    def kl_divergence(self) -> Tensor:
        """Σ KL(N(mean, std²) || N(0, prior_std²)) over the kept weights, in nats: 0-d."""
        if posterior.is_fused(self.weight_mean, self.weight_raw_std):
            return posterior.kl_sum(self.weight_mean, self.weight_raw_std, self.prior_std)
        return kl_to_prior(
            posterior.at_least_float32(self.weight_mean), self.weight_std, self.prior_std
        ).sum()

    def noise(self) -> Noise | None:
        """The noise that the next pass uses; ``None`` for the means."""
        if self.sampling_state is not None:
            wanted = self.sampling_state.noise
        else:
            wanted = "local" if self.training else None
        return "weight" if wanted and self.draws_weights else wanted

    def current_values(self) -> Tensor:
        """One draw θ ``[nnz]`` while sampling, else the mean."""
        if self.noise() is None:
            return self.weight_mean
        if self.sampling_state is not None and self.sampling_state.is_shared:
            raise NeedsOwnPass(
                "weight", None, "is another in each sample of the pass", "run the samples in turn"
            )
        return draw(self.weight_mean, self.weight_std, self._seed("weight"))

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
        noise, state = self.noise(), self.sampling_state
        if noise == "weight" and state is not None and state.is_shared:
            state.check_rows(x, layout)
            mean, std = self.weight_mean, self.weight_std
            return self.backend.samples(
                x, mean, std, self.pattern, layout, self.bias, state.next_seed("weight")
            )
        if noise != "local":
            return super().compute(x, layout)
        return self.backend.local(
            x,
            self.weight_mean,
            self.weight_raw_std,
            self.pattern,
            layout,
            self.bias,
            self._seed("local"),
            self.growth,
        )

    def _seed(self, noise: Noise) -> Tensor:
        if self.sampling_state is not None:
            return self.sampling_state.next_seed(noise)
        # Inside the backward pass this is a recomputation (activation checkpointing).
        if self.shared_seed is not None and (self.in_shared_forward or _in_backward()):
            return self.shared_seed
        return draw_seed()


def _identity(indices: Tensor) -> tuple[int, int]:
    """Where the positions lie and how often they were changed there."""
    return indices.data_ptr(), version_of(indices)


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)
