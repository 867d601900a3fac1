"""A posterior as a value: what it is built once for, what it refuses, what it gives away."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import gossamer as gs
from cases.zoo import mlp
from gossamer.errors import InvalidValue, NonFinite
from gossamer.inference.collect import Collection
from gossamer.nn import sparse_layers
from gossamer.prediction import GaussianDraws, NoiseDraws, Posterior, StoredDraws, posterior_of
from gossamer.prediction import draws as draws_module
from gossamer.prediction import passes as passes_module
from gossamer.prediction.passes import ROW_BLOCK


class Watched(list[dict[str, torch.Tensor]]):
    """Samples that count how often each is asked for."""

    asked: Counter[int]

    def __getitem__(self, index):
        self.asked[index] += 1
        return super().__getitem__(index)


def states(count: int) -> tuple[nn.Module, Watched]:
    torch.manual_seed(0)
    nets = [gs.to_sparse(mlp(), 0.5) for _ in range(count)]
    samples = Watched(dict(net.state_dict()) for net in nets)
    samples.asked = Counter()
    return nets[0], samples


def size_of(state: dict[str, torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in state.values())


class TestStored:
    def test_a_sample_is_loaded_once_for_all_predictions(self):
        net, samples = states(4)
        posterior = Posterior(StoredDraws(net, samples), gs.Categorical())
        x = torch.randn(3 * ROW_BLOCK + 1, 6)
        for noise in ("weight", "local"):
            posterior.predict(x, 4, noise=noise)
        assert samples.asked == Counter([0, 1, 2, 3])

    def test_beyond_the_budget_once_per_prediction(self):
        net, samples = states(4)
        budget = 2 * size_of(samples[0]) + 10
        samples.asked.clear()
        posterior = Posterior(StoredDraws(net, samples, budget), gs.Categorical())
        x = torch.randn(3 * ROW_BLOCK + 1, 6)
        for _ in range(3):
            posterior.predict(x, 4)
        # The two latest are kept: they are the first to be asked for.
        assert samples.asked == Counter({3: 1, 2: 1, 1: 3, 0: 3})

    def test_samples_in_files(self, tmp_path, monkeypatch):
        net, samples = states(3)
        collection = Collection(size_of(samples[0]), tmp_path)
        for state in list(samples):
            collection.add(state)
        x = torch.randn(2 * ROW_BLOCK + 1, 6)
        wanted = Posterior(StoredDraws(net, samples), gs.Categorical()).predict(x, 3).samples
        read: list[object] = []

        def watched(path):
            read.append(path)
            return load_file(path)

        monkeypatch.setattr("gossamer.inference.collect.load_file", watched)
        posterior = Posterior(StoredDraws(net, collection, collection.budget), gs.Categorical())
        assert torch.equal(posterior.predict(x, 3).samples, wanted)
        assert len(read) <= 3, "not once per block"

    def test_in_bounded_memory_the_same(self, monkeypatch):
        net, samples = states(3)
        x = torch.randn(5 * ROW_BLOCK + 7, 6)
        posterior = Posterior(StoredDraws(net, samples), gs.Categorical())
        wanted = posterior.predict(x, 3).samples
        monkeypatch.setattr(passes_module, "HELD_VALUES", 2 * ROW_BLOCK * 3 * 3)
        assert torch.equal(posterior.predict(x, 3).samples, wanted)

    def test_against_the_networks_themselves(self):
        torch.manual_seed(0)
        nets = [gs.to_sparse(mlp(), 0.2 * i).eval() for i in range(4)]
        draws = StoredDraws(nets[2], [net.state_dict() for net in nets])
        x = torch.randn(9, 6)
        found = Posterior(draws, gs.Categorical()).predict(x, 9).samples
        wanted = torch.stack([net(x).softmax(-1) for net in reversed(nets)])
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)
        with pytest.raises(IndexError), draws.sample(4, seed=0, noise="weight"):
            pass

    def test_no_network_is_deep_copied_for_a_prediction(self, monkeypatch):
        net, samples = states(2)
        bnn = gs.to_bayesian(mlp())
        monkeypatch.setattr(draws_module.copy, "deepcopy", None)
        Posterior(StoredDraws(net, samples), gs.Categorical()).predict(torch.randn(600, 6), 2)
        posterior_of(bnn).predict(torch.randn(600, 6), 2)


class TestFinite:
    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
    def test_weights(self, value):
        bnn = gs.to_bayesian(mlp(), 0.5)
        bnn[2].weight_raw_std.data[3] = value
        with pytest.raises(NonFinite, match=r"2.weight_raw_std = .*a weight that predicts"):
            gs.predict(bnn, torch.randn(2, 6))
        with pytest.raises(NonFinite, match=r"2.weight_raw_std"):
            gs.predict_moments(bnn, torch.randn(2, 6))

    def test_a_stored_sample_and_a_mean(self):
        net, samples = states(3)
        name = next(n for n in samples[1] if n.endswith("weight_values"))
        samples[1][name] = samples[1][name] * float("nan")
        posterior = Posterior(StoredDraws(net, samples), gs.Categorical())
        posterior.predict(torch.randn(2, 6), 1)
        with pytest.raises(NonFinite, match=f"{name} = nan"):
            posterior.predict(torch.randn(2, 6), 2)
        method = gs.build("cv_adam", mlp(), num_data=9, total_steps=3, likelihood="categorical")
        method.step((torch.randn(9, 6), torch.arange(9) % 3))
        draws = method.posterior().draws
        assert isinstance(draws, GaussianDraws)
        draws.centres[0].rho.fill_(float("nan"))
        with pytest.raises(NonFinite, match=f"{draws.centres[0].name} = nan"):
            method.posterior().predict(torch.randn(2, 6))

    def test_answers_name_the_row_and_the_layer(self):
        bnn = gs.to_bayesian(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
        x = torch.ones(ROW_BLOCK + 9, 3)
        x[ROW_BLOCK + 4] = 1e38
        with torch.no_grad():
            bnn[0].weight_mean.fill_(10.0)
        for predict in (gs.predict, gs.predict_moments):
            with pytest.raises(NonFinite, match=rf"row {ROW_BLOCK + 4} .*layer 0 overflowed"):
                predict(bnn, x)

    def test_inputs(self):
        x = torch.ones(3, 6)
        x[1, 2] = float("nan")
        with pytest.raises(NonFinite, match=r"row 1 = nan.*the inputs are not"):
            gs.predict(mlp(), x)

    def test_a_class_that_is_ruled_out_is_an_answer(self):
        class Masked(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(3, 3)

            def forward(self, x):
                return self.layer(x) + torch.tensor([0.0, -torch.inf, 0.0])

        net, x = Masked(), torch.ones(2, 3)
        found = gs.predict(net, x)
        assert torch.equal(found.probs[:, 1], torch.zeros(2))
        wanted = -net.layer(x)[:, [0, 2]].logsumexp(1)
        torch.testing.assert_close(found.energy, wanted, rtol=1e-6, atol=0)
        away = torch.full((1, 1), -torch.inf)  # one logit that rules out class 1
        assert gs.predict(nn.Flatten(), away, likelihood="bernoulli").energy.item() == 0.0

    def test_an_infinite_logit_is_none(self):
        """Probabilities of one logit would be 0 and 1: the energy shows what overflowed."""
        x = torch.full((1, 1), 3e38)
        double = nn.Linear(1, 1)
        nn.init.constant_(double.weight, 2.0)
        with pytest.raises(NonFinite, match=r"energy of row 0 = -inf.*likelihood overflowed"):
            gs.predict(double, x, likelihood="bernoulli")

    def test_a_rate_that_overflows(self):
        net = nn.Linear(1, 1)
        nn.init.constant_(net.weight, 1000.0)
        with pytest.raises(NonFinite, match=r"mean of row 0 = inf.*likelihood overflowed"):
            gs.predict(net, torch.ones(1, 1), likelihood="poisson")


class TestValue:
    def test_size_and_network(self):
        bnn = gs.to_bayesian(mlp(), 0.5)
        posterior = posterior_of(bnn)
        total = gs.summary(bnn)
        assert posterior.size == {"nnz": total.nnz, "sparsity": total.sparsity}
        own = posterior.network()
        x = torch.randn(3, 6)
        assert torch.equal(own(x), bnn.eval()(x))
        with torch.no_grad():
            next(own.parameters()).add_(1.0)
        assert not torch.equal(own(x), bnn(x)), "tensors of its own"
        assert posterior_of(posterior) is posterior

    def test_it_shows_the_present_state(self):
        """A view: what is trained on is seen, another support included."""
        method = gs.build(
            "em_mcmc",
            mlp(),
            num_data=10,
            total_steps=30,
            likelihood="categorical",
            cycles=1,
            target_sparsity=0.6,
            samples_per_cycle=1,
        )
        posterior = gs.prediction.Posterior(NoiseDraws(method.model), method.likelihood)
        x, y = torch.randn(10, 6), torch.arange(10) % 3
        for _ in range(30):
            found = posterior.predict(x).probs
            with torch.no_grad():
                assert torch.equal(found[0], method.model.eval()(x).softmax(-1)[0])
            method.step((x, y))
        assert method.posterior().size["sparsity"] > 0.5

    def test_weights_that_change_are_asked_again_whether_they_are_finite(self):
        bnn = gs.to_bayesian(mlp(), 0.5)
        posterior, x = posterior_of(bnn), torch.randn(3, 6)
        posterior.predict(x)
        with torch.no_grad():
            sparse_layers(bnn)["0"].bias[0] = -torch.inf
        with pytest.raises(NonFinite, match="must be finite"):
            posterior.predict(x)

    def test_another_device(self):
        bnn = gs.to_bayesian(mlp(), 0.5, backend="native")
        moved = posterior_of(bnn).to("meta")
        assert moved.device.type == "meta"
        layers = sparse_layers(moved.draws.network).values()
        assert {layer.backend.name for layer in layers} == {"masked"}
        assert posterior_of(bnn).device.type == "cpu"

    def test_what_is_no_source(self):
        with pytest.raises(InvalidValue, match="a model, a method or a posterior"):
            gs.predict(torch.ones(2), torch.ones(2))
