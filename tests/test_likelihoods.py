"""Likelihoods against torch.distributions, their gradients, and targets they must refuse."""

from __future__ import annotations

import math

import pytest
import torch
from torch import distributions as dist
from torch import nn
from torch.nn import functional as F

import gossamer as gs
from gossamer.errors import GossamerError, InvalidData, InvalidValue, UnknownName
from gossamer.likelihoods import LIKELIHOODS, Likelihood, make_likelihood

DOUBLE = torch.float64


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Float64 on both sides: a few roundings."""
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


class TestCategorical:
    def test_value(self):
        output, target = torch.randn(7, 4, dtype=DOUBLE), torch.randint(4, (7,))
        wanted = dist.Categorical(logits=output).log_prob(target)
        close(gs.Categorical().log_lik(output, target), wanted)

    def test_images_of_labels(self):
        output, target = torch.randn(3, 5, 2, 4, dtype=DOUBLE), torch.randint(5, (3, 2, 4))
        wanted = dist.Categorical(logits=output.permute(0, 2, 3, 1)).log_prob(target).sum((1, 2))
        close(gs.Categorical().log_lik(output, target), wanted)

    def test_extreme_logits_stay_finite(self):
        output = torch.tensor([[1e4, -1e4], [-1e4, 1e4]])
        value = gs.Categorical().log_lik(output, torch.tensor([0, 0]))
        assert value.tolist() == pytest.approx([0.0, -2e4])

    def test_half_precision_is_computed_in_float32(self):
        output, target = torch.randn(7, 4).to(torch.bfloat16), torch.randint(4, (7,))
        value = gs.Categorical().log_lik(output, target)
        assert value.dtype == torch.float32
        wanted = dist.Categorical(logits=output.float()).log_prob(target)
        torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-6)

    def test_accuracy(self):
        output = torch.tensor([[2.0, 1.0], [0.0, 3.0], [5.0, 4.0]])
        assert gs.Categorical().accuracy(output, torch.tensor([0, 1, 1])) == pytest.approx(2 / 3)

    @pytest.mark.parametrize("label", [-1, 4, 100, -100])
    def test_labels_out_of_range(self, label):
        target = torch.tensor([0, label, 2])
        with pytest.raises(InvalidData, match=rf"target = {label}: labels must lie in \[0, 4\)"):
            gs.Categorical().log_lik(torch.randn(3, 4), target)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool])
    def test_labels_that_are_not_integers(self, dtype):
        with pytest.raises(InvalidData, match=r"target dtype.*use target\.long"):
            gs.Categorical().log_lik(torch.randn(3, 4), torch.tensor([0, 1, 0]).to(dtype))

    @pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
    def test_narrow_integers(self, dtype):
        output, target = torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 0])
        value = gs.Categorical().log_lik(output, target.to(dtype))
        assert torch.equal(value, gs.Categorical().log_lik(output, target))

    @pytest.mark.parametrize(
        ("output", "target"),
        [((3, 4), (4,)), ((3, 4), (3, 1)), ((3, 4), (3, 4)), ((3,), (3,)), ((3, 4, 2), (3,))],
    )
    def test_wrong_shapes(self, output, target):
        with pytest.raises(InvalidData, match="target shape"):
            gs.Categorical().log_lik(torch.randn(output), torch.zeros(target, dtype=torch.int64))


class TestBernoulli:
    @pytest.mark.parametrize("output", [(6,), (6, 1)])
    @pytest.mark.parametrize("target", [(6,), (6, 1)])
    def test_value(self, output, target):
        logit, label = torch.randn(output, dtype=DOUBLE), torch.randint(2, target)
        wanted = dist.Bernoulli(logits=logit.flatten()).log_prob(label.flatten().double())
        close(gs.Bernoulli().log_lik(logit, label), wanted)

    def test_several_elements_are_summed(self):
        logit, label = torch.randn(4, 3, dtype=DOUBLE), torch.randint(2, (4, 3))
        wanted = dist.Bernoulli(logits=logit).log_prob(label.double()).sum(1)
        close(gs.Bernoulli().log_lik(logit, label), wanted)

    def test_accuracy(self):
        logit = torch.tensor([[1.0], [-1.0], [2.0], [-3.0]])
        assert gs.Bernoulli().accuracy(logit, torch.tensor([1, 1, 1, 0])) == 0.75

    @pytest.mark.parametrize("wrong", [2.0, -1.0, 0.5, math.nan])
    def test_other_targets(self, wrong):
        with pytest.raises(InvalidData, match="bernoulli target must be 0 or 1"):
            gs.Bernoulli().log_lik(torch.randn(2), torch.tensor([0.0, wrong]))


class TestGaussian:
    def test_fixed(self):
        output, target = torch.randn(5, 2, dtype=DOUBLE), torch.randn(5, 2, dtype=DOUBLE)
        wanted = dist.Normal(output, torch.tensor(0.3, dtype=DOUBLE)).log_prob(target).sum(1)
        close(gs.Gaussian(noise_std=0.3).log_lik(output, target), wanted)
        assert list(gs.Gaussian(0.3).parameters()) == []

    def test_learnt(self):
        output, target = torch.randn(5, dtype=DOUBLE), torch.randn(5, dtype=DOUBLE)
        lik = gs.Gaussian("learn").double()
        std = nn.functional.softplus(lik.raw_noise_std)
        close(lik.log_lik(output, target), dist.Normal(output, std).log_prob(target))
        assert std.item() == pytest.approx(0.5, rel=1e-6)
        assert [n for n, _ in lik.named_parameters()] == ["raw_noise_std"]

    def test_head(self):
        output, target = torch.randn(5, 6, dtype=DOUBLE), torch.randn(5, 3, dtype=DOUBLE)
        std = nn.functional.softplus(output[:, 3:])
        wanted = dist.Normal(output[:, :3], std).log_prob(target).sum(1)
        close(gs.Gaussian("head").log_lik(output, target), wanted)

    def test_head_with_one_target_without_its_axis(self):
        output, target = torch.randn(5, 2, dtype=DOUBLE), torch.randn(5, dtype=DOUBLE)
        std = nn.functional.softplus(output[:, 1])
        wanted = dist.Normal(output[:, 0], std).log_prob(target)
        close(gs.Gaussian("head").log_lik(output, target), wanted)

    def test_head_needs_pairs(self):
        with pytest.raises(InvalidData, match="even number of columns"):
            gs.Gaussian("head").log_lik(torch.randn(5, 3), torch.randn(5, 1))

    @pytest.mark.parametrize("noise", [0.0, -1.0, math.inf, math.nan])
    def test_bad_noise(self, noise):
        with pytest.raises(InvalidValue, match="noise_std"):
            gs.Gaussian(noise_std=noise)

    def test_unknown_noise(self):
        with pytest.raises(UnknownName, match="noise_std = learned"):
            gs.Gaussian(noise_std="learned")

    def test_no_accuracy(self):
        assert gs.Gaussian(0.1).accuracy(torch.zeros(2), torch.zeros(2)) is None

    @pytest.mark.parametrize(("noise", "columns"), [("learn", 1), ("head", 2)])
    def test_learnt_noise_finds_the_truth(self, noise, columns):
        """Maximum likelihood: the learnt noise is the root mean square of the residuals."""
        torch.manual_seed(0)
        target = 0.2 * torch.randn(400)
        lik = gs.Gaussian(noise)
        output = torch.zeros(columns, requires_grad=True)
        opt = torch.optim.Adam([output, *lik.parameters()], lr=0.05)
        for _ in range(400):
            opt.zero_grad()
            (-lik.log_lik(output.expand(400, columns), target)).mean().backward()
            opt.step()
        mean, std = lik.mean_and_noise(output.detach().expand(400, columns))
        # Adam at a fixed rate of 0.05 ends within a few per cent.
        assert std[0].item() == pytest.approx(float(target.std(correction=0)), rel=0.05)
        assert mean[0].item() == pytest.approx(float(target.mean()), abs=0.02)


class TestPoisson:
    def test_value(self):
        output = torch.randn(6, 1, dtype=DOUBLE)
        target = torch.tensor([0, 1, 2, 5, 30, 0])
        wanted = dist.Poisson(output.flatten().exp()).log_prob(target.double())
        close(gs.Poisson().log_lik(output, target), wanted)

    @pytest.mark.parametrize("wrong", [-1.0, 1.5, math.nan, math.inf])
    def test_not_a_count(self, wrong):
        with pytest.raises(InvalidData, match="whole number"):
            gs.Poisson().log_lik(torch.zeros(2), torch.tensor([1.0, wrong]))


REAL = [gs.Bernoulli(), gs.Gaussian(0.5), gs.Gaussian("learn"), gs.Poisson()]


@pytest.mark.parametrize("lik", REAL, ids=["bernoulli", "gaussian", "learn", "poisson"])
class TestShapes:
    @pytest.mark.parametrize(
        ("output", "target"),
        [
            ((4, 1), (4,)),
            ((4,), (4, 1)),
            ((4,), (4,)),
            ((4, 1), (4, 1)),
            ((1, 1), (1,)),
            ((1,), (1, 1)),
            ((1, 1), (1, 1)),
            ((1,), (1,)),
        ],
    )
    def test_a_single_column_may_lack_its_axis(self, lik, output, target):
        """Also for a batch of one row, the last batch of many loaders."""
        value = lik.log_lik(torch.zeros(output), torch.ones(target))
        assert value.shape == output[:1]
        assert torch.isfinite(value).all()

    @pytest.mark.parametrize(
        ("output", "target"),
        [
            ((4, 1), (3,)),
            ((4, 2), (4,)),
            ((4,), (4, 2)),
            ((4, 1), (1, 4)),
            ((1, 4), (4, 1)),
            ((4, 1), (1,)),
            ((1,), (4,)),
            ((4, 2), (2, 4)),
            ((2, 2), (4,)),
            ((2, 1, 2), (2, 2)),
            ((4,), ()),
        ],
    )
    def test_never_broadcast(self, lik, output, target):
        with pytest.raises(InvalidData, match="target shape"):
            lik.log_lik(torch.zeros(output), torch.ones(target))


@pytest.mark.parametrize(
    ("lik", "output", "target"),
    [
        (gs.Categorical(), (3, 4), torch.tensor([0, 3, 1])),
        (gs.Categorical(), (2, 3, 2), torch.tensor([[0, 2], [1, 1]])),
        (gs.Bernoulli(), (3, 1), torch.tensor([0, 1, 1])),
        (gs.Gaussian(0.3), (3, 2), torch.randn(3, 2)),
        (gs.Gaussian("head"), (3, 4), torch.randn(3, 2)),
        (gs.Poisson(), (3,), torch.tensor([0, 4, 1])),
    ],
    ids=["categorical", "images", "bernoulli", "gaussian", "head", "poisson"],
)
def test_gradient(lik, output, target):
    values = torch.randn(output, dtype=DOUBLE, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: lik.log_lik(v, target.clone()), (values,))


def test_gradient_of_the_learnt_noise():
    lik = gs.Gaussian("learn").double()
    output, target = torch.randn(5, dtype=DOUBLE), torch.randn(5, dtype=DOUBLE)

    def total(raw):
        state = {"raw_noise_std": raw}
        with torch.nn.utils.stateless._reparametrize_module(lik, state):
            return lik.log_lik(output, target)

    raw = torch.tensor(0.1, dtype=DOUBLE, requires_grad=True)
    assert torch.autograd.gradcheck(total, (raw,))


def test_the_table_and_the_maker():
    assert list(LIKELIHOODS) == [
        "categorical",
        "bernoulli",
        "gaussian",
        "heteroscedastic",
        "student_t",
        "poisson",
        "negative_binomial",
    ]
    made = make_likelihood("gaussian", noise_std=0.1)
    assert isinstance(made, gs.Gaussian)
    assert made.noise_std == 0.1
    assert make_likelihood(made) is made
    with pytest.raises(UnknownName, match="likelihood = normal"):
        make_likelihood("normal")
    with pytest.raises(InvalidValue, match="do not fit categorical"):
        make_likelihood("categorical", noise_std=0.1)


def test_the_base_class_is_not_a_likelihood():
    with pytest.raises(GossamerError, match="must define log_lik"):
        Likelihood().log_lik(torch.zeros(1), torch.zeros(1))
    assert Likelihood().accuracy(torch.zeros(1), torch.zeros(1)) is None


def test_log_lik_as_cross_entropy() -> None:
    output = torch.randn(5, 4, 6, 3, dtype=torch.float64)
    target = torch.randint(3, (5, 4, 6))
    wanted = -F.cross_entropy(output.movedim(-1, 1), target, reduction="none").sum((1, 2))
    for class_dim in (-1, 3):
        found = gs.Categorical(class_dim=class_dim)
        torch.testing.assert_close(found.log_lik(output, target), wanted, rtol=1e-12, atol=0)
        right = float((output.argmax(-1) == target).float().mean())
        assert found.accuracy(output, target) == right
    middle = gs.Categorical(class_dim=2)
    target = torch.randint(6, (5, 4, 3))
    wanted = -F.cross_entropy(output.movedim(2, 1), target, reduction="none").sum((1, 2))
    torch.testing.assert_close(middle.log_lik(output, target), wanted, rtol=1e-12, atol=0)


def test_targets_of_tokens_name_the_axis() -> None:
    output, target = torch.randn(5, 6, 3), torch.zeros(5, 6, dtype=torch.long)
    with pytest.raises(InvalidData, match="class_dim=-1"):
        gs.Categorical().log_lik(output, target)
    with pytest.raises(InvalidData, match=r"without its class axis, 1$"):
        gs.Categorical().log_lik(output, target[:, :5])
