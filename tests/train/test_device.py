"""Devices: names, refusals, what goes there, and what a checkpoint says elsewhere.

There is no GPU where these tests run. Whole runs go to a pretended device instead, whose tensors
refuse to meet those of the CPU. That the arithmetic of a real one agrees is not shown here.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gossamer.errors import InvalidValue
from gossamer.inference import METHODS, Method, build
from gossamer.models import build_model
from gossamer.nn import sparse_layers
from gossamer.ops import choose
from gossamer.train import Batches, Examples, RunConfig, fit, load_run, resolve_device, train
from gossamer.train.device import own_noise, portable
from train.pretended import pretending
from train.sittings import Watch, assert_same_run, unseal

META = torch.device("meta")


def test_the_names_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == torch.device("cpu")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_device("auto") == torch.device("cpu")  # mps only where it is asked for
    assert resolve_device("mps") == torch.device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert resolve_device("auto") == resolve_device("cuda") == torch.device("cuda", 1)
    assert resolve_device("cuda:0") == torch.device("cuda", 0)
    with pytest.raises(InvalidValue, match="device = cuda:2: is not available here: there are 2"):
        resolve_device("cuda:2")


@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps"])
def test_a_device_that_is_not_here_is_refused(
    name: str, tmp_path: Path, small: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    said = f"device = {name}: is not available here; use cpu"
    with pytest.raises(InvalidValue, match=said):
        train(dataclasses.replace(small, device=name), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidValue, match=said):
        fit((torch.zeros(4, 2), torch.zeros(4)), device=name)


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "CPU", "", "cpu:0"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidValue, match="must be auto, cpu, cuda, cuda:N or mps"):
        resolve_device(name)


def held(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that a network holds: parameters, buffers, and plain attributes of modules."""
    yield from module.named_parameters()
    yield from module.named_buffers()
    for name, part in module.named_modules():
        for key, value in vars(part).items():
            parts = value if isinstance(value, (list, tuple)) else (value,)
            yield from ((f"{name}.{key}", one) for one in parts if isinstance(one, Tensor))


def built(name: str, model: str) -> Method:
    shape = (3, 16, 16)
    network = build_model(model, input_shape=shape, output_size=10)
    return build(name, network, num_data=100, total_steps=20, likelihood="categorical")


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("model", ["mlp", "resnet20"])
def test_a_network_that_moves_leaves_no_tensor_behind(name: str, model: str) -> None:
    method = built(name, model)
    x = torch.rand(4, 3, 16, 16)
    method.step((x, torch.arange(4)))
    method.model.to(META)
    assert [where for where, one in held(method.model) if one.device != META] == []
    assert sparse_layers(method.model)
    for layer in sparse_layers(method.model).values():
        chosen = choose("auto", layer.layout, layer.nnz, META, torch.float32, noisy=True)
        assert chosen == "masked"


def test_batches_go_to_the_device_and_the_examples_stay() -> None:
    examples = Examples(torch.rand(10, 3), torch.zeros(10, dtype=torch.int64))
    for x, y, *_ in Batches(examples, 4, META).epoch(torch.Generator().manual_seed(0), 0):
        assert x.device == y.device == META
    assert examples.x.device == examples.y.device == torch.device("cpu")


def test_a_state_goes_to_another_kind_of_device_without_its_backends() -> None:
    state = {"model": {"w": 1}, "engines": {"a": "native"}, "backends": {"a": "native"}}
    assert portable(state, "cpu", torch.device("cpu")) is state
    assert portable(state, "cuda:1", torch.device("cuda", 0)) is state
    moved = portable(state, "cuda:0", torch.device("cpu"))
    assert moved == {"model": {"w": 1}, "engines": {}, "backends": {}}


class After:
    """Asks to stop when it was asked so many times."""

    def __init__(self, times: int) -> None:
        self.left = times

    def is_set(self) -> bool:
        self.left -= 1
        return self.left <= 0


