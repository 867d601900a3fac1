"""What a model costs, layer by layer: kept weights, bytes, floating-point operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from gossamer.errors import InvalidValue
from gossamer.nn.base import SparseLayer
from gossamer.nn.candidates import left_modules, reader_of
from gossamer.nn.walk import Weight, stochastic_modules, weights_of

# A product over the support costs a multiplication and an addition per kept weight and output
# position.
_PRODUCT = 2
# Training: forward, gradient to the input, gradient to the weight.
_TRAINING_PASSES = 3


@dataclass(frozen=True)
class LayerCost:
    """One row of a summary; FLOPs are per example, ``None`` where no input shape was given.

    Attributes:
        forward_flops: One pass with the means, or with one draw θ.
        training_flops: Forward and backward; a Bayesian layer forms two products in each, of the
            mean and of the variance.
        dense_flops: ``forward_flops`` of the dense layer.
        note: Anything a reader should know.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    nnz: int
    sparsity: float
    bytes: int
    forward_flops: int | None
    training_flops: int | None
    dense_flops: int | None
    backend: str
    note: str = ""


@dataclass(frozen=True)
class Unconverted:
    """A module that holds matrices but is not sparse, and why."""

    name: str
    kind: str
    weights: int
    reason: str


@dataclass(frozen=True)
class Noisy:
    """A module beside the sparse layers that has a KL and draws noise."""

    name: str
    kind: str
    parameters: int


