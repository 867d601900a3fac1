"""Rules of moment propagation: Jacobians, Monte Carlo, and what is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gossamer as gs
from cases.zoo import BACKENDS, LAYERS, ids
from gossamer.errors import InvalidValue
from gossamer.models import norm_relu
from gossamer.nn import BayesianLayer
from gossamer.nn.batchnorm import use_native_batchnorm
from gossamer.prediction.moments import Moments, rule_of
from gossamer.prediction.moments.propagate import propagate, record

PLAIN = {
    "linear": (nn.Linear(5, 4), (3, 5)),
    "conv": (nn.Conv2d(2, 3, 3, stride=2, padding=1), (2, 2, 5, 6)),
    "transposed": (nn.ConvTranspose1d(2, 3, 3, stride=2), (2, 2, 5)),
    "average": (nn.AvgPool2d(2), (2, 2, 5, 6)),
    "average padded": (nn.AvgPool2d(3, stride=2, padding=1), (2, 2, 5, 6)),
    "average of what is there": (
        nn.AvgPool2d((3, 2), stride=2, padding=1, count_include_pad=False),
        (2, 2, 5, 6),
    ),
    "average divided by five": (nn.AvgPool2d(2, divisor_override=5), (2, 2, 4, 4)),
    "average 1d": (nn.AvgPool1d(3, stride=1, padding=1, count_include_pad=False), (2, 2, 6)),
    "average 3d": (nn.AvgPool3d(2), (1, 2, 4, 4, 2)),
    "adaptive": (nn.AdaptiveAvgPool2d(1), (2, 2, 5, 6)),
    "adaptive uneven": (nn.AdaptiveAvgPool2d((2, 4)), (2, 2, 5, 6)),
    "adaptive 1d": (nn.AdaptiveAvgPool1d(3), (2, 2, 7)),
    "flatten": (nn.Flatten(), (2, 2, 3)),
    "unflatten": (nn.Unflatten(1, (2, 3)), (2, 6)),
    "identity": (nn.Identity(), (2, 3)),
    "dropout": (nn.Dropout(0.5), (2, 3)),
}


def some(shape) -> Moments:
    generator = torch.Generator().manual_seed(2)
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    return Moments(mean, torch.rand(shape, generator=generator, dtype=torch.float64))


def by_jacobian(module: nn.Module, x: Moments) -> Moments:
    """An affine map of independent elements: its value at the mean, and J² v."""
    mean = module(x.mean)
    jacobian = torch.autograd.functional.jacobian(module, x.mean).reshape(mean.numel(), -1)
    return Moments(mean, (jacobian.square() @ x.variance.flatten()).view(mean.shape))


def assert_same(got: Moments, wanted: Moments, rtol: float = 1e-10) -> None:
    torch.testing.assert_close(got.mean, wanted.mean, rtol=rtol, atol=1e-12)
    torch.testing.assert_close(got.variance, wanted.variance, rtol=rtol, atol=1e-12)


def through(module: nn.Module, x: Tensor | Moments) -> Moments | Tensor:
    return rule_of(module)(module, x)


@pytest.mark.parametrize("name", PLAIN)
def test_affine_modules_by_their_jacobian(name):
    module, shape = PLAIN[name]
    module, x = module.double().eval(), some(shape)
    assert_same(through(module, x), by_jacobian(module, x))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(
    ("kind", "shape"), [(nn.BatchNorm1d, (4, 3)), (nn.BatchNorm2d, (2, 3, 2, 2))]
)
def test_batch_norm_by_its_jacobian(kind, shape, affine):
    module = kind(3, affine=affine).double()
    module(3 * torch.randn(8, *shape[1:]).double() + 1)
    if affine:
        nn.init.normal_(module.weight)
    x = some(shape)
    assert_same(through(module.eval(), x), by_jacobian(module, x))


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("fixed", ["", "x", "residual", "no residual"])
def test_a_batch_norm_that_does_more_is_its_steps(fixed, relu):
    holder = nn.Sequential(nn.BatchNorm2d(3).double())
    holder(3 * torch.randn(8, 3, 4, 4).double() + 1)
    nn.init.normal_(holder[0].weight)
    plain = copy.deepcopy(holder[0]).eval()
    use_native_batchnorm(holder)
    norm = holder[0].eval()
    x, residual = some((2, 3, 4, 4)), some((2, 3, 4, 4)).each(lambda part: part.flip(0))
    parts = {"x": x, "residual": residual}
    if fixed in parts:
        parts[fixed] = Moments(parts[fixed].mean, torch.zeros_like(residual.mean))
    expected = through(plain, parts["x"])
    if fixed != "no residual":
        other = parts["residual"]
        expected = Moments(expected.mean + other.mean, expected.variance + other.variance)
    expected = through(nn.ReLU(), expected) if relu else expected
    given = [parts[n].mean if n == fixed else parts[n] for n in ("x", "residual")]
    given = given[:1] if fixed == "no residual" else given
    with torch.no_grad():
        assert_same(rule_of(norm)(norm, *given, relu=relu), expected)


@pytest.mark.parametrize("joins", [False, True])
def test_a_network_with_such_a_batch_norm(joins):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.relu = (
                nn.Conv2d(3, 3, 3, padding=1),
                nn.BatchNorm2d(3),
                nn.ReLU(),
            )

        def forward(self, x):
            return norm_relu(self.norm, self.relu, self.conv(x), x if joins else None)

    torch.manual_seed(0)
    plain = Block().double()
    plain(torch.randn(9, 3, 4, 4).double())
    found = []
    for backend in ("native", "masked"):
        torch.manual_seed(1)
        net = gs.to_bayesian(plain, 0.3, posterior_std=0.3, backend=backend).eval()
        with torch.no_grad():
            found.append(propagate(record(net), some((2, 3, 4, 4)).mean))
    assert (found[0].variance > 0).any()
    assert_same(*found)


class TestSparseLayers:
    @pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
    @pytest.mark.parametrize("engine", BACKENDS)
    @pytest.mark.parametrize("case", LAYERS, ids=ids(LAYERS))
    def test_products_of_independent_gaussians(self, case, engine):
        """E W x = μ m; Var W x = Σ (μ² v + σ² m² + σ² v), by dense products written out."""
        if case.output_size is not None:
            pytest.skip("an argument of the call, which is refused")
        torch.manual_seed(0)
        layer = gs.to_bayesian(case.build().double(), 0.3, posterior_std=0.3, backend=engine)
        plain = gs.to_deterministic(layer).eval()
        std = torch.zeros(layer.layout.numel, dtype=torch.float64)
        std[layer.support.positions()] = layer.weight_std.detach()
        std, x = std.view(layer.layout.shape), some(case.shape)
        square = plain.weight.square() + std.square()

        def dense(weight: Tensor, values: Tensor) -> Tensor:
            changed = {"weight": weight}
            if plain.bias is not None:
                changed["bias"] = torch.zeros_like(plain.bias)
            return torch.func.functional_call(plain, changed, (values,))

        spread = dense(square, x.variance) + dense(std.square(), x.mean.square())
        with torch.no_grad():
            assert_same(through(layer.eval(), x), Moments(plain(x.mean), spread))
            fixed = dense(std.square(), x.mean.square())
            assert_same(through(layer, x.mean), Moments(plain(x.mean), fixed))

    @pytest.mark.parametrize("engine", BACKENDS)
    def test_deterministic_ones(self, engine):
        layer = gs.to_sparse(nn.Conv2d(2, 3, 3, padding=1).double(), 0.4, backend=engine).eval()
        x = some((2, 2, 5, 6))
        with torch.no_grad():
            got = through(layer, x)
        assert_same(got, by_jacobian(layer, x))

    def test_against_draws(self):
        """200,000 draws of weights and inputs of one layer."""
        torch.manual_seed(0)
        layer = gs.to_bayesian(nn.Linear(4, 2).double(), posterior_std=0.5)
        x = some((1, 4))
        n = 200_000
        weights = layer.weight_mean + layer.weight_std * torch.randn(n, 8).double()
        inputs = x.mean + x.variance.sqrt() * torch.randn(n, 4).double()
        drawn = (weights.view(n, 2, 4) * inputs[:, None]).sum(-1) + layer.bias
        got = through(layer, x)
        error = drawn.var(0).sqrt() / n**0.5
        assert ((drawn.mean(0) - got.mean[0]).abs() < 5 * error).all()
        # The fourth moment of a product of Gaussians is at most nine times the squared variance.
        assert ((drawn.var(0) / got.variance[0] - 1).abs() < 5 * (8 / n) ** 0.5).all()


class TestMaxPool:
    @pytest.mark.parametrize(
        ("module", "shape", "bound"),
        [
            (nn.MaxPool1d(2), (3, 2, 6), 0.03),
            (nn.MaxPool2d((1, 2), stride=(2, 3), padding=(0, 1)), (2, 2, 4, 7), 0.03),
            (nn.MaxPool2d(2), (2, 2, 4, 6), 0.15),
            (nn.MaxPool2d(2, dilation=2), (2, 2, 5, 6), 0.15),
            (nn.MaxPool2d(3, stride=2, padding=1), (2, 2, 5, 6), 0.3),
            (nn.MaxPool3d(2), (1, 2, 2, 4, 2), 0.3),
        ],
        ids=["1d", "pairs", "2d", "dilated", "padded", "3d"],
    )
    def test_against_draws(self, module, shape, bound):
        """Exact for pairs, where 0.03 is Monte Carlo error; a known limit for more elements."""
        torch.manual_seed(0)
        x, n = some(shape), 20_000
        draws = x.mean + x.variance.sqrt() * torch.randn(n, *shape).double()
        pooled = module(draws.flatten(0, 1)).unflatten(0, (n, shape[0]))
        got = through(module, x)
        assert got.mean.shape == pooled.shape[1:]
        std = pooled.std(0)
        assert ((got.mean - pooled.mean(0)).abs() < bound * std).all()
        assert ((got.variance.sqrt() - std).abs() < bound * std).all()

    def test_a_relu_before_it_comes_after_it(self):
        """They may change places, and before the ReLU elements are nearer to Gaussian."""
        torch.manual_seed(0)
        x, n = some((2, 2, 4, 6)), 20_000
        relu, pool = nn.ReLU(), nn.MaxPool2d(2)
        got = through(pool, through(relu, x))
        assert_same(got, through(relu, through(pool, x)))
        draws = x.mean + x.variance.sqrt() * torch.randn(n, 2, 2, 4, 6).double()
        std = pool(relu(draws).flatten(0, 1)).unflatten(0, (n, 2)).std(0)
        rectified = through(relu, x)
        as_gaussian = through(pool, Moments(rectified.mean, rectified.variance))
        errors = [(m.variance.sqrt() / std - 1).abs().mean() for m in (got, as_gaussian)]
        assert errors[0] < 0.5 * errors[1]

    def test_what_is_fixed_is_pooled_as_ever(self):
        x = torch.randn(2, 3, 6, 6)
        for module in (nn.MaxPool2d(2), nn.MaxPool2d(3, stride=2, padding=1)):
            got = through(module, Moments(x, torch.zeros_like(x)))
            torch.testing.assert_close(got.mean, module(x), rtol=0, atol=1e-30)
            assert not got.variance.any()


class Forked(nn.Module):
    """Sums, differences, factors, pads, slices and questions about shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 3, 3, padding=1)
        self.second = nn.Conv2d(2, 3, 1)
        self.head = nn.Linear(6 * 3 * 3, 4)

    def forward(self, x):
        fixed = self.second(x)
        y = torch.cat([(fixed - 2.0 * self.first(x)) / 4.0 + 1.0, fixed], 1)
        y = F.avg_pool2d(F.pad(y, (1, 1, 1, 1))[:, :, ::1, ::1], 2)
        y = y.contiguous().view(y.size(0), -1).unsqueeze(1).squeeze(1)
        return F.dropout(self.head(y) - 1.0, 0.5, training=self.training)


