"""Inputs of several tensors: cut alike, repeated alike, and passed on under their names."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.errors import InvalidData
from gossamer.ops import fold_seed
from gossamer.prediction import Posterior, Shared, StoredDraws, mixture, posterior_of
from gossamer.prediction.passes import ROW_BLOCK

TOKENS, CLASSES, VOCABULARY = 6, 3, 20


class Reader(nn.Module):
    """A class per row: the mean of the embeddings of its unmasked tokens, through two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, ids, mask, scale=1.0, extra=None):
        weight = mask.float().unsqueeze(-1)
        pooled = (self.embed(ids) * weight).sum(1) / weight.sum(1)
        pooled = pooled if extra is None else pooled + extra[0]["shift"]
        return self.head(torch.tanh(self.body(pooled))) * scale


def reader(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return gs.to_bayesian(Reader(), 0.3, posterior_std=0.5)


def sentences(rows: int) -> dict[str, torch.Tensor]:
    """Tokens, and masks that differ from row to row."""
    generator = torch.Generator().manual_seed(rows)
    ids = torch.randint(VOCABULARY, (rows, TOKENS), generator=generator)
    length = torch.randint(1, TOKENS + 1, (rows, 1), generator=generator)
    return {"ids": ids, "mask": torch.arange(TOKENS) < length}


def by_rows(bnn: nn.Module, inputs: dict[str, Any], samples: int, seed: int) -> torch.Tensor:
    """The truth: every sample, every row by itself, as torch computes it."""
    bnn.eval()
    found = []
    for s in range(samples):
        with torch.no_grad(), gs.sampling(bnn, seed=fold_seed(seed, s)):
            rows = [
                bnn(**{name: tensor[row : row + 1] for name, tensor in inputs.items()})
                for row in range(len(inputs["ids"]))
            ]
        found.append(torch.cat(rows).softmax(1))
    return torch.stack(found)


def close(one: torch.Tensor, two: torch.Tensor) -> None:
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 8, 40, ROW_BLOCK + 44])
def test_every_row_keeps_its_own_mask(rows: int) -> None:
    """Cut into blocks and repeated for samples that share a pass, masks stay with their rows."""
    bnn, inputs = reader(), sentences(rows)
    pred = gs.predict(bnn, inputs, 9, seed=4)
    wanted = by_rows(bnn, inputs, 9, 4)
    close(pred.samples, wanted)
    close(pred.probs, wanted.mean(0))
    other = gs.predict(bnn, {**inputs, "mask": inputs["mask"].flip(0)}, 9, seed=4)
    assert rows == 1 or (other.probs - pred.probs).abs().max() > 0.01, "masks matter"


def test_long_rows_are_cut_into_passes_alike() -> None:
    """More values than a pass takes: the mask of the second pass is that of its rows."""
    bnn = reader()
    torch.manual_seed(1)
    ids, mask = torch.randint(VOCABULARY, (20, 9000)), torch.rand(20, 9000) < 0.5
    mask[:, 0] = True
    pred = gs.predict(bnn, {"ids": ids, "mask": mask}, 2)
    close(pred.samples, by_rows(bnn, {"ids": ids, "mask": mask}, 2, 0))


def test_local_noise_in_shared_passes() -> None:
    """One network without spread: local noise of it is none, whatever the passes."""
    torch.manual_seed(0)
    bnn, inputs = gs.to_bayesian(Reader(), 0.3, posterior_std=1e-7), sentences(5)
    pred = gs.predict(bnn, inputs, 12, noise="local")
    close(pred.probs, by_rows(bnn, inputs, 1, 0)[0])


@dataclass
class AsDataclass:
    ids: torch.Tensor
    mask: torch.Tensor


