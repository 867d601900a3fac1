"""Outputs of several tensors, and classes on any axis: by hand with torch's softmax."""

from __future__ import annotations

import json
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import nn

import gossamer as gs
from gossamer.errors import InvalidData, InvalidValue
from gossamer.ops import fold_seed
from gossamer.prediction import Posterior, StoredDraws, load, mixture, posterior_of
from gossamer.prediction.passes import ROW_BLOCK


class ModelOutput(OrderedDict):  # type: ignore[type-arg]
    """As that of transformers: keys that are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


@dataclass
class Fields:
    loss: Any
    logits: torch.Tensor
    features: torch.Tensor


Pair = namedtuple("Pair", "features logits")


class Giving(nn.Module):
    """A linear layer whose output is packed."""

    def __init__(self, pack: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.pack = pack

    def forward(self, x):
        return self.pack(self.layer(x), x)


PACKS = {
    "model output": lambda y, x: ModelOutput(features=x, logits=y),
    "dict": lambda y, x: {"features": x, "logits": y},
    "dataclass": lambda y, x: Fields(None, y, x),
    "named tuple": lambda y, x: Pair(x, y),
}


class TestOutput:
    @pytest.mark.parametrize("kind", PACKS)
    @pytest.mark.parametrize("rows", [1, ROW_BLOCK + 44])
    def test_a_field(self, kind: str, rows: int) -> None:
        torch.manual_seed(0)
        bnn, x = gs.to_bayesian(Giving(PACKS[kind]), posterior_std=0.3), torch.randn(rows, 5)
        found = gs.predict(bnn, x, 4, output="logits")
        plain = gs.predict(bnn.layer, x, 4)
        close(
            found.probs,
            by_hand(bnn, x, 4, lambda out: out["logits"] if kind == "dict" else out.logits)
            .softmax(2)
            .mean(0),
        )
        assert found.probs.shape == plain.probs.shape

    def test_a_function(self) -> None:
        net, x = Giving(lambda y, x: (x, y)), torch.randn(7, 5)
        found = gs.predict(net, x, output=lambda out: out[1])
        close(found.probs, net.layer(x).softmax(1).detach())

    @pytest.mark.parametrize(
        ("pack", "sentence"),
        [
            (PACKS["model output"], r'= ModelOutput: is no tensor.*give output="logits" or'),
            (PACKS["dict"], r'= dict: is no tensor.*give output="logits" or output="features"'),
            (PACKS["dataclass"], r'= Fields: is no tensor.*give output="logits" or'),
            (PACKS["named tuple"], r'= Pair: is no tensor.*give output="logits" or'),
            (lambda y, x: ModelOutput(logits=y), r'= ModelOutput.*give output="logits"$'),
            (lambda y, x: (y, x), r"= tuple: is no tensor.*give output=lambda out: out\[0\]"),
            (lambda y, x: [y], r"= list: is no tensor.*give output=lambda out: out\[0\]"),
            (lambda y, x: None, "= NoneType: is no tensor.*give a function as output"),
        ],
    )
    def test_nothing_is_guessed(self, pack: Any, sentence: str) -> None:
        with pytest.raises(InvalidData, match=sentence):
            gs.predict(Giving(pack), torch.randn(3, 5))

    @pytest.mark.parametrize(
        ("pack", "output", "sentence"),
        [
            (PACKS["dict"], "logit", r'output = logit: is not in .*dict; give output="logits"'),
            (PACKS["dataclass"], "loss", "output = loss: must give a tensor, not NoneType"),
            (lambda y, x: y, "logits", "one tensor; leave output out"),
            (lambda y, x: y, "T", "one tensor; leave output out"),
            (lambda y, x: (y,), lambda out: out, "must give a tensor, not tuple"),
            (lambda y, x: (y, y[:1]), lambda out: out[1], r"\(1, 3\): must have the 3 rows"),
        ],
    )
    def test_a_wrong_choice_is_named(self, pack: Any, output: Any, sentence: str) -> None:
        with pytest.raises(InvalidData, match=sentence):
            gs.predict(Giving(pack), torch.randn(3, 5), output=output)
        with pytest.raises(InvalidValue, match="output = 0: must be the name of a field"):
            gs.predict(Giving(pack), torch.randn(3, 5), output=0)  # type: ignore[arg-type]

    def test_copies_files_and_finishing_steps_keep_it(self, tmp_path) -> None:
        torch.manual_seed(0)
        net, x, y = Giving(PACKS["dict"]).eval(), torch.randn(90, 5), torch.randint(3, (90,))
        plain = posterior_of(net.layer)
        posterior = posterior_of(net, output="logits")
        posterior.save(tmp_path / "p.safetensors")
        again = load(tmp_path / "p.safetensors", network=Giving(PACKS["dict"]))
        for kept in (posterior.frozen(), posterior.to("cpu"), again):
            assert kept.output == "logits"
            assert torch.equal(kept.predict(x).probs, posterior.predict(x).probs)
        for step in (gs.tempered, gs.last_layer):
            wanted = step(plain, (x, y))
            for found in (step(posterior, (x, y)), step(net, (x, y), output="logits")):
                assert found.finish.temperature == wanted.finish.temperature
                close(found.predict(x).probs, wanted.predict(x).probs)
        with pytest.raises(InvalidValue, match="is a function, which a file cannot hold"):
            posterior_of(net, output=lambda out: out["logits"]).save(tmp_path / "f.safetensors")
        with pytest.raises(InvalidValue, match="output = logits: is for predict"):
            posterior.predict_moments(x)


def close(one: torch.Tensor, two: torch.Tensor) -> None:
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def by_hand(bnn: nn.Module, x: Any, samples: int, read: Any = lambda out: out) -> torch.Tensor:
    """Outputs of every sample in one pass each, as torch computes them."""
    bnn.eval()
    found = []
    for s in range(samples):
        with torch.no_grad(), gs.sampling(bnn, seed=fold_seed(0, s)):
            found.append(read(bnn(x)))
    return torch.stack(found)


class Tagger(nn.Module):
    """A class per token: [B, T, C]."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(20, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, classes)

    def forward(self, ids):
        return self.head(torch.tanh(self.body(self.embed(ids))))


