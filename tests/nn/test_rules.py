"""Conversion by rules: shares by names, priors about pretrained weights, weights without values."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

import gossamer as gs
from gossamer.core.priors import EmpiricalGaussian, Gaussian, Laplace
from gossamer.errors import InvalidValue, UnknownName
from gossamer.nn import sparse_layers
from gossamer.nn.prior import POSTERIOR_SHARE
from gossamer.nn.skeleton import describe, skeleton


def net() -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU())
    return nn.ModuleDict({"body": body, "head": nn.Linear(20, 3)})


@pytest.mark.parametrize("convert", [gs.to_bayesian, gs.to_sparse])
def test_shares_by_names(convert):
    layers = sparse_layers(convert(net(), sparsity={"body.*": 0.9, "head": 0.0}))
    kept = {name: layer.nnz for name, layer in layers.items()}
    assert kept["head"] == 60
    assert kept["body.0"] + kept["body.2"] == round(0.1 * (240 + 400))
    with pytest.raises(InvalidValue, match="has no pattern for the layer head"):
        convert(net(), sparsity={"body.*": 0.9})


class TestPriorsByName:
    def test_the_width(self):
        bnn = gs.to_bayesian(net(), 0.5, prior_std={"head": 0.7, "*": "scaled"})
        plain = sparse_layers(gs.to_bayesian(net(), 0.5))
        found = {name: layer.prior_std for name, layer in sparse_layers(bnn).items()}
        assert found["head"] == 0.7
        for name in ("body.0", "body.2"):
            assert found[name] == plain[name].prior_std
        layer = bnn["head"]
        posterior = Normal(layer.weight_mean.double(), layer.weight_std.double())
        wanted = kl_divergence(posterior, Normal(torch.zeros(()).double(), 0.7)).sum()
        torch.testing.assert_close(layer.kl_divergence().double(), wanted, rtol=1e-5, atol=0)
        start = torch.full_like(layer.weight_std, POSTERIOR_SHARE * 0.7)
        torch.testing.assert_close(layer.weight_std.detach(), start)

    def test_kinds_of_priors(self):
        bnn = gs.to_bayesian(
            net(),
            prior_std={"body.0": "empirical", "*": 0.2},
            prior={"head": Laplace(0.1), "*": None},
            prior_mean={"body.2": "pretrained", "*": "zero"},
        )
        layers = sparse_layers(bnn)
        kinds = {name: type(layer.prior) for name, layer in layers.items()}
        assert kinds == {"body.0": EmpiricalGaussian, "body.2": Gaussian, "head": Laplace}
        assert [name for name, each in layers.items() if each.prior_mean is not None] == ["body.2"]
        wanted = sum(layer.kl_divergence() for layer in layers.values())
        torch.testing.assert_close(gs.kl_divergence(bnn), wanted, rtol=1e-6, atol=0)

    def test_the_first_pattern_wins_and_each_must_match(self):
        bnn = gs.to_bayesian(net(), prior_std={"body.2": 0.1, "body.*": 0.2, "*": 0.3})
        found = {name: layer.prior_std for name, layer in sparse_layers(bnn).items()}
        assert found == {"body.0": 0.2, "body.2": 0.1, "head": 0.3}

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"prior_std": {"hed": 1.0, "*": 0.1}}, InvalidValue, "prior_std = hed: matches no"),
            ({"prior_std": {"head": 1.0}}, InvalidValue, "no pattern for the layer body.0; name"),
            ({"prior_mean": {"head": "zero"}}, InvalidValue, "prior_mean = .*no pattern for"),
            ({"prior_std": {"head": -1.0, "*": 0.1}}, InvalidValue, "must be positive"),
            ({"prior_mean": {"head": "one", "*": "zero"}}, UnknownName, "prior_mean = one"),
            (
                {"prior_std": {"head": "empirical", "*": 0.1}, "prior": Laplace(0.1)},
                InvalidValue,
                "is a prior itself",
            ),
            (
                {
                    "prior_mean": {"head": "pretrained", "*": "zero"},
                    "absent_variance": "linear",
                    "sparsity": 0.5,
                },
                InvalidValue,
                "has a prior about 0",
            ),
        ],
    )
    def test_what_is_wrong_is_found_before_anything_changes(self, options, error, message):
        plain = net()
        with pytest.raises(error, match=message):
            gs.to_bayesian(plain, **options, inplace=True)
        assert not sparse_layers(plain)
        assert isinstance(plain["body"][0], nn.Linear)


class TestPretrained:
    def converted(self, **options) -> tuple[nn.Module, nn.Module]:
        plain = nn.Linear(12, 20)
        return plain, gs.to_bayesian(
            plain, 0.75, support="magnitude", prior_mean="pretrained", **options
        )

    def expected_kl(self, plain: nn.Module, layer: nn.Module, prior_std: float) -> torch.Tensor:
        at = layer.support.positions()
        about = plain.weight.detach().double().flatten()[at]
        posterior = Normal(layer.weight_mean.double(), layer.weight_std.double())
        return kl_divergence(posterior, Normal(about, prior_std)).sum()

    @pytest.mark.parametrize("fused", [True, False])
    def test_the_kl_is_to_the_pretrained_weights(self, fused):
        plain, layer = self.converted(prior_std=0.3, backend="native" if fused else "masked")
        layer = layer if fused else layer.double()
        with torch.no_grad():
            layer.weight_mean.add_(0.1 * torch.randn_like(layer.weight_mean))
        wanted = self.expected_kl(plain, layer, 0.3)
        torch.testing.assert_close(gs.kl_divergence(layer).double(), wanted, rtol=1e-5, atol=0)
        (slope,) = torch.autograd.grad(gs.kl_divergence(layer), layer.weight_mean)
        (want,) = torch.autograd.grad(wanted, layer.weight_mean)
        torch.testing.assert_close(slope, want.to(slope), rtol=1e-4, atol=1e-5)

    def test_a_weight_that_enters_later_has_its_own(self):
        plain, layer = self.converted(prior_std=0.3)
        optimizer = torch.optim.Adam(gs.parameter_groups(layer, lr=1e-2))
        subspace = gs.Subspace(layer, optimizer, total_steps=20, update_every=2)
        before = set(layer.indices.tolist())
        for _ in range(6):
            optimizer.zero_grad()
            layer(torch.randn(8, 12)).square().sum().backward()
            optimizer.step()
            subspace.step()
        assert set(layer.indices.tolist()) != before
        found, wanted = gs.kl_divergence(layer).double(), self.expected_kl(plain, layer, 0.3)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=0)

    def test_an_empirical_scale_is_about_them_too(self):
        plain, layer = self.converted(prior_std="empirical")
        with torch.no_grad():
            layer.weight_mean.add_(0.2 * torch.randn_like(layer.weight_mean))
        off = layer.weight_mean - plain.weight.flatten()[layer.support.positions()]
        wanted = (off.square() + layer.weight_std.square()).mean().sqrt()
        assert layer.prior_std == pytest.approx(wanted.item(), rel=1e-5)
        summary = str(gs.summary(layer))
        assert "the prior's means are pretrained weights" in summary

    def test_states_copies_and_files_keep_them(self):
        plain, layer = self.converted()
        other = gs.to_bayesian(
            nn.Linear(12, 20), 0.75, support="magnitude", prior_mean="pretrained"
        )
        other.load_state_dict(layer.state_dict())
        for again in (other, copy.deepcopy(layer)):
            assert torch.equal(again.prior_mean, plain.weight.detach().flatten())
        empty = skeleton(nn.Linear(12, 20), describe(layer))
        assert empty.prior_mean.shape == (240,)

    def test_what_is_refused(self):
        with pytest.raises(UnknownName, match="prior_mean"):
            gs.to_bayesian(nn.Linear(3, 3), prior_mean="mine")
        with pytest.raises(InvalidValue, match="has a prior about 0"):
            self.converted(absent_variance="all")


def test_weights_without_values_are_refused_by_name():
    with torch.device("meta"):
        plain = net()
    with pytest.raises(InvalidValue, match=r"model = body\.0: has a weight on the device meta"):
        gs.to_bayesian(plain, 0.5)
