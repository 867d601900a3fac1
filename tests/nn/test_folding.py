"""BatchNorm computed by the convolution before it: the same numbers, found where it is safe."""

from __future__ import annotations

from contextlib import nullcontext
from threading import Thread

import pytest
import torch
from torch import Tensor, nn

import gossamer as gs
from cases.zoo import BACKENDS
from gossamer.inference import build
from gossamer.models import build_model
from gossamer.nn import sampling
from gossamer.nn.folding import Scaling, folded, watching
from gossamer.ops import fold_seed, library
from gossamer.predict.passes import passes_of

pytestmark = pytest.mark.skipif(not library.is_available(), reason=library.reason())


def randomised(model: nn.Module, *, least: float = 0.5) -> nn.Module:
    """Evaluation mode, with statistics and affine parameters that do something."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                if module.running_mean is not None:
                    module.running_mean.normal_()
                    module.running_var.uniform_(0.5, 2.0)
                if module.weight is not None:
                    module.weight.uniform_(least, 1.5)
                    module.bias.normal_()
    return model.eval()


def block(**options) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 6, 3, padding=1, **options), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 2, 1)
    ).double()


class Residual(nn.Module):
    """A sum that reads the block's input and its normalised output."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.norm(self.conv(x)))


class TwoReaders(Residual):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return y + self.norm(y)


class ItsShape(Residual):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.norm(y) + y.shape[0]


class InPlace(Residual):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x).add_(1.0))


class Twice(Residual):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(self.norm(self.conv(x))))


class NormTwice(Residual):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) + self.norm(x)


class Keeping(Residual):
    def forward(self, x: Tensor) -> Tensor:
        self.features = self.conv(x)
        return self.norm(self.features)


class Joined(Residual):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.norm(y) + torch.cat([y, y]).mean()


class Moody(Residual):
    """Skips the normalisation of dark images."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return (self.norm(y) if x.sum() > 0.0 else y).flatten(1)


class Adding(Residual):
    """Reads the convolution's output again for dark images."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        z = self.norm(y)
        return (z if x.sum() > 0.0 else z + y).flatten(1)


class Changing(Residual):
    """Changes it in place for dark images."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.norm(y if x.sum() > 0.0 else y.add_(1.0)).flatten(1)


class Unlike(nn.BatchNorm2d):
    """A layer of the user's own."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return -super().forward(input)


def pairs_of(model: nn.Module, x: Tensor | None = None) -> dict[str, str]:
    x = torch.randn(2, 4, 6, 6).to(next(model.parameters()).dtype) if x is None else x
    with torch.no_grad(), watching() as watch:
        model(x)
    return watch.pairs(model)


def outputs(model: nn.Module, x: Tensor, noise: str | None, pairs: dict[str, str]) -> Tensor:
    drawing = nullcontext() if noise is None else sampling(model, seed=5, noise=noise)
    with torch.no_grad(), drawing, folded(model, pairs) as state:
        y = model(x)
    assert state.is_sound
    return y


class TestFound:
    def test_a_residual_network(self):
        model = gs.to_bayesian(build_model("resnet20", input_shape=(1, 8, 8), output_size=3), 0.5)
        norms = [n for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)]
        for _ in range(5):  # memory, and so the identity of outputs, is used again
            found = pairs_of(model.eval(), torch.randn(2, 1, 8, 8))
            assert sorted(found.values()) == sorted(norms)
        assert found["stages.1.0.conv2"] == "stages.1.0.bn2"

    def test_a_block(self):
        assert pairs_of(gs.to_bayesian(Residual(), 0.5).eval()) == {"conv": "norm"}

    @pytest.mark.parametrize(
        "kind", [TwoReaders, ItsShape, InPlace, Twice, NormTwice, Keeping, Joined]
    )
    def test_not_where_another_sees_it(self, kind):
        assert pairs_of(gs.to_bayesian(kind(), 0.5).eval()) == {}

    @pytest.mark.parametrize(
        ("net", "shape"),
        [
            (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), (3, 4)),
            (nn.Sequential(nn.ConvTranspose2d(4, 4, 3), nn.BatchNorm2d(4)), (2, 4, 6, 6)),
            (nn.Sequential(nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4)), (4, 4)),
            (
                nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)),
                (2, 4, 6, 6),
            ),
            (nn.Sequential(nn.Conv2d(4, 4, 3), Unlike(4)), (2, 4, 6, 6)),
            (nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.BatchNorm2d(4)), (2, 4, 6, 6)),
            (nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)).bfloat16(), (2, 4, 6, 6)),
        ],
        ids=["linear", "transposed", "no batch", "no statistics", "own class", "between", "half"],
    )
    def test_not_these(self, net, shape):
        model = gs.to_bayesian(net, 0.5).eval()
        assert pairs_of(model, torch.randn(shape).to(next(net.parameters()).dtype)) == {}

    def test_not_layers_that_the_model_does_not_own(self):
        hidden = gs.to_bayesian(Residual(), 0.5).eval()
        with torch.no_grad(), watching() as watch:
            hidden(torch.randn(2, 4, 6, 6))
        assert watch.pairs(nn.Identity()) == {}

    def test_not_in_training(self):
        assert pairs_of(gs.to_bayesian(Residual(), 0.5).train()) == {}