class ChannelsFirst(Tagger):
    """The same tags with the classes on axis 1: [B, C, T]."""

    def forward(self, ids):
        return super().forward(ids).transpose(1, 2)


def tagger(kind: type[Tagger] = Tagger) -> nn.Module:
    torch.manual_seed(0)
    return gs.to_bayesian(kind(), 0.3, posterior_std=0.5)


def tokens(rows: int = ROW_BLOCK + 44) -> torch.Tensor:
    return torch.randint(20, (rows, 6), generator=torch.Generator().manual_seed(rows))


class TestClassAxis:
    @pytest.mark.parametrize("rows", [1, 7, ROW_BLOCK + 44])
    @pytest.mark.parametrize("class_dim", [-1, 2])
    def test_answers_of_tokens_as_scipy(self, class_dim: int, rows: int) -> None:
        bnn, ids = tagger(), tokens(rows)
        found = gs.predict(bnn, ids, 5, class_dim=class_dim)
        logits = by_hand(bnn, ids, 5).double()
        samples = logits.softmax(-1)
        assert found.probs.shape == (rows, 6, 3)
        assert found.class_dim == 2
        close(found.samples.double(), samples)
        close(found.probs.double(), samples.mean(0))
        total = stats.entropy(samples.mean(0).numpy(), axis=-1)
        expected = stats.entropy(samples.numpy(), axis=-1).mean(0)
        energy = -special.logsumexp(logits.numpy(), axis=-1).mean(0)
        np.testing.assert_allclose(found.entropy, total, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.mutual_information, total - expected, atol=1e-5)
        np.testing.assert_allclose(found.energy, energy, rtol=1e-4, atol=1e-5)
        assert torch.equal(found.label, found.probs.argmax(-1))
        assert torch.equal(found.confidence, found.probs.amax(-1))
        close(found.aleatoric.double(), torch.from_numpy(expected))
        assert found.mutual_information.shape == (rows, 6)

    def test_the_layout_is_all_that_changes(self) -> None:
        last = gs.predict(tagger(), tokens(), 4, class_dim=-1)
        first = gs.predict(tagger(ChannelsFirst), tokens(), 4, class_dim=1)
        assert first.probs.shape == (ROW_BLOCK + 44, 3, 6)
        close(first.probs, last.probs.transpose(1, 2))
        for name in ("entropy", "mutual_information", "energy", "confidence", "aleatoric"):
            close(getattr(first, name), getattr(last, name))
        assert torch.equal(first.label, last.label)

    def test_an_axis_that_is_not_known_is_not_guessed(self) -> None:
        for source in (tagger(), Tagger()):
            with pytest.raises(InvalidData, match=r"\(4, 6, 3\): does not tell.*class_dim=-1"):
                gs.predict(source, tokens(4))
        with pytest.raises(InvalidData, match="class_dim"):
            gs.tempered(Tagger(), (tokens(4), torch.zeros(4, 6, dtype=torch.long)))
        with pytest.raises(InvalidData, match="class_dim"):
            gs.predict_moments(gs.to_bayesian(nn.Linear(4, 3)), torch.randn(2, 5, 4))

    def test_images_of_convolutions_are_known(self) -> None:
        """Images in, images out: channels are axis 1. Linear layers put classes last."""
        x = torch.randn(4, 2, 5, 6)
        conv = nn.Conv2d(2, 3, 1)
        for net in (conv, gs.to_bayesian(conv, posterior_std=1e-7)):
            close(gs.predict(net, x, 2).probs, conv(x).softmax(1).detach())
        with pytest.raises(InvalidData, match="class_dim=-1"):
            gs.predict(nn.Linear(6, 3), x)
        close(
            gs.predict(nn.Linear(6, 3).eval(), x, class_dim=-1).probs.sum(-1), torch.ones(4, 2, 5)
        )

        class Captions(nn.Conv2d):
            """Images in, tokens out."""

            def forward(self, x):
                return super().forward(x).flatten(2)

        with pytest.raises(InvalidData, match="class_dim=-1"):
            gs.predict(Captions(2, 3, 1), x)

    def test_two_axes_need_nothing(self) -> None:
        net, x = nn.Linear(4, 3), torch.randn(9, 4)
        wanted = gs.predict(net, x).probs
        for class_dim in (1, -1):
            assert torch.equal(gs.predict(net, x, class_dim=class_dim).probs, wanted)

    @pytest.mark.parametrize("class_dim", [0, 1.0, "last", False, True])
    def test_an_axis_of_rows_or_no_axis_is_refused(self, class_dim: Any) -> None:
        with pytest.raises(InvalidValue, match=r"class_dim = .*other than 0.*use -1"):
            gs.predict(Tagger(), tokens(4), class_dim=class_dim)
        with pytest.raises(InvalidValue, match="class_dim"):
            gs.Categorical(class_dim=class_dim)

    @pytest.mark.parametrize("class_dim", [3, -3, -4])
    def test_an_axis_beyond_the_output_is_refused(self, class_dim: int) -> None:
        with pytest.raises(InvalidData, match=r"class_dim = .*axis of the output, which has 3"):
            gs.predict(Tagger(), tokens(4), class_dim=class_dim)

    def test_only_logits_have_one(self) -> None:
        with pytest.raises(InvalidValue, match="class_dim = -1: is for logits of classes"):
            gs.predict(Tagger(), tokens(4), class_dim=-1, likelihood="gaussian")

    def test_moments(self) -> None:
        """Those of the same layer with its positions as rows."""
        torch.manual_seed(0)
        bnn, x = gs.to_bayesian(nn.Linear(4, 3), posterior_std=0.5), torch.randn(40, 5, 4)
        wanted = gs.predict_moments(bnn, x.flatten(0, 1))
        found = gs.predict_moments(bnn, x, class_dim=-1, keep_samples=True)
        assert found.probs.shape == (40, 5, 3)
        assert found.samples.shape == (256, 40, 5, 3)
        close(found.probs.flatten(0, 1), wanted.probs)
        close(found.mutual_information.flatten(), wanted.mutual_information)

    def test_a_mixture(self) -> None:
        nets = [Tagger().eval() for _ in range(2)]
        parts = [posterior_of(net, class_dim=-1) for net in nets]
        found = mixture(parts).predict(tokens())
        samples = torch.stack([net(tokens()).softmax(-1).detach() for net in nets])
        close(found.probs, samples.mean(0))
        close(found.entropy, torch.special.entr(samples.mean(0)).sum(-1))
        late = mixture([posterior_of(net) for net in nets]).predict(tokens(), class_dim=-1)
        assert torch.equal(late.probs, found.probs)
        with pytest.raises(InvalidValue, match="must share one class_dim"):
            mixture([parts[0], posterior_of(nets[1], class_dim=1)])

    def test_a_temperature(self) -> None:
        torch.manual_seed(0)
        net, ids, y = Tagger().eval(), tokens(), torch.randint(3, (ROW_BLOCK + 44, 6))
        flat = nn.Identity()
        logits = net(ids).detach()
        wanted = gs.tempered(ChannelsFirst().eval(), (ids, y), likelihood=gs.Categorical())
        assert wanted.finish.temperature > 0
        first = gs.tempered(flat, (logits.transpose(1, 2), y), class_dim=1)
        last = gs.tempered(net, (ids, y), class_dim=-1)
        assert last.finish.temperature == pytest.approx(first.finish.temperature, rel=1e-5)
        close(last.predict(ids).probs, (logits / last.finish.temperature).softmax(-1))

    def test_a_last_layer_of_tokens_is_refused(self) -> None:
        y = torch.zeros(30, 6, dtype=torch.long)
        posterior = posterior_of(Tagger(), class_dim=-1)
        with pytest.raises(InvalidValue, match=r"does not end in a linear layer.*tempered"):
            gs.last_layer(posterior, (tokens(30), y))

    def test_a_table_of_tokens_is_refused(self) -> None:
        from gossamer.prediction.table import answer_columns

        found = gs.predict(Tagger(), tokens(4), class_dim=-1)
        with pytest.raises(InvalidData, match="a table has one answer per row"):
            answer_columns(found, None)  # type: ignore[arg-type]


