"""``bench memory``: bytes of the training state, of a step, and of a swap's scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim.optimizer import Optimizer

from gossamer.bench import methods, targets
from gossamer.bench.allocations import address, unique_bytes
from gossamer.bench.fresh import in_fresh_process
from gossamer.bench.networks import DenseStep, Network, SparseStep, networks
from gossamer.bench.result import MEGABYTE, Entry, Finding, Measured, Row, sized_rows
from gossamer.bench.settings import Settings, Tell

SPARSITY = 0.95
BATCH, QUICK_BATCH = 128, 8
SIDE, QUICK_SIDE = 4096, 256
UNIFORM, ERK = "uniform_dense_first", "erk"

DENSE_VI, OURS = Entry("dense VI"), Entry("gossamer", SPARSITY)
MASKED, DENSE = Entry("masked", SPARSITY), Entry("deterministic")


def measure(settings: Settings, threads: int, tell: Tell) -> Measured:
    """All of it; only the peak depends on the number of threads."""
    resnet, mlp = networks(quick=settings.quick)
    batch = QUICK_BATCH if settings.quick else BATCH
    rows: list[Row] = []
    findings: list[Finding] = []

    def note(what: str, sizes: dict[Entry, float]) -> float:
        found = sized_rows(what, sizes, DENSE_VI, threads)
        rows.extend(found)
        return sizes[DENSE_VI] / sizes[OURS]

    for network, distribution in ((resnet, UNIFORM), (mlp, ERK)):
        tell(f"training state of {network.name}")
        what = f"parameters, gradients, Adam and indices, {network.name}"
        times = note(what, _states(network, distribution))
        name = f"{what}: times smaller"
        findings.append(Finding(name, threads, times, target=targets.STATE))
    tell(f"step of {resnet.name}, batch {batch}")
    what = f"saved for backward, {resnet.name}, batch {batch}"
    share = 1 / note(what, _saved(resnet, batch))
    findings.append(Finding(f"{what}: share", threads, share, "%", targets.SAVED))
    what = f"peak resident, {resnet.name}, batch {batch}"
    whole, net = _peaks(settings, batch, threads)
    share = 1 / note(what, whole)
    findings.append(Finding(f"{what}: share", threads, share, "%", targets.PEAK))
    what += ", without the bare process"
    share = 1 / note(what, net)
    findings.append(Finding(f"{what}: share", threads, share, "%"))
    side = QUICK_SIDE if settings.quick else SIDE
    tell(f"growth on {side}x{side}")
    findings += _growth(side, batch, threads)
    held = methods.measure_bytes(settings, threads, tell)
    findings += [*held.findings, *_draws(settings, threads)]
    return Measured((*rows, *held.rows), tuple(findings))


def state_bytes(model: nn.Module, optimizer: Optimizer) -> int:
    """Bytes of parameters, gradients, buffers (indices are buffers) and optimiser state."""

    def tensors() -> Iterable[Tensor]:
        yield from model.buffers()
        for parameter in model.parameters():
            yield parameter
            if parameter.grad is not None:
                yield parameter.grad
        for state in optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))

    return unique_bytes(tensors())


def saved_bytes(loss: Callable[[], Tensor], model: nn.Module) -> int:
    """Bytes that a forward pass keeps for the backward pass; the model's own are not counted."""
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        held = loss()  # keeps the graph, and with it every storage: no address is used twice
    own = {address(tensor) for tensor in (*model.parameters(), *model.buffers())}
    counted = unique_bytes(tensor for tensor in saved if address(tensor) not in own)
    del held
    return counted


def _states(network: Network, distribution: str) -> dict[Entry, float]:
    batch = network.batch(2)  # the state does not depend on its size
    model = network.build()
    steps: dict[Entry, DenseStep | SparseStep] = {
        DENSE_VI: DenseStep.variational(model, batch),
        DENSE: DenseStep(network.build(), None, batch),
        OURS: SparseStep(model, SPARSITY, distribution, batch),
    }
    sizes = {}
    for entry, step in steps.items():
        step.plain()
        sizes[entry] = float(state_bytes(step.model, step.optimizer))
    return sizes


def _saved(network: Network, size: int) -> dict[Entry, float]:
    batch, model = network.batch(size), network.build()
    steps: dict[Entry, DenseStep | SparseStep] = {
        DENSE_VI: DenseStep.variational(model, batch),
        DENSE: DenseStep(network.build(), None, batch),
        MASKED: SparseStep(model, SPARSITY, UNIFORM, batch, backend="masked"),
        OURS: SparseStep(model, SPARSITY, UNIFORM, batch),
    }
    return {entry: float(saved_bytes(step.loss, step.model)) for entry, step in steps.items()}


def _peaks(
    settings: Settings, batch: int, threads: int
) -> tuple[dict[Entry, float], dict[Entry, float]]:
    """Peak of the whole process, and above the bare process that has imported everything."""
    whole, net = {}, {}
    for entry in (DENSE_VI, OURS):
        found = in_fresh_process(
            "peak",
            contender=entry.contender,
            quick=settings.quick,
            batch=batch,
            sparsity=SPARSITY,
            distribution=UNIFORM,
            threads=threads,
        )
        whole[entry] = found["peak"]
        net[entry] = found["peak"] - found["bare"]
    return whole, net


def _growth(side: int, batch: int, threads: int) -> list[Finding]:
    found = in_fresh_process("growth", size=side, batch=batch, sparsity=SPARSITY, threads=threads)
    name = f"{side}x{side}, {100 * SPARSITY:g} %, batch {batch}: "
    what = {
        "temporaries": "temporaries of addition scores",
        "buffers": "buffers of caught scores",
        "resident": "rise of the process by an armed pass",
        "exchange": "temporaries of the exchange",
    }
    return [
        Finding(
            name + text,
            threads,
            found[key] / MEGABYTE,
            "MB",
            targets.GROWTH if key == "temporaries" else None,
        )
        for key, text in what.items()
    ]


def _draws(settings: Settings, threads: int) -> list[Finding]:
    found = in_fresh_process("draw", quick=settings.quick, threads=threads)
    what = "means and noise of a draw of ngvi, until the step, "
    return [Finding(what + name, threads, size / MEGABYTE, "MB") for name, size in found.items()]