class AsModelOutput(OrderedDict):  # type: ignore[type-arg]
    """As the outputs and batches of transformers: keys that are attributes too."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


FORMS = {
    "dict": dict,
    "ordered": OrderedDict,
    "mapping": UserDict,
    "model output": AsModelOutput,
    "dataclass": lambda given: AsDataclass(**given),
    "tuple": lambda given: tuple(given.values()),
    "list": lambda given: list(given.values()),
    "named tuple": lambda given: namedtuple("Pair", "a b")(*given.values()),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_call(form: str) -> None:
    bnn, inputs = reader(), sentences(ROW_BLOCK + 9)
    wanted = gs.predict(bnn, inputs, 3)
    found = gs.predict(bnn, FORMS[form](inputs), 3)
    assert torch.equal(found.samples, wanted.samples)


def test_one_tensor_in_a_mapping_is_that_tensor_to_the_bit() -> None:
    torch.manual_seed(0)
    bnn = gs.to_bayesian(nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)), 0.4)
    for rows in (1, 40, ROW_BLOCK + 9):
        x = torch.randn(rows, 5)
        for noise in ("weight", "local"):
            wanted = gs.predict(bnn, x, 5, noise=noise).samples
            assert torch.equal(gs.predict(bnn, {"input": x}, 5, noise=noise).samples, wanted)
            assert torch.equal(gs.predict(bnn, (x,), 5, noise=noise).samples, wanted)


class Kind(Enum):
    PLAIN = 1


def test_plain_values_and_what_is_shared_are_passed_on() -> None:
    bnn, inputs = reader(), sentences(ROW_BLOCK + 9)
    wanted = gs.predict(bnn, inputs, 3)
    for scale in (2.0, 2, torch.tensor(2.0), Shared(torch.full((1, CLASSES), 2.0))):
        found = gs.predict(bnn, {**inputs, "scale": scale}, 3)
        odds = (wanted.samples.log() * 2).softmax(-1)
        close(found.samples, odds)
    assert torch.equal(gs.predict(bnn, {**inputs, "extra": None}, 3).samples, wanted.samples)


def test_tensors_inside_containers_are_cut_too() -> None:
    bnn, inputs = reader(), sentences(ROW_BLOCK + 9)
    shift = torch.randn(ROW_BLOCK + 9, 8)
    found = gs.predict(bnn, {**inputs, "extra": [{"shift": shift, "kind": Kind.PLAIN}]}, 2)
    for part in (slice(0, 7), slice(ROW_BLOCK, ROW_BLOCK + 9)):
        few = {name: tensor[part] for name, tensor in inputs.items()}
        alone = gs.predict(bnn, {**few, "extra": [{"shift": shift[part]}]}, 2)
        close(found.samples[:, part], alone.samples)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"ids": torch.zeros(5, 6), "mask": torch.zeros(1, 6)},
            r"input mask = \(1, 6\): must have 5 rows as ids has; .*Shared\(tensor\)",
        ),
        ((torch.zeros(5, 6), torch.zeros(4)), r"input x\[1\] = \(4,\): must have 5 rows as x\[0\]"),
        ({"ids": torch.zeros(5), "more": [torch.zeros(2)]}, r"input more\[0\] = \(2,\): must have"),
        ({"ids": torch.zeros(5), "mask": np.zeros(5)}, "input mask = ndarray: is neither a tensor"),
        ({"ids": torch.zeros(5), "more": AsModelOutput(a=torch.zeros(5))}, "input more = AsModel"),
        ({"ids": torch.zeros(0, 6)}, "must have at least one row"),
        ({"scale": 2.0}, "must hold at least one tensor with rows"),
        ({}, "must hold at least one tensor with rows"),
        ({0: torch.zeros(5)}, "x = 0: must have names of arguments as its keys"),
        (np.zeros((5, 6)), "x = ndarray: must be a tensor, or tensors in a mapping"),
        ("text", "x = str: must be a tensor"),
        (None, "x = NoneType: must be a tensor"),
    ],
)
def test_what_cannot_be_cut_is_refused(given: Any, sentence: str) -> None:
    with pytest.raises(InvalidData, match=sentence):
        gs.predict(nn.Linear(6, 2), given)


def test_an_output_with_other_rows_is_refused() -> None:
    """[T, B, C]: whatever read it row by row would mix the rows up."""

    class TimeFirst(Reader):
        def forward(self, ids, mask):
            return self.head(self.embed(ids)).transpose(0, 1)

    with pytest.raises(InvalidData, match=r"output shape = \(6, 40, 3\): must have the 40 rows"):
        gs.predict(TimeFirst(), sentences(40), class_dim=-1)


class TestEveryPosterior:
    def test_stored_samples(self) -> None:
        nets = [Reader().eval() for _ in range(3)]
        posterior = Posterior(
            StoredDraws(nets[0], [n.state_dict() for n in nets]), gs.Categorical()
        )
        inputs = sentences(ROW_BLOCK + 44)
        found = posterior.predict(inputs, 3)
        for sample, net in enumerate(reversed(nets)):  # 0 is the latest
            close(found.samples[sample], net(**inputs).softmax(1).detach())

    def test_a_mixture(self) -> None:
        nets, inputs = [Reader().eval() for _ in range(2)], sentences(ROW_BLOCK + 44)
        found = mixture([posterior_of(net) for net in nets]).predict(inputs)
        wanted = torch.stack([net(**inputs).softmax(1).detach() for net in nets]).mean(0)
        close(found.probs, wanted)

    def test_a_saved_one(self, tmp_path) -> None:
        bnn, inputs = reader(), sentences(ROW_BLOCK + 9)
        posterior_of(bnn).save(tmp_path / "p.safetensors")
        again = gs.load(tmp_path / "p.safetensors", network=Reader())
        wanted = gs.predict(bnn, inputs, 3).samples
        assert torch.equal(again.predict(inputs, 3).samples, wanted)

    def test_a_temperature(self) -> None:
        """That of one-tensor inputs, which hold the mask beside the tokens."""

        class Packed(Reader):
            def forward(self, packed):
                return super().forward(packed[:, :TOKENS], packed[:, TOKENS:])

        torch.manual_seed(0)
        net, packed, inputs = Reader().eval(), Packed().eval(), sentences(300)
        packed.load_state_dict(net.state_dict())
        y = torch.randint(CLASSES, (300,))
        both = torch.cat([inputs["ids"], inputs["mask"].long()], 1)
        wanted = gs.tempered(packed, (both, y)).finish.temperature
        assert gs.tempered(net, (inputs, y)).finish.temperature == pytest.approx(wanted, rel=1e-6)

    def test_a_last_layer(self) -> None:
        class Packed(Reader):
            def forward(self, packed):
                return super().forward(packed[:, :TOKENS], packed[:, TOKENS:])

        torch.manual_seed(0)
        net, packed, inputs = Reader().eval(), Packed().eval(), sentences(300)
        packed.load_state_dict(net.state_dict())
        y = torch.randint(CLASSES, (300,))
        both = torch.cat([inputs["ids"], inputs["mask"].long()], 1)
        wanted = gs.last_layer(packed, (both, y)).predict(both)
        found = gs.last_layer(net, (inputs, y)).predict(inputs)
        close(found.probs, wanted.probs)
        assert found.mutual_information.max() > 1e-3

    def test_held_out_rows_must_fit(self) -> None:
        with pytest.raises(InvalidData, match="must have the same rows"):
            gs.tempered(Reader(), (sentences(30), torch.zeros(29, dtype=torch.long)))

    def test_real_targets(self) -> None:
        net, inputs = Reader().eval(), sentences(ROW_BLOCK + 44)
        found = gs.predict(net, inputs, likelihood=gs.Gaussian(0.1))
        close(found.mean, net(**inputs).detach())
        y = net(**inputs).detach() + 0.3 * torch.randn(ROW_BLOCK + 44, CLASSES)
        wide = gs.tempered(net, (inputs, y), likelihood=gs.Gaussian(0.1))
        assert 2.5 < wide.finish.temperature < 3.5

    def test_moments_refuse(self) -> None:
        with pytest.raises(InvalidData, match=r"x = dict: must be one tensor.*use predict"):
            gs.predict_moments(reader(), sentences(4))

    def test_not_finite_is_named(self) -> None:
        bnn, inputs = reader(), sentences(ROW_BLOCK + 44)
        scale = torch.ones(ROW_BLOCK + 44, 1)
        scale[-1] = float("nan")
        with pytest.raises(gs.GossamerError, match=f"row {ROW_BLOCK + 43} = nan.*inputs are not"):
            gs.predict(bnn, {**inputs, "scale": scale}, 2)


def test_threads_get_the_bits_of_one() -> None:
    posterior, small, large = posterior_of(reader()), sentences(2), sentences(ROW_BLOCK + 9)
    wanted = [posterior.predict(inputs, 9).samples for inputs in (small, large)]

    def ask(_: int) -> bool:
        found = [posterior.predict(inputs, 9).samples for inputs in (small, large)]
        return all(map(torch.equal, found, wanted))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, range(8)))


def test_a_method_refuses_batches_of_several_tensors() -> None:
    method = gs.build("sgd", Reader(), num_data=30, total_steps=5, likelihood="categorical")
    with pytest.raises(InvalidData, match=r"x = dict: must be a tensor.*custom-loops"):
        method.step((sentences(30), torch.zeros(30, dtype=torch.long)))


def test_the_example_of_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    """It runs, prints what it says, and every row is predicted with its own mask."""
    page = (Path(__file__).parents[2] / "docs" / "prediction.md").read_text(encoding="utf-8")
    code = next(part for part in page.split("```") if "class Tagger" in part)
    code = code.removeprefix("python")
    names: dict[str, Any] = {}
    exec(compile(code, "prediction.md", "exec"), names)
    stated = [line[2:] for line in code.splitlines() if line.startswith("# ")]
    assert capsys.readouterr().out.splitlines() == stated
    bnn, ids, mask, pred = (names[name] for name in ("bnn", "ids", "mask", "pred"))
    bnn.eval()
    with torch.no_grad(), gs.sampling(bnn, seed=fold_seed(0, 3)):
        for row in (0, 17, ROW_BLOCK, 299):
            wanted = bnn(ids[row : row + 1], mask[row : row + 1])["logits"].softmax(-1)[0]
            close(pred.samples[3, row], wanted)
