"""BatchNorm computed by the convolution before it: the same numbers, found where it is safe."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

import gossamer as gs
from cases.zoo import BACKENDS
from gossamer.models import build_model
from gossamer.nn import base, sampling
from gossamer.nn.folding import foldable, folded
from gossamer.ops import library

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


class Twice(Residual):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(self.norm(self.conv(x))))


class NormTwice(Residual):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) + self.norm(x)


class ByValue(Residual):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else x


class Counting(Residual):
    def __init__(self) -> None:
        super().__init__()
        self.calls, self.last = 0, None

    def forward(self, x: Tensor) -> Tensor:
        self.calls, self.last = self.calls + 1, x
        return super().forward(x)


class Unlike(nn.BatchNorm2d):
    """A layer of the user's own."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return -super().forward(input)


def outputs(model: nn.Module, x: Tensor, noise: str | None, pairs: dict[str, str]) -> Tensor:
    drawing = nullcontext() if noise is None else sampling(model, seed=5, noise=noise)
    with torch.no_grad(), drawing, folded(model, pairs):
        return model(x)


class TestFound:
    def test_a_residual_network(self):
        model = gs.to_bayesian(build_model("resnet20", input_shape=(1, 8, 8), output_size=3), 0.5)
        norms = [n for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)]
        found = foldable(model.eval())
        assert sorted(found.values()) == sorted(norms)
        assert found["stages.1.0.conv2"] == "stages.1.0.bn2"

    @pytest.mark.parametrize("kind", [Residual, Counting])
    def test_by_hand(self, kind):
        assert foldable(gs.to_bayesian(kind(), 0.5).eval()) == {"conv": "norm"}

    def test_the_model_itself_is_not_run(self):
        model = gs.to_bayesian(Counting(), 0.5).eval()
        foldable(model)
        assert (model.calls, model.last) == (0, None)

    @pytest.mark.parametrize("kind", [TwoReaders, Twice, NormTwice, ByValue])
    def test_not_where_another_reads_or_it_cannot_be_seen(self, kind):
        assert foldable(gs.to_bayesian(kind(), 0.5).eval()) == {}

    @pytest.mark.parametrize(
        "net",
        [
            nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
            nn.Sequential(nn.ConvTranspose2d(4, 4, 3), nn.BatchNorm2d(4)),
            nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)),
            nn.Sequential(nn.Conv2d(4, 4, 3), Unlike(4)),
            nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.BatchNorm2d(4)),
        ],
        ids=["linear", "transposed", "no statistics", "own class", "something between"],
    )
    def test_not_these(self, net):
        assert foldable(gs.to_bayesian(net, 0.5).eval()) == {}

    def test_not_in_training_nor_where_hooks_look(self):
        model = gs.to_bayesian(Residual(), 0.5).train()
        assert foldable(model) == {}
        handle = model.eval().conv.register_forward_hook(lambda *_: None)
        assert foldable(model) == {}
        handle.remove()
        assert foldable(model) == {"conv": "norm"}


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
        pairs = foldable(model)
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
        found = outputs(model, x, noise, foldable(model))
        torch.testing.assert_close(found, outputs(model, x, noise, {}), rtol=1e-12, atol=1e-12)

    def test_without_affine_parameters_and_without_noise(self):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4, affine=False)).double()
        model, x = randomised(gs.to_sparse(net, 0.5)), torch.randn(4, 3, 9).double()
        assert foldable(model) == {"0": "1"}
        found = outputs(model, x, None, {"0": "1"})
        torch.testing.assert_close(found, outputs(model, x, None, {}), rtol=1e-12, atol=1e-12)

    def test_the_convolution_does_it_all(self):
        torch.manual_seed(0)
        model, x = randomised(gs.to_bayesian(block(), 0.4)), torch.randn(2, 4, 6, 6).double()
        with torch.no_grad():
            expected = model[1](model[0](x))
            with folded(model, foldable(model)):
                found = model[0](x)
                assert model[1](found) is found
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)

    def test_all_is_as_before_after_an_exception(self):
        model = randomised(gs.to_bayesian(block(), 0.4))
        with folded(model, foldable(model)):
            assert model[1].is_folded
            assert model[0].scaling is not None
        with pytest.raises(KeyError), folded(model, foldable(model)):
            raise KeyError
        assert not model[1].is_folded
        assert model[0].scaling is None


class TestPredict:
    """Several passes per sample, so that layers are folded."""

    def images(self) -> tuple[nn.Module, Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(*block(), nn.Flatten()).double()
        return randomised(gs.to_bayesian(net, 0.4, posterior_std=0.3)), torch.randn(
            17, 4, 96, 96
        ).double()

    def test_weights(self, monkeypatch):
        model, x = self.images()
        seen = []
        monkeypatch.setattr(base.Scaling, "of", _watch(base.Scaling.of, seen))
        found = gs.predict(model, x, 2)
        assert len(seen) == 2, "once per sample"
        monkeypatch.undo()
        with torch.no_grad():
            model.register_forward_hook(lambda *_: None)  # nothing is folded
            expected = gs.predict(model, x, 2)
        assert len(seen) == 2
        torch.testing.assert_close(found.probs, expected.probs, rtol=1e-9, atol=1e-12)

    def test_local_noise(self):
        model, x = self.images()
        found = gs.predict(model, x, 1, noise="local")
        model.register_forward_hook(lambda *_: None)
        expected = gs.predict(model, x, 1, noise="local")
        torch.testing.assert_close(found.probs, expected.probs, rtol=1e-9, atol=1e-12)


def _watch(original, seen):
    def of(*args):
        seen.append(args)
        return original(*args)

    return of