class Given(nn.Module):
    """Returns what it was given."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output

    def forward(self, x):
        return self.output


class TestNetworks:
    def test_operations_of_a_forward_method(self):
        """One random convolution; the rest is affine, and its Jacobian knows the variances."""
        torch.manual_seed(0)
        bnn = gs.to_bayesian(Forked().double(), include=["first"], posterior_std=0.4).eval()
        x = torch.randn(1, 2, 4, 4).double()
        with torch.no_grad():
            got = propagate(record(bnn), x)
            random = through(bnn.first, x)
        rest = gs.to_deterministic(bnn).eval()

        def after(first: Tensor) -> Tensor:
            rest.first = Given(first)
            return rest(x)

        jacobian = torch.autograd.functional.jacobian(after, random.mean).reshape(4, -1)
        spread = (jacobian.square() @ random.variance.flatten()).view(1, 4)
        assert_same(got, Moments(after(random.mean), spread))

    @pytest.mark.parametrize("combine", [torch.add, torch.sub, lambda a, b: a + b])
    def test_independent_terms(self, combine):
        class Two(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.one, self.two = nn.Linear(5, 3), nn.Linear(5, 3)

            def forward(self, x):
                return combine(self.one(x), self.two(x))

        bnn, x = gs.to_bayesian(Two().double(), posterior_std=0.4), torch.randn(2, 5).double()
        one, two = through(bnn.one, x), through(bnn.two, x)
        wanted = Moments(combine(one.mean, two.mean), one.variance + two.variance)
        assert_same(propagate(record(bnn), x), wanted)

    def test_a_bare_layer(self):
        bnn = gs.to_bayesian(nn.Linear(5, 3), posterior_std=0.3)
        assert isinstance(bnn, BayesianLayer)
        got = propagate(record(bnn), torch.randn(2, 5))
        assert isinstance(got, Moments)

    def test_nothing_random(self):
        net, x = nn.Sequential(nn.Linear(5, 3), nn.ReLU()).eval(), torch.randn(2, 5)
        assert torch.equal(propagate(record(net), x), net(x))

    @pytest.mark.parametrize(
        "build",
        [
            lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)),
            lambda: nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3)),
            lambda: nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 3)),
        ],
        ids=["relu", "tanh", "gelu"],
    )
    def test_two_layers_against_sampling(self, build):
        """Exact up to the Monte Carlo error: hidden units are independent under local noise."""
        torch.manual_seed(0)
        bnn = gs.to_bayesian(build(), posterior_std=0.4).eval()
        x, n = torch.randn(3, 6), 40_000
        with torch.no_grad():
            got = propagate(record(bnn), x)
            with gs.sampling(bnn, seed=1, noise="local"):
                drawn = bnn(x.repeat(n, 1)).view(n, 3, 3)
        error = drawn.std(0) / n**0.5
        assert ((got.mean - drawn.mean(0)).abs() < 5 * error).all()
        # Sums of nine products have lighter tails than single ones: kurtosis below 6.
        assert ((got.variance / drawn.var(0) - 1).abs() < 5 * (5 / n) ** 0.5).all()


class Refused(nn.Module):
    """A Bayesian layer and then something."""

    def __init__(self, then) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 4)
        self.then = then

    def forward(self, x):
        return self.then(self.layer(x))


def branch(x):
    return x if x.sum() > 0 else -x


class TestRefusals:
    @pytest.mark.parametrize(
        ("then", "told"),
        [
            (nn.GroupNorm(2, 4), "module then = GroupNorm: has no rule"),
            (lambda x: torch.softmax(x, 1), "operation = softmax"),
            (lambda x: x * x, "operation = mul"),
            (lambda x: 1.0 / x, "operation = truediv"),
            (lambda x: x.exp(), "operation = exp"),
            (lambda x: F.pad(x, (1, 1), value=3.0), "operation = pad"),
            (nn.BatchNorm1d(4, track_running_stats=False), "no running statistics"),
            (branch, "cannot be recorded"),
        ],
    )
    def test_what_has_no_rule(self, then, told):
        bnn = gs.to_bayesian(Refused(then), posterior_std=0.1)
        with pytest.raises(InvalidValue, match=told) as found:
            gs.predict_moments(bnn, torch.randn(3, 5))
        assert "use predict" in str(found.value)

    @pytest.mark.parametrize(
        "pool",
        [
            nn.MaxPool1d(2, ceil_mode=True),
            nn.MaxPool1d(2, return_indices=True),
            nn.AvgPool1d(2, ceil_mode=True),
        ],
    )
    def test_poolings(self, pool):
        bnn = gs.to_bayesian(nn.Sequential(nn.Conv1d(1, 2, 3), pool), posterior_std=0.1)
        with pytest.raises(InvalidValue, match="pooling"):
            gs.predict_moments(bnn, torch.randn(3, 1, 8))

    def test_a_subclass_with_a_forward_of_its_own(self):
        class Doubled(nn.ReLU):
            def forward(self, x):
                return 2 * super().forward(x)

        bnn = gs.to_bayesian(Refused(Doubled()), posterior_std=0.1).eval()
        x = torch.randn(3, 5)
        plain = gs.to_bayesian(Refused(nn.ReLU()), posterior_std=0.1).eval()
        plain.load_state_dict(bnn.state_dict())
        with torch.no_grad():
            twice, once = (propagate(record(net), x) for net in (bnn, plain))
        assert_same(twice, Moments(2 * once.mean, 4 * once.variance), rtol=1e-6)
