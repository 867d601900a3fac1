"""Which weights a swap keeps, and everything that moves with them, against a dense reference."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

import gossamer as gs
from gossamer.core.support import Support
from gossamer.nn import sparse_layers
from reference.dense_training import DenseTraining, cosine_fraction, swapped

TOTAL, EVERY, FRACTION, END = 20, 4, 0.4, 0.9
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.003, momentum=0.5),
}


def convnet() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 4 * 4, 10, bias=False),
        nn.BatchNorm1d(10),
        nn.Tanh(),
        nn.Linear(10, 3),
    )


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, 2, 4, 4, dtype=torch.float64), torch.randint(3, (16,))


def converted(bayesian: bool) -> nn.Module:
    # Double precision, so that two orders of summation do not decide between near ties.
    net = convnet().double()
    if bayesian:
        return gs.to_bayesian(net, 0.6, posterior_std=0.1, prior_std=0.5)
    return gs.to_sparse(net, 0.6)


def assert_same(model: nn.Module, twin: DenseTraining, step: int) -> None:
    """Equal supports, parameters, optimiser state and BatchNorm statistics."""
    sparse = list(sparse_layers(model).values())
    for layer, dense in zip(sparse, twin.layers, strict=True):
        kept = dense.mask.flatten()
        assert set(layer.support.positions().tolist()) == dense.kept(), step
        pairs = [(layer.leading(), dense.mean)]
        if dense.bayesian:
            pairs.append((layer.weight_raw_std, dense.raw_std))
        for ours, theirs in pairs:
            # Float64 with sums in another order: 1e-9 leaves room for 20 steps of training.
            torch.testing.assert_close(ours, theirs.view(-1)[kept], rtol=1e-9, atol=1e-9)
    norms = [m for m in model if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    twins = [m for m in twin.parts if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    for ours, theirs in zip(norms, twins, strict=True):
        assert ours.num_batches_tracked == theirs.num_batches_tracked == step
        torch.testing.assert_close(ours.running_mean, theirs.running_mean, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("addition", ["grad", "grad_mean", "grad_multi"])
@pytest.mark.parametrize("removal", ["snr_abs", "mean_abs"])
def test_four_swaps_as_the_dense_reference(optimizer, addition, removal):
    bayesian = removal == "snr_abs" or addition != "grad"
    model = converted(bayesian).train()
    start = [layer.support.positions() for layer in sparse_layers(model).values()]
    opt = OPTIMIZERS[optimizer](list(model.parameters()))
    twin = DenseTraining(model, OPTIMIZERS[optimizer], "snr" if removal == "snr_abs" else removal)
    subspace = gs.Subspace(
        model,
        opt,
        total_steps=TOTAL,
        removal=removal,
        addition=addition,
        swap_fraction=FRACTION,
        end_fraction=END,
        update_every=EVERY,
        num_draws=3,
    )
    swaps = 0
    for step in range(1, TOTAL + 1):
        x, y = batch()
        noise = torch.get_rng_state()
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
        info = subspace.step(lambda x=x, y=y: F.cross_entropy(model(x), y))
        torch.set_rng_state(noise)
        twin.optimizer.zero_grad()
        scores = twin.backward(x, y)
        twin.optimizer.step()
        if step % EVERY == 0 and step < END * TOTAL:
            if addition != "grad":
                draws = 3 if addition == "grad_multi" else 1
                scores = twin.scores(x, y, draws, noisy=addition == "grad_multi")
            fraction = cosine_fraction(step, TOTAL, FRACTION, END)
            twin.swap(scores, fraction)
            assert info is not None
            assert info.step == step
            assert info.fraction == pytest.approx(fraction, rel=1e-12)
            swaps += 1
        else:
            assert info is None
        assert_same(model, twin, step)
    assert swaps == 4
    end = [layer.support.positions() for layer in sparse_layers(model).values()]
    assert any(not torch.equal(a, b) for a, b in zip(start, end, strict=True)), "nothing moved"


def _is_support(name: str) -> bool:
    return name.endswith("indices") or ".pattern_" in name


@pytest.mark.parametrize("addition", ["grad_mean", "grad_multi", "grad_multi_signed"])
def test_passes_for_scores_leave_no_trace(addition):
    """BatchNorm statistics and `.grad` are as they were; a swap permutes `.grad` by position."""
    model = converted(True).train()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    subspace = gs.Subspace(model, opt, total_steps=8, addition=addition, update_every=1)
    x, y = batch()
    F.cross_entropy(model(x), y).backward()
    opt.step()
    buffers = {n: b.clone() for n, b in model.named_buffers() if not _is_support(n)}
    before = {n: p.grad.clone() for n, p in model.named_parameters()}
    # `layer.support` shares the buffer that a swap writes to: keep copies.
    old = {
        n: Support.from_positions(layer.support.positions(), layer.support.shape)
        for n, layer in sparse_layers(model).items()
    }
    info = subspace.step(lambda: F.cross_entropy(model(x), y))
    assert info is not None
    assert sum(c.added for c in info.layers.values()) > 0
    for name, buffer in model.named_buffers():
        if not _is_support(name):
            assert torch.equal(buffer, buffers[name]), name
    for name, p in model.named_parameters():
        owner, _, last = name.rpartition(".")
        if last not in ("weight_mean", "weight_raw_std"):
            assert torch.equal(p.grad, before[name]), name
            continue
        slots = old[owner].slots(model.get_submodule(owner).support.positions())
        wanted = torch.where(slots >= 0, before[name][slots.clamp(min=0)], 0.0)
        assert torch.equal(p.grad, wanted), name
    assert model.training
    assert all(m.training for m in model.modules())


def test_signed_average_differs_from_the_average_of_sizes():
    """`grad_multi_signed` is |mean of gradients|, the authors' code; `grad_multi` mean of sizes."""
    model = converted(True).train()
    x, y = batch()
    opt = torch.optim.SGD(model.parameters(), lr=0.0)
    kept = {}
    for addition in ("grad_multi", "grad_multi_signed"):
        state = {n: t.clone() for n, t in model.state_dict().items()}
        subspace = gs.Subspace(
            model, opt, total_steps=4, addition=addition, update_every=1, num_draws=5
        )
        torch.manual_seed(3)
        subspace.step(lambda: F.cross_entropy(model(x), y))
        kept[addition] = [
            set(m.support.positions().tolist()) for m in sparse_layers(model).values()
        ]
        model.load_state_dict(state)
    twin = DenseTraining(model, OPTIMIZERS["sgd"])
    torch.manual_seed(3)
    total = [torch.zeros_like(layer.mean) for layer in twin.layers]
    for _ in range(5):
        nll = F.cross_entropy(twin(x, frozen=True), y)
        gradients = torch.autograd.grad(nll, [layer.mean for layer in twin.layers])
        total = [t + g for t, g in zip(total, gradients, strict=True)]
    twin.swap([t.abs() for t in total], cosine_fraction(1, 4, 0.3, 0.75))
    assert kept["grad_multi_signed"] == [layer.kept() for layer in twin.layers]
    assert kept["grad_multi"] != kept["grad_multi_signed"]