class TestTheSameNumbers:
    @pytest.mark.parametrize("engine", BACKENDS)
    @pytest.mark.parametrize("noise", [None, "weight", "local"])
    @pytest.mark.parametrize(
        "options", [{}, {"bias": False}, {"groups": 2}, {"stride": 2}], ids=str
    )
    def test_as_layer_by_layer(self, engine, noise, options):
        torch.manual_seed(0)
        model = randomised(gs.to_bayesian(block(**options), 0.4, posterior_std=0.3))
        model[0].use_engine(engine)
        x = torch.randn(5, 4, 6, 6).double()
        pairs = pairs_of(model)
        assert pairs == {"0": "1"}
        expected = outputs(model, x, noise, {})
        torch.testing.assert_close(
            outputs(model, x, noise, pairs), expected, rtol=1e-12, atol=1e-12
        )

    @pytest.mark.parametrize("noise", ["weight", "local"])
    def test_negative_scales(self, noise):
        torch.manual_seed(0)
        model = randomised(gs.to_bayesian(block(), 0.4, posterior_std=0.3), least=-1.5)
        assert (model[1].weight < 0).any()
        x = torch.randn(5, 4, 6, 6).double()
        found = outputs(model, x, noise, pairs_of(model))
        torch.testing.assert_close(found, outputs(model, x, noise, {}), rtol=1e-12, atol=1e-12)

    def test_local_noise_is_not_turned_round(self):
        model = randomised(gs.to_bayesian(block(), 0.4), least=-1.5)
        pairs = pairs_of(model)
        for noise, count in (("weight", 1), ("local", 0)):
            with sampling(model, seed=5, noise=noise), folded(model, pairs) as state:
                assert len(state.scalings) == count

    def test_without_affine_parameters_and_without_noise(self):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4, affine=False)).double()
        model, x = randomised(gs.to_sparse(net, 0.5)), torch.randn(4, 3, 9).double()
        assert pairs_of(model, x) == {"0": "1"}
        found = outputs(model, x, None, {"0": "1"})
        torch.testing.assert_close(found, outputs(model, x, None, {}), rtol=1e-12, atol=1e-12)

    def test_single_precision_with_a_constant_channel(self):
        torch.manual_seed(0)
        model = randomised(gs.to_bayesian(block(), 0.4, posterior_std=0.3)).float()
        model[1].running_var[2] = 0.0
        x = torch.randn(5, 4, 6, 6)
        for noise in ("weight", "local"):
            found, expected = (outputs(model, x, noise, p) for p in (pairs_of(model), {}))
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)

    def test_the_convolution_does_it_all(self):
        torch.manual_seed(0)
        model, x = randomised(gs.to_bayesian(block(), 0.4)), torch.randn(2, 4, 6, 6).double()
        pairs = pairs_of(model)
        with torch.no_grad():
            expected = model[1](model[0](x))
            with folded(model, pairs):
                found = model[0](x)
                assert model[1](found).data_ptr() == found.data_ptr()
            assert model[1](found).data_ptr() != found.data_ptr()
            with pytest.raises(KeyError), folded(model, pairs):
                raise KeyError
            torch.testing.assert_close(model[1](model[0](x)), expected)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)

    def test_an_output_that_goes_elsewhere_is_told(self):
        model, x = randomised(gs.to_bayesian(block(), 0.4)), torch.randn(2, 4, 6, 6).double()
        pairs = pairs_of(model)

        def alone(y: Tensor) -> None:
            pass

        def copied(y: Tensor) -> None:
            model[1](y.clone())

        def called_again(y: Tensor) -> None:
            model[1](model[0](x))

        for misuse in (alone, copied, called_again):
            with torch.no_grad(), folded(model, pairs) as state:
                misuse(model[0](x))
            assert not state.is_sound, misuse.__name__

    def test_other_threads_do_not_see_it(self):
        model, x = randomised(gs.to_bayesian(block(), 0.4)), torch.randn(2, 4, 6, 6).double()
        pairs, found = pairs_of(model), []
        with torch.no_grad():
            expected = model[0](x)
            with folded(model, pairs):
                thread = Thread(target=lambda: found.append(model[0](x)))
                thread.start()
                thread.join()
            assert torch.equal(found[0], expected)


