"""Several posteriors that predict together: averages by hand, sizes, copies, files, threads."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import gossamer as gs
from gossamer.data import Preparation
from gossamer.data.prepare import ClassTarget, NumberColumn, TableInput
from gossamer.errors import CheckpointError, InvalidValue
from gossamer.likelihoods import Gaussian
from gossamer.models import build_model
from gossamer.nn import summary
from gossamer.ops import fold_seed
from gossamer.prediction import Finish, Mixture, StoredDraws, load, mixture, posterior_of

MODEL = {"name": "mlp", "input_shape": [6], "output_size": 3, "options": {"hidden": [8]}}
X = torch.randn(300, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, :3] + 0.5 * X[:, 3:]).argmax(1)


def named(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return build_model("mlp", input_shape=[6], output_size=3, hidden=[8])


def noisy(seed: int, sparsity: float = 0.5, likelihood="categorical"):
    bnn = gs.to_bayesian(named(seed), sparsity, posterior_std=0.4)
    return posterior_of(bnn, likelihood)


def plain(seed: int, sparsity: float = 0.5, likelihood="categorical"):
    return posterior_of(gs.to_sparse(named(seed), sparsity), likelihood)


def stored(count: int):
    nets = [named(seed) for seed in range(count)]
    return posterior_of(nets[0]), StoredDraws(nets[0], [n.state_dict() for n in nets])


def test_probabilities_and_information_by_hand() -> None:
    members = [noisy(0), noisy(1)]
    found = mixture(members).predict(X, 6, seed=3)
    parts = [m.predict(X, 3, seed=fold_seed(3, n)) for n, m in enumerate(members)]
    for sample in range(6):  # sample s belongs to member s mod 2
        assert torch.equal(found.samples[sample], parts[sample % 2].samples[sample // 2])
    every = found.samples.double()
    probs = every.mean(0)
    entropy = -(probs * probs.log()).sum(1)
    information = entropy + (every * every.log()).sum(2).mean(0)
    assert torch.allclose(found.probs.double(), probs, atol=1e-6)
    assert torch.allclose(found.entropy.double(), entropy, atol=1e-5)
    assert torch.allclose(found.mutual_information.double(), information, atol=1e-5)
    energy = torch.stack([p.energy for p in parts]).mean(0)
    assert torch.allclose(found.energy, energy, atol=1e-6)


def test_deterministic_members_disagree() -> None:
    both = mixture([plain(0), plain(1)])
    assert both.max_samples == 2
    found = both.predict(X, 50)
    assert tuple(found.samples.shape) == (2, 300, 3)
    assert float(found.mutual_information.min()) >= 0
    assert float(found.mutual_information.mean()) > 1e-3
    assert float(plain(0).predict(X).mutual_information.max()) == 0


def test_members_count_alike_however_many_samples_they_have() -> None:
    one, many = plain(0), noisy(1)
    both = mixture([one, many])
    assert both.max_samples is None
    found = both.predict(X, 7, seed=2)  # four of each
    assert tuple(found.samples.shape) == (8, 300, 3)
    truth = 0.5 * (one.predict(X).probs + many.predict(X, 4, seed=fold_seed(2, 1)).probs)
    assert torch.allclose(found.probs, truth, atol=1e-6)
    assert torch.allclose(found.samples.mean(0), truth, atol=1e-6)


def test_the_fewest_stored_samples_limit_the_others() -> None:
    first, draws = stored(3)
    first.draws = draws
    both = mixture([first, noisy(5)])
    assert both.max_samples == 6
    assert tuple(both.predict(X, 40).samples.shape) == (6, 300, 3)


def test_fewer_samples_than_members_are_raised() -> None:
    assert tuple(mixture([noisy(s) for s in range(3)]).predict(X, 1).samples.shape) == (3, 300, 3)


def test_real_members_keep_their_own_noise() -> None:
    members = []
    for seed, noise in ((0, 0.2), (1, 0.9)):
        torch.manual_seed(seed)
        members.append(posterior_of(nn.Linear(6, 1), Gaussian(noise)))
    both = mixture(members)
    found = both.predict(X)
    means = torch.stack([m.predict(X).mean for m in members])
    assert torch.allclose(found.mean, means.mean(0), atol=1e-6)
    assert torch.allclose(found.epistemic, (means[0] - means[1]).abs() / 2, atol=1e-6)
    assert torch.allclose(found.aleatoric, torch.tensor((0.04 + 0.81) / 2).sqrt())
    wide = both.finished(Finish(2.0)).predict(X)
    assert torch.allclose(wide.mean, found.mean, atol=1e-6)
    assert torch.allclose(wide.std, 2 * found.std, rtol=1e-5)
    assert torch.allclose(wide.epistemic, 2 * found.epistemic, rtol=1e-5)


def test_one_temperature_divides_the_logits_of_all() -> None:
    nets = [named(0), named(1)]
    members = [posterior_of(nets[0]).finished(Finish(1.5)), posterior_of(nets[1])]
    both = mixture(members).finished(Finish(2.0))
    with torch.no_grad():
        truth = 0.5 * ((nets[0](X) / 3.0).softmax(1) + (nets[1](X) / 2.0).softmax(1))
    assert torch.allclose(both.predict(X).probs, truth, atol=1e-6)
    found = gs.tempered(both, (X, Y))
    assert [m.finish.temperature for m in found.members] == [1.5, 1.0]
    best = found.finish.temperature

    def loss(t):
        chosen = both.finished(Finish(t)).predict(X).probs.double()[range(300), Y]
        prior = 0.5 * (math.log(t) / (0.25 if t < 1 else 1.0)) ** 2
        return float(-torch.log(chosen).mean()) + prior / 300

    assert min((0.98 * best, best, 1.02 * best), key=loss) == best


def test_moments_are_those_of_the_members() -> None:
    members = [noisy(0), noisy(1)]
    found = mixture(members).predict_moments(X[:9])
    truth = torch.stack([m.predict_moments(X[:9]).probs for m in members]).mean(0)
    assert torch.allclose(found.probs, truth, atol=1e-7)
    assert float(found.mutual_information.min()) > 0


def test_sizes() -> None:
    both = mixture([plain(0, 0.75), plain(1, 0.75)])
    weights = summary(named_sparse := gs.to_sparse(named(0), 0.75)).numel
    nnz = 2 * summary(named_sparse).nnz
    assert both.size == {"nnz": nnz, "sparsity": 1 - nnz / weights}
    assert both.size["sparsity"] == pytest.approx(0.5)
    told = mixture([plain(0, 0.75), plain(1, 0.75)], weights=10 * weights)
    assert told.size["sparsity"] == 1 - nnz / (10 * weights)


def test_networks_copies_and_devices() -> None:
    both = mixture([plain(0), plain(1)])
    for index in range(4):
        net = both.network(index)
        with torch.no_grad():
            assert torch.equal(net(X), both.members[index % 2].network()(X))
    frozen, moved, before = both.frozen(), both.to("cpu"), both.predict(X).probs
    assert isinstance(frozen, Mixture)
    with torch.no_grad():
        for member in both.members:
            for parameter in member.draws.network.parameters():
                parameter.zero_()
    assert torch.equal(frozen.predict(X).probs, before)
    assert torch.equal(moved.predict(X).probs, before)
    assert not torch.equal(both.predict(X).probs, before)
    assert both.device == torch.device("cpu")
    assert repr(both).startswith("Mixture of 2")


def finished_ones():
    real = [noisy(0, likelihood=Gaussian()), noisy(1, likelihood=Gaussian())]
    values = (X, X[:, :3])
    return {
        "temperature": gs.tempered(noisy(0), (X, Y)),
        "last layer": gs.last_layer(noisy(0), (X, Y), num_data=100),
        "real": gs.last_layer(real[0], values),
        "real, widened": gs.last_layer(real[0], values, rows=values),
        "mixture": mixture([noisy(0), plain(1, 0.8)], weights=500),
        "mixture, tempered": gs.tempered(mixture([plain(0), plain(1)]), (X, Y)),
        "mixture, last layers": gs.last_layer(mixture([plain(0), plain(1)]), (X, Y), num_data=50),
        "mixture, real": gs.last_layer(mixture(real), values),
    }


@pytest.mark.parametrize("kind", list(finished_ones()))
def test_files_and_copies_hold_it_to_the_bit(tmp_path: Path, kind: str) -> None:
    posterior = finished_ones()[kind]
    posterior.about["model"] = MODEL
    path = tmp_path / "p.safetensors"
    posterior.save(path)
    again = load(path)
    for other in (again, posterior.frozen(), posterior.to("cpu"), load(path, network=named(9))):
        for noise in ("weight", "local"):
            one, two = (p.predict(X, 4, noise=noise, seed=2) for p in (posterior, other))
            assert torch.equal(one.samples, two.samples)
        assert other.size == posterior.size
        assert other.finish_figures == posterior.finish_figures
        assert other.max_samples == posterior.max_samples
    again.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()
    assert header_of(path)["version"] == 2


def header_of(path: Path) -> dict:
    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["gossamer"])


def test_what_the_first_version_can_hold_stays_readable_to_it(tmp_path: Path) -> None:
    noisy(0).save(tmp_path / "p")
    header = header_of(tmp_path / "p")
    assert header["version"] == 1
    assert {"finish", "members"}.isdisjoint(header)


def test_each_distinct_tensor_is_in_the_file_once(tmp_path: Path) -> None:
    posterior = noisy(0)
    posterior.save(tmp_path / "one")
    mixture([posterior, posterior, posterior]).save(tmp_path / "three")
    with safe_open(tmp_path / "one", "pt") as one, safe_open(tmp_path / "three", "pt") as three:
        assert len(one.keys()) == len(three.keys())


@pytest.mark.parametrize("kind", ["last layer", "mixture, last layers", "real"])
def test_damage_is_refused(tmp_path: Path, kind: str) -> None:
    posterior = finished_ones()[kind]
    posterior.about["model"] = MODEL
    path = tmp_path / "p.safetensors"
    posterior.save(path)
    whole = path.read_bytes()
    for place in range(9, len(whole), len(whole) // 23):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        with pytest.raises(CheckpointError, match=r"p\.safetensors"):
            load(path)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda finish: finish.update(temperature=-1.0),
        lambda finish: finish.update(head={"kind": "other"}),
        lambda finish: finish["head"].update(basis=finish["head"]["level"]),
        lambda finish: finish["head"].pop("rest"),
    ],
)
def test_a_foreign_finish_is_refused(tmp_path: Path, monkeypatch, wrong) -> None:
    """Sealed as it should be, but with values that do not fit one another."""
    import gossamer.prediction.stored as stored_module

    describe = stored_module.describe_finish

    def spoilt(finish, key_of):
        found = describe(finish, key_of)
        wrong(found)
        return found

    monkeypatch.setattr(stored_module, "describe_finish", spoilt)
    posterior = finished_ones()["last layer"]
    posterior.about["model"] = MODEL
    posterior.save(tmp_path / "p")
    with pytest.raises(CheckpointError, match="damaged or foreign"):
        load(tmp_path / "p")


@pytest.mark.parametrize("kind", ["last layer", "mixture", "mixture, last layers", "real"])
def test_threads_get_the_bits_of_one(kind: str) -> None:
    posterior = finished_ones()[kind]
    truth = posterior.predict(X, 4, seed=1).samples
    start, found = threading.Barrier(6), []

    def ask() -> None:
        start.wait()
        found.extend(torch.equal(posterior.predict(X, 4, seed=1).samples, truth) for _ in range(4))

    workers = [threading.Thread(target=ask) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == [True] * 24


def test_tables() -> None:
    columns = tuple(NumberColumn(str(n), "float", 0.0, 1.0) for n in range(6))
    both = mixture([plain(0), plain(1)])
    both.preparation = Preparation(
        TableInput(columns), ClassTarget("y", ("0", "1", "2"), ("a", "b", "c"))
    )
    answers = both.predict_table(np.asarray(X[:5]))
    assert np.allclose(answers["prob_b"], both.predict(X[:5]).probs[:, 1])


def test_refusals() -> None:
    with pytest.raises(InvalidValue, match="at least one"):
        mixture([])
    with pytest.raises(InvalidValue, match="must share one likelihood"):
        mixture([plain(0), plain(1, likelihood="gaussian")])
    with pytest.raises(InvalidValue, match="must not be mixtures"):
        mixture([plain(0), mixture([plain(1)])])
    with pytest.raises(InvalidValue, match="weights = 0"):
        mixture([plain(0)], weights=0)
    first, draws = stored(2)
    first.draws = draws
    with pytest.raises(InvalidValue, match="no Gaussian posterior"):
        mixture([noisy(0), first]).predict_moments(X)