@pytest.fixture
def from_elsewhere(tmp_path: Path, small: RunConfig) -> Path:
    """A run that says it was begun on a GPU, stopped after its first epoch."""
    out = tmp_path / "run"

    train(small, out, stop=After(5))
    config, environment = out / "config.json", out / "environment.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "device": "cuda"}))
    environment.write_text(json.dumps({**json.loads(environment.read_text()), "device": "cuda:0"}))
    unseal(out)
    return out


def test_a_run_goes_on_on_another_device_with_a_notice(
    from_elsewhere: Path, tmp_path: Path, small: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidValue, match="device = cuda: is not available here; use cpu"):
        train(None, from_elsewhere, resume=True)
    watch = Watch()
    config = dataclasses.replace(small, device="cpu")
    assert train(config, from_elsewhere, resume=True, progress=watch).status == "finished"
    assert watch.messages[0].startswith("device was cuda:0 and is cpu: going on, but bit-for-bit")
    train(small, tmp_path / "straight")
    assert_same_run(tmp_path / "straight", from_elsewhere)  # the device was only a claim


def test_a_run_of_any_device_is_loaded_on_the_cpu(from_elsewhere: Path, tmp_path: Path) -> None:
    loaded = load_run(from_elsewhere)
    assert {p.device.type for p in loaded.posterior.draws.network.parameters()} == {"cpu"}
    shutil.copytree(from_elsewhere, tmp_path / "copy")
    again = load_run(tmp_path / "copy", device="auto")
    x = torch.rand(5, 1, 8, 8)
    assert loaded.posterior.predict(x).probs.equal(again.posterior.predict(x).probs)


def test_noise_is_given_back() -> None:
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    with own_noise(torch.device("cpu"), 7):
        inside = torch.rand(2)
    assert torch.rand(2).equal(expected)
    assert inside.equal(torch.rand(2, generator=torch.Generator().manual_seed(7)))


def test_the_pretended_device_refuses_to_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the tests below would show nothing."""
    with pretending(monkeypatch) as elsewhere:
        x = torch.arange(3.0).to(elsewhere)
        assert x.device == elsewhere
        assert (2 * x + torch.ones(3, device=elsewhere)).cpu().tolist() == [1.0, 3.0, 5.0]
        with pytest.raises(RuntimeError, match="mixes devices"):
            x + torch.ones(3)


@pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter")
@pytest.mark.parametrize("name", METHODS)
def test_a_whole_run_goes_to_the_device(
    tmp_path: Path, small: RunConfig, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Steps, swaps or prunings, validation, checkpoints, evaluation; stopped once and resumed."""
    options = small.method_options if name in ("ssvi", "rigl") else {}
    config = dataclasses.replace(
        small, method=name, method_options=options, noise="both", ood=("digits",), epochs=2
    )
    here = train(dataclasses.replace(config, backend="masked"), tmp_path / "here").metrics
    with pretending(monkeypatch):
        assert train(config, tmp_path / "there", stop=After(4)).status == "interrupted"
        there = train(None, tmp_path / "there", resume=True).metrics
        network = load_run(tmp_path / "there", device="auto").posterior.network()
        assert [where for where, one in held(network) if one.device != META] == []
        assert {layer.backend.name for layer in sparse_layers(network).values()} == {"masked"}
    environment = json.loads((tmp_path / "there" / "environment.json").read_text())
    assert environment["device"] == "meta"
    assert here is not None
    assert there is not None
    # Noise off the CPU comes from another implementation of the same draws, equal to float32.
    # Areas read ranks: rows that rounding alone tells apart may change places, and then they jump.
    for key in set(here) - {"seconds", "checkpoint_bytes", "predict_seconds"}:
        share = 0.01 if "aurc" in key else 1e-4
        assert there[key] == pytest.approx(here[key], rel=share, abs=1e-6), key
    on_cpu = load_run(tmp_path / "there", device="cpu").posterior.network()
    assert {p.device.type for p in on_cpu.parameters()} == {"cpu"}