@dataclass(frozen=True)
class Summary:
    """Costs of a model. ``print`` it for a table; ``to_json`` for machines.

    Attributes:
        others: Parameters outside of the sparse weights: biases, normalisation, what was left.
    """

    rows: tuple[LayerCost, ...]
    unconverted: tuple[Unconverted, ...]
    noisy: tuple[Noisy, ...] = ()
    others: int = 0

    @property
    def nnz(self) -> int:
        """Kept weights of all sparse layers."""
        return sum(row.nnz for row in self.rows)

    @property
    def numel(self) -> int:
        """Dense weights of all sparse layers."""
        return sum(_numel(row.shape) for row in self.rows)

    @property
    def sparsity(self) -> float:
        """Share of weights removed, exact."""
        return 1.0 - self.nnz / self.numel if self.rows else 0.0

    @property
    def parameters(self) -> int:
        """Parameters of the whole network as it is without sparsity and posterior."""
        return self.numel + self.others

    @property
    def converted(self) -> float:
        """Share of those that are weights of sparse layers."""
        return self.numel / self.parameters if self.parameters else 0.0

    @property
    def bytes(self) -> int:
        """Parameters and indices of all sparse layers."""
        return sum(row.bytes for row in self.rows)

    @property
    def flop_density(self) -> float | None:
        """FLOPs of a pass over those of the dense model, of the layers whose FLOPs are known.

        Under ERK it is above the weight density.
        """
        dense = sum(row.dense_flops or 0 for row in self.rows)
        return sum(row.forward_flops or 0 for row in self.rows) / dense if dense else None

    def to_json(self) -> dict[str, object]:
        """Rows and totals as plain values."""
        return {
            "layers": [asdict(row) for row in self.rows],
            "unconverted": [asdict(row) for row in self.unconverted],
            "noisy": [asdict(row) for row in self.noisy],
            "nnz": self.nnz,
            "parameters": self.parameters,
            "converted": self.converted,
            "sparsity": self.sparsity,
            "bytes": self.bytes,
            "flop_density": self.flop_density,
        }

    def __str__(self) -> str:
        head = (
            "layer",
            "type",
            "shape",
            "nnz",
            "sparsity",
            "bytes",
            "forward",
            "training",
            "backend",
        )
        lines = [head, *(_cells(row) for row in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        text = [
            "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        flops = "" if self.flop_density is None else f", FLOP density {self.flop_density:.4g}"
        text.append(
            f"total: {self.nnz} of {self.numel} weights, sparsity {self.sparsity:.6g}, "
            f"weight density {1 - self.sparsity:.4g}{flops}, {self.bytes} bytes"
        )
        text.append(
            f"network: {self.numel} of {self.parameters} parameters ({self.converted:.1%}) are "
            "weights of sparse layers"
        )
        text += [f"{row.name}: {row.note}" for row in self.rows if row.note]
        text += [
            f"draws: {n.name or 'root'} ({n.kind}, {n.parameters} parameters)" for n in self.noisy
        ]
        text += [
            f"left: {u.name or 'root'} ({u.kind}, {u.weights} weights): {u.reason}"
            for u in self.unconverted
        ]
        return "\n".join(text)


def summary(model: nn.Module, input_shape: Sequence[int] | None = None) -> Summary:
    """Shape, kept weights, bytes and FLOPs of every sparse layer, and what was left unconverted.

    Args:
        model: A converted model (any module is accepted).
        input_shape: Shape of one example, without the batch axis. With it FLOPs are counted by one
            pass over zeros in evaluation mode; mode and BatchNorm statistics are restored.

    Example:
        >>> bnn = gossamer.to_bayesian(nn.Conv2d(1, 4, 3), sparsity=0.5)
        >>> cost = summary(bnn, input_shape=(1, 28, 28))
        >>> cost.nnz, cost.sparsity, cost.rows[0].forward_flops == 2 * 18 * 26 * 26
        (18, 0.5, True)
    """
    positions = {} if input_shape is None else _count_positions(model, tuple(input_shape))
    rows = []
    for weight in weights_of(model):
        layer = weight.layer
        uses = [positions.get(id(each)) for each in weight.layers]
        known = [u for u in uses if u is not None]
        factor = sum(known) if known else None
        passes = _PRODUCT * _TRAINING_PASSES * layer.products
        rows.append(
            LayerCost(
                name=weight.title,
                kind=type(layer).__name__,
                shape=layer.layout.shape,
                nnz=layer.nnz,
                sparsity=layer.sparsity,
                bytes=_bytes(layer),
                forward_flops=_times(factor, _PRODUCT * layer.nnz),
                training_flops=_times(factor, passes * layer.nnz),
                dense_flops=_times(factor, _PRODUCT * layer.layout.numel),
                backend=layer.backend.name,
                note="; ".join(_notes(model, weight)),
            )
        )
    left = tuple(Unconverted(*row) for row in left_modules(model))
    noisy = tuple(
        Noisy(name, type(m).__name__, sum(p.numel() for p in m.parameters(recurse=False)))
        for name, m in stochastic_modules(model).items()
        if isinstance(m, nn.Module) and not isinstance(m, SparseLayer)
    )
    sparse = {
        id(vector.parameter)
        for weight in weights_of(model)
        for vector in (*weight.layer.vectors, *weight.layer.factors)
    }
    others = sum(
        p.numel() for p in model.parameters() if id(p) not in sparse and not nn.parameter.is_lazy(p)
    )
    return Summary(tuple(rows), left, noisy, others)


def _notes(model: nn.Module, weight: Weight) -> list[str]:
    layer = weight.layer
    use = reader_of(model, weight.name) or ("shared" if layer.draws_weights else "")
    return [note for note in (use, *layer.notes) if note]


def _count_positions(model: nn.Module, input_shape: tuple[int, ...]) -> dict[int, int]:
    """How often each weight of a layer is used for one example, by layer id."""
    used: dict[int, int] = {}

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(layer, SparseLayer)
        if layer.layout.is_lookup:  # nothing is multiplied
            used.setdefault(id(layer), 0)
            return
        if layer.layout.kind == "conv_transpose":
            grid, channels = inputs[0], layer.layout.shape[0]
        else:
            grid, channels = output, layer.layout.fan_out
        used[id(layer)] = used.get(id(layer), 0) + grid.numel() // channels

    layers = [m for m in model.modules() if isinstance(m, SparseLayer)]
    handles = [layer.register_forward_hook(note) for layer in layers]
    modes = {module: module.training for module in model.modules()}
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    try:
        model.eval()
        with torch.no_grad():
            model(torch.zeros((1, *input_shape), dtype=like.dtype, device=like.device))
    except (RuntimeError, ValueError, IndexError) as error:
        rule = "does not fit the model: " + str(error).splitlines()[0]
        raise InvalidValue("input_shape", input_shape, rule) from error
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes.items():
            module.training = mode
    return used


def _bytes(layer: SparseLayer) -> int:
    tensors = [*layer.parameters(recurse=False), *(b for b in layer.buffers(recurse=False))]
    return sum(t.numel() * t.element_size() for t in tensors)


def _numel(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def _times(factor: int | None, value: int) -> int | None:
    return None if factor is None else factor * value


def _cells(row: LayerCost) -> tuple[str, ...]:
    return (
        row.name,
        row.kind,
        "x".join(map(str, row.shape)),
        str(row.nnz),
        f"{row.sparsity:.4f}",
        str(row.bytes),
        "-" if row.forward_flops is None else f"{row.forward_flops:.3g}",
        "-" if row.training_flops is None else f"{row.training_flops:.3g}",
        row.backend,
    )
