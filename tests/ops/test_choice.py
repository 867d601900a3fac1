"""Which engine a layer gets: the rule, what a run remembers of it, and a missing library."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import gossamer as gs
from cases.engines import needs_native
from gossamer.errors import UnknownName
from gossamer.nn import restore_backends, sparse_layers
from gossamer.ops import AUTO, Layout, choice, choose, library
from reference.method_runs import build

CPU = torch.device("cpu")
LAYOUTS = {
    "linear": Layout("linear", (400, 100)),
    "conv": Layout("conv", (100, 20, 5, 4), (1, 1), ((0, 0), (0, 0)), (1, 1)),
    "conv_transpose": Layout(
        "conv_transpose", (20, 100, 5, 4), (1, 1), ((0, 0), (0, 0)), (1, 1), (0, 0)
    ),
}
every_kind = pytest.mark.parametrize("kind", LAYOUTS)


@pytest.fixture
def no_library(monkeypatch):
    """As where nothing was compiled; nobody was told yet."""
    for module in (library, choice):
        monkeypatch.setattr(module, "is_available", lambda: False)
        monkeypatch.setattr(module, "reason", lambda: "libgossamer.so was not built")
    choice._tell_once.cache_clear()
    yield
    choice._tell_once.cache_clear()


@pytest.mark.parametrize("name", ["masked", "native"])
def test_a_name_is_taken_as_it_is(name):
    """Whatever the rule would say of the layer."""
    for nnz in (1, 40_000):
        assert choose(name, LAYOUTS["linear"], nnz, CPU, torch.float32, noisy=True) == name


def test_an_unknown_name_is_refused():
    with pytest.raises(UnknownName, match="backend = dense"):
        choose("dense", LAYOUTS["linear"], 1, CPU, torch.float32, noisy=True)


@needs_native
@every_kind
@pytest.mark.parametrize("noisy", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dense_layers_stay_dense(kind, dtype, noisy):
    layout = LAYOUTS[kind]
    most = int(choice.MAX_DENSITY[noisy][kind] * layout.numel)
    assert choose(AUTO, layout, most, CPU, dtype, noisy=noisy) == "native"
    assert choose(AUTO, layout, most + 1, CPU, dtype, noisy=noisy) == "masked"
    assert choose(AUTO, layout, layout.numel, CPU, dtype, noisy=noisy) == "masked"
    assert choose(AUTO, layout, 1, CPU, dtype, noisy=noisy) == "native"


@needs_native
def test_small_layers_with_noise_are_native_others_are_not():
    small, large = Layout("linear", (64, 16)), Layout("linear", (1025, 32))
    tiny = Layout("linear", (63, 16))
    assert choose(AUTO, tiny, 20, CPU, torch.float32, noisy=True) == "masked"
    for nnz in (20, small.numel):
        assert choose(AUTO, small, nnz, CPU, torch.float32, noisy=True) == "native"
        assert choose(AUTO, small, nnz, CPU, torch.float32, noisy=False) == "masked"
    assert choose(AUTO, large, large.numel, CPU, torch.float32, noisy=True) == "masked"


@needs_native
@pytest.mark.parametrize("noisy", [True, False])
def test_convolutions_of_few_inputs_are_native_also_when_full(noisy):
    stem = Layout("conv", (2000, 3, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1))
    assert choose(AUTO, stem, stem.numel, CPU, torch.float32, noisy=noisy) == "native"
    huge = Layout("conv", (2500, 3, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1))
    assert choose(AUTO, huge, huge.numel, CPU, torch.float32, noisy=noisy) == "masked"
    assert choose(AUTO, huge, huge.numel - 1, CPU, torch.float32, noisy=noisy) == "native"


@needs_native
@every_kind
def test_what_the_kernels_cannot_do(kind):
    layout = LAYOUTS[kind]
    for dtype in (torch.float16, torch.bfloat16):
        assert choose(AUTO, layout, 10, CPU, dtype, noisy=True) == "masked"
    for device in ("cuda", "meta"):
        assert choose(AUTO, layout, 10, torch.device(device), torch.float32, noisy=True) == "masked"
    beyond = Layout("linear", (2**16, 2**15))  # 2^31 positions
    assert choose(AUTO, beyond, 10, CPU, torch.float32, noisy=True) == "masked"
    within = Layout("linear", (2**16 - 1, 2**15))
    assert choose(AUTO, within, 10, CPU, torch.float32, noisy=True) == "native"


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)
    )


def engines(model: nn.Module) -> dict[str, str]:
    return {name: layer.backend.name for name, layer in sparse_layers(model).items()}


@needs_native
@pytest.mark.parametrize("convert", [gs.to_bayesian, gs.to_sparse])
def test_conversion_chooses_layer_by_layer(convert):
    net = nn.Sequential(nn.Linear(4, 256), nn.ReLU(), nn.Linear(256, 256), nn.Linear(256, 4))
    bnn = convert(net, 0.9, sparsity_distribution="uniform")
    small = "native" if convert is gs.to_bayesian else "masked"
    assert engines(bnn) == {"0": small, "2": "native", "3": small}
    dense = convert(net, 0.2, sparsity_distribution="uniform")
    assert engines(dense) == {"0": small, "2": "masked", "3": small}
    for name in ("masked", "native"):
        assert set(engines(convert(network(), 0.9, backend=name)).values()) == {name}


def steps(method, count: int) -> list[float]:
    generator = torch.Generator().manual_seed(method.steps)
    x = torch.randn(32, 4, generator=generator)
    target = torch.randint(3, (32,), generator=generator)
    return [method.step((x, target)).loss for _ in range(count)]


@needs_native
@pytest.mark.parametrize("name", ["ssvi", "rigl"])
def test_a_run_goes_on_with_its_engines(name):
    """Saved with engines that nothing would choose: restored, and bit for bit the same run."""
    options = {"net": network(), "sparsity": 0.9}
    method = build(name, backend="masked", **options)
    sparse_layers(method.model)["0"].use_backend("native")
    steps(method, 4)
    state = copy.deepcopy(method.state_dict())
    saved = {"0": "native", "2": "masked", "4": "masked"}
    assert state["backends"] == saved == engines(method.model)
    other = build(name, backend="native", seed=1, **options)
    assert engines(other.model) != saved
    other.load_state_dict(state)
    assert engines(other.model) == saved
    losses = []
    for run in (method, other):
        torch.manual_seed(3)
        losses.append(steps(run, 4))
    assert losses[0] == losses[1]
    ours, theirs = method.model.state_dict(), other.model.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


@needs_native
def test_restoring_changes_what_is_named_alone():
    bnn = gs.to_bayesian(network(), 0.9, backend="masked")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        restore_backends(bnn, {"2": "native", "gone": "native"})
    assert engines(bnn) == {"0": "masked", "2": "native", "4": "masked"}
    with pytest.raises(UnknownName):
        restore_backends(bnn, {"2": "dense"})


@pytest.mark.usefixtures("no_library")
def test_a_missing_library_is_told_once():
    with pytest.warns(UserWarning, match=r"not available \(libgossamer.so was not built\)") as seen:
        bnn = gs.to_bayesian(network(), 0.9, sparsity_distribution="uniform")
    assert set(engines(bnn).values()) == {"masked"}
    assert len(seen) == 1, "once, not per layer"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gs.to_bayesian(network(), 0.9)
        assert choose("masked", LAYOUTS["linear"], 10, CPU, torch.float32, noisy=True) == "masked"
    bnn(torch.randn(2, 4)).sum().backward()


@needs_native
def test_a_run_goes_on_without_the_library(monkeypatch):
    """Layers saved with the native engine run on the masked one, and each is named."""
    bnn = gs.to_bayesian(network(), 0.9, backend="masked").eval()
    before = bnn(torch.ones(2, 4))
    monkeypatch.setattr(library, "is_available", lambda: False)
    monkeypatch.setattr(library, "reason", lambda: "no compiler")
    with pytest.warns(UserWarning, match=r"was saved with the native engine.*no compiler") as seen:
        restore_backends(bnn, {"0": "masked", "2": "native", "4": "native"})
    assert [str(w.message).split()[1] for w in seen] == ["2", "4"]
    assert set(engines(bnn).values()) == {"masked"}
    assert torch.equal(bnn(torch.ones(2, 4)), before)