class TestMethods:
    def test_a_method_trains_and_predicts_tokens(self, tmp_path) -> None:
        torch.manual_seed(0)
        ids = tokens()
        y = ids % 3
        likelihood = gs.Categorical(class_dim=-1)
        method = gs.build(
            "ssvi",
            Tagger(),
            num_data=300,
            total_steps=60,
            likelihood=likelihood,
            sparsity=0.3,
            lr=0.03,
        )
        for _ in range(60):
            method.step((ids, y))
        posterior = method.posterior()
        assert posterior.class_dim == -1
        found = gs.predict(method, ids)
        assert found.probs.shape == (ROW_BLOCK + 44, 6, 3)
        close(found.probs.sum(-1), torch.ones(ROW_BLOCK + 44, 6))
        assert float((found.label == y).float().mean()) > 0.95
        posterior.save(tmp_path / "p.safetensors")
        again = load(tmp_path / "p.safetensors", network=Tagger())
        for kept in (again, posterior.frozen(), posterior.to("cpu")):
            assert kept.class_dim == -1
            assert torch.equal(kept.predict(ids).probs, found.probs)

    def test_of_a_method_axis_1_is_that_of_its_training(self) -> None:
        """It was trained by F.cross_entropy: no doubt is left, whatever the shape."""
        conv = nn.Conv1d(2, 3, 1)
        method = gs.build("sgd", conv, num_data=9, total_steps=3, likelihood="categorical")
        found = gs.predict(method, torch.randn(9, 2, 7))
        close(found.probs.sum(1), torch.ones(9, 7))