def test_a_removed_weight_that_wins_back_keeps_everything():
    """Removal takes the small means; the largest gradients sit exactly there, so they return."""
    net = nn.Linear(6, 1, bias=False)
    model = gs.to_bayesian(net, 0.5, posterior_std=0.1)
    with torch.no_grad():
        model.indices.copy_(torch.tensor([0, 1, 2]))
        model.weight_mean.copy_(torch.tensor([1e-3, 2.0, 3.0]))
        model.weight_raw_std.copy_(torch.tensor([-2.0, -2.5, -3.0]))
    opt = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    subspace = gs.Subspace(
        model, opt, total_steps=100, removal="mean_abs", swap_fraction=0.4, update_every=1
    )
    x = torch.tensor([[100.0, 1.0, 1.0, 1.0, 1.0, 1.0]])
    model(x).sum().backward()
    opt.step()
    for p, tags in ((model.weight_mean, [5.0, 6.0, 7.0]), (model.weight_raw_std, [8.0, 9.0, 10.0])):
        opt.state[p]["momentum_buffer"].copy_(torch.tensor(tags))
    before = {n: t.clone() for n, t in model.state_dict().items()}
    info = subspace.step()
    assert info is not None
    assert (info.layers[""].removed, info.layers[""].added) == (0, 0)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert opt.state[model.weight_mean]["momentum_buffer"].tolist() == [5.0, 6.0, 7.0]
    assert opt.state[model.weight_raw_std]["momentum_buffer"].tolist() == [8.0, 9.0, 10.0]


def test_random_addition_is_uniform():
    """Each free position enters, and each removed one returns, with probability count/(free+count).

    4 of 8 kept weights leave out of 20 positions, so 16 compete for 4 places. Over 1500 swaps a
    position wins 375 times on average; a χ² test at 1e-4 on the counts, with the generators fixed.
    """
    trials = 1500
    net = nn.Linear(20, 1, bias=False)
    wins: Counter[int] = Counter()
    generator = torch.Generator().manual_seed(0)
    model = gs.to_sparse(net, 0.6)
    start = torch.arange(0, 16, 2)
    values = torch.arange(1.0, 9.0)
    opt = torch.optim.SGD(model.parameters(), lr=0.0)
    for _ in range(trials):
        with torch.no_grad():
            model.indices.copy_(start)
            model.weight_values.copy_(values)
        subspace = gs.Subspace(
            model,
            opt,
            total_steps=10**6,
            addition="random",
            swap_fraction=0.5001,
            update_every=1,
            generator=generator,
        )
        info = subspace.step()
        now = set(model.support.positions().tolist())
        assert {8, 10, 12, 14} <= now, "the four largest never leave"
        assert info.layers[""].added == len(now - set(start.tolist()))
        wins.update(now - {8, 10, 12, 14})
    competitors = sorted(set(range(20)) - {8, 10, 12, 14})
    counts = [wins[i] for i in competitors]
    assert sum(counts) == 4 * trials
    # Drawing without replacement makes the counts less spread than multinomial: divide by 1 - 4/16.
    chi2 = sum((c - trials / 4) ** 2 / (trials / 4) for c in counts) / (1 - 4 / 16) * (15 / 16)
    assert 1e-4 < stats.chi2.sf(chi2, df=15) < 1 - 1e-4


def test_reference_by_hand():
    """The reference itself on a case small enough to see."""
    removal = torch.tensor([1.0, 0.0, 3.0, 2.0, 0.0])
    addition = torch.tensor([0.0, 5.0, 0.0, 9.0, 5.0])
    assert swapped({0, 2, 3}, removal, addition, 1) == {1, 2, 3}
    assert swapped({0, 2, 3}, removal, addition, 2) == {1, 2, 3}
    assert swapped({0, 1, 2}, removal, addition, 1) == {0, 2, 3}
    assert swapped({0, 1, 2}, removal, torch.tensor([0.0, 9.0, 0.0, 9.0, 5.0]), 1) == {0, 1, 2}