class TestPredict:
    """Several passes per sample, so that layers are folded."""

    @pytest.fixture
    def scaled(self, monkeypatch):
        """One entry for each time that a layer is scaled."""
        seen, original = [], Scaling.of

        def of(*args):
            seen.append(original(*args))
            return seen[-1]

        monkeypatch.setattr(Scaling, "of", of)
        return seen

    def model(self, first: nn.Module) -> nn.Module:
        torch.manual_seed(0)
        net = nn.Sequential(first, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8, 3)).double()
        return randomised(gs.to_bayesian(net, 0.4, posterior_std=0.3))

    def by_hand(self, model, x, noise):
        expected = []
        for s in range(2):
            seed = fold_seed(0, s) if noise == "weight" else fold_seed(0, s, 0)
            with torch.no_grad(), sampling(model, seed=seed, noise=noise):
                parts = passes_of(x, rows_meet=False)
                expected.append(torch.cat([model(part) for part in parts]).softmax(-1))
        return torch.stack(expected)

    def test_the_same_bits_at_every_call(self):
        torch.manual_seed(0)
        net = build_model("resnet20", input_shape=(3, 32, 32), output_size=3)
        model, x = randomised(gs.to_bayesian(net, 0.9)), torch.randn(43, 3, 32, 32)
        first = gs.predict(model, x, 1)
        for _ in range(2):
            assert torch.equal(gs.predict(model, x, 1).probs, first.probs)

    @pytest.mark.parametrize("noise", ["weight", "local"])
    def test_the_same_as_by_hand(self, scaled, noise):
        model, x = self.model(block()), torch.randn(17, 4, 96, 96).double()
        found = gs.predict(model, x, 2, noise=noise)
        assert len(scaled) == 2, "once per sample"
        expected = self.by_hand(model, x, noise)
        torch.testing.assert_close(found.samples, expected, rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("noise", ["weight", "local"])
    @pytest.mark.parametrize("kind", [Moody, Adding, Changing])
    def test_a_network_that_changes_its_mind(self, scaled, kind, noise):
        torch.manual_seed(0)
        net = nn.Sequential(kind(), nn.Linear(4 * 96 * 96, 3)).double()
        model = randomised(gs.to_bayesian(net, 0.4, posterior_std=0.3))
        x = torch.randn(17, 4, 96, 96).double().abs()
        x[8:] *= -1.0
        found = gs.predict(model, x, 2, noise=noise)
        assert len(scaled) == 1, "given up in the first sample"
        expected = self.by_hand(model, x, noise)
        torch.testing.assert_close(found.samples, expected, rtol=1e-9, atol=1e-12)

    def test_chains(self, scaled):
        torch.manual_seed(0)
        x, y = torch.randn(17, 4, 96, 96), torch.arange(17) % 3
        net = self.model(block()).float()
        method = build(
            "csghmc",
            gs.to_deterministic(net),
            num_data=17,
            total_steps=4,
            likelihood="categorical",
            cycles=1,
            backend="native",
        )
        for _ in range(4):
            method.step((x, y))
        found = gs.predict(method, x, 2)
        assert scaled
        with method.sample(0, seed=0, noise="weight") as sample, torch.no_grad():
            expected = sample.eval()(x).softmax(-1)
        torch.testing.assert_close(found.samples[0], expected, rtol=1e-4, atol=1e-5)