class TestFiles:
    @staticmethod
    def header(path) -> dict[str, Any]:
        content = path.read_bytes()
        raw = content[8 : 8 + int.from_bytes(content[:8], "little")]
        return json.loads(json.loads(raw)["__metadata__"]["gossamer"])

    def test_the_version_is_the_lowest_that_knows_it(self, tmp_path) -> None:
        """Files that hold nothing new are what they were, and older readers take them."""
        path = tmp_path / "p.safetensors"
        net = nn.Linear(4, 3)
        expected = [
            (posterior_of(net, gs.Categorical()), 1, {}),
            (posterior_of(net), 1, {}),
            (posterior_of(net, class_dim=-1), 3, {"class_dim": -1}),
            (posterior_of(net, gs.Categorical(), output="logits"), 3, {}),
            (mixture([posterior_of(net, class_dim=-1)]), 3, {"class_dim": -1}),
        ]
        for posterior, version, options in expected:
            posterior.save(path)
            header = self.header(path)
            assert header["version"] == version
            body = header["members"][0] if "members" in header else header
            assert body["likelihood"]["options"] == options

    def test_an_old_file_reads_axis_1(self, tmp_path) -> None:
        """One that says nothing of the axis was written when there was no other."""
        path = tmp_path / "p.safetensors"
        conv, x = nn.Conv1d(2, 3, 1), torch.randn(4, 2, 5)
        posterior_of(conv, gs.Categorical()).save(path)
        assert "class_dim" not in json.dumps(self.header(path))
        again = load(path, network=nn.Conv1d(2, 3, 1))
        assert again.class_dim == 1
        close(again.predict(x).probs, conv(x).softmax(1).detach())

    def test_an_axis_that_is_not_known_stays_so(self, tmp_path) -> None:
        path = tmp_path / "p.safetensors"
        posterior_of(Tagger()).save(path)
        again = load(path, network=Tagger())
        assert again.class_dim is None
        with pytest.raises(InvalidData, match="class_dim"):
            again.predict(tokens(4))
        assert again.predict(tokens(4), class_dim=-1).probs.shape == (4, 6, 3)


def test_stored_samples_of_tokens() -> None:
    nets = [Tagger().eval() for _ in range(3)]
    draws = StoredDraws(nets[0], [net.state_dict() for net in nets])
    found = Posterior(draws, gs.Categorical(class_dim=-1)).predict(tokens(), 3)
    wanted = torch.stack([net(tokens()).softmax(-1).detach() for net in nets]).mean(0)
    close(found.probs, wanted)
