"""Real training loops through several swaps: each must match the plain loop, or the dense one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gossamer as gs
from gossamer.nn import sparse_layers
from reference.dense_training import DenseTraining, cosine_fraction

TOTAL, EVERY, END, FRACTION = 20, 4, 1.0, 0.6
SWAPS = [4, 8, 12, 16]
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}
every_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS)


def mlp() -> nn.Sequential:
    hidden = nn.Linear(12, 10)
    return nn.Sequential(nn.Linear(8, 12), nn.Tanh(), hidden, nn.ReLU(), nn.Linear(10, 3))


class Loop:
    """A small Bayesian network, its optimiser and subspace, and the same batches every time."""

    def __init__(self, optimizer: str, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self.model = gs.to_bayesian(mlp().to(dtype), 0.6, posterior_std=0.1).train()
        self.opt = OPTIMIZERS[optimizer](list(self.model.parameters()))
        self.subspace = gs.Subspace(
            self.model,
            self.opt,
            total_steps=TOTAL,
            swap_fraction=FRACTION,
            end_fraction=END,
            update_every=EVERY,
        )
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(TOTAL + 1, 16, 8, generator=generator).to(dtype)
        self.y = torch.randint(3, (TOTAL + 1, 16), generator=generator)
        self.swaps: list[int] = []
        torch.manual_seed(2)

    def loss(self, step: int) -> torch.Tensor:
        return F.cross_entropy(self.model(self.x[step]), self.y[step])

    def finish(self) -> None:
        info = self.subspace.step()
        if info is not None:
            assert sum(layer.added for layer in info.layers.values()) > 0
            self.swaps.append(info.step)

    def result(self) -> dict[str, torch.Tensor]:
        return self.model.state_dict()


def plain(optimizer: str, skip: int | None = None) -> Loop:
    """The plain loop; at step ``skip`` the gradient is infinite and the optimiser does not step."""
    loop = Loop(optimizer)
    for step in range(1, TOTAL + 1):
        loop.opt.zero_grad()
        if step == skip:
            (loop.loss(step) * math.inf).backward()
            loop.opt.zero_grad()
        else:
            loop.loss(step).backward()
            loop.opt.step()
        loop.finish()
    return loop


def assert_bit_equal(one: Loop, two: Loop) -> None:
    assert one.result().keys() == two.result().keys()
    for name, value in one.result().items():
        assert torch.equal(value, two.result()[name]), name


def assert_like_dense(model: nn.Module, twin: DenseTraining, step: int) -> None:
    for layer, dense in zip(sparse_layers(model).values(), twin.layers, strict=True):
        assert set(layer.support.positions().tolist()) == dense.kept(), step
        kept = dense.mask.flatten()
        for ours, theirs in (
            (layer.weight_mean, dense.mean),
            (layer.weight_raw_std, dense.raw_std),
        ):
            # Float64, sums in another order, 20 steps.
            torch.testing.assert_close(ours, theirs.view(-1)[kept], rtol=1e-9, atol=1e-9)


@every_optimizer
def test_clipping_with_a_huge_limit_is_the_plain_loop(optimizer):
    loop = Loop(optimizer)
    for step in range(1, TOTAL + 1):
        loop.opt.zero_grad()
        loop.loss(step).backward()
        nn.utils.clip_grad_norm_(loop.model.parameters(), 1e9)
        loop.opt.step()
        loop.finish()
    assert loop.swaps == SWAPS
    assert_bit_equal(loop, plain(optimizer))


@every_optimizer
def test_clipping_shrinks_the_step_but_not_the_choice(optimizer):
    """Against the dense loop with the same clipping: scores are taken before it."""
    loop = Loop(optimizer, torch.float64)
    twin = DenseTraining(loop.model, OPTIMIZERS[optimizer])
    for step in range(1, TOTAL + 1):
        noise = torch.get_rng_state()
        loop.opt.zero_grad()
        loop.loss(step).backward()
        norm = nn.utils.clip_grad_norm_(loop.model.parameters(), 0.05)
        assert norm > 0.05
        loop.opt.step()
        loop.finish()
        torch.set_rng_state(noise)
        twin.optimizer.zero_grad()
        scores = twin.backward(loop.x[step], loop.y[step])
        nn.utils.clip_grad_norm_(twin.parameters, 0.05)
        twin.optimizer.step()
        if step in SWAPS:
            twin.swap(scores, cosine_fraction(step, TOTAL, FRACTION, END))
        assert_like_dense(loop.model, twin, step)
    assert loop.swaps == SWAPS


@every_optimizer
def test_accumulation_the_last_micro_batch_decides(optimizer):
    """Two micro-batches with an ELBO, against the dense loop whose scores are the second's."""
    loop = Loop(optimizer, torch.float64)
    elbo = gs.ELBO(loop.model, num_data=100, kl_weight=0.3, accumulate=2)
    twin = DenseTraining(loop.model, OPTIMIZERS[optimizer], kl_weight=0.3 / 100)
    halves = (slice(0, 8), slice(8, 16))
    for step in range(1, TOTAL + 1):
        noise = torch.get_rng_state()
        loop.opt.zero_grad()
        for half in halves:
            nll = F.cross_entropy(loop.model(loop.x[step, half]), loop.y[step, half])
            (0.5 * elbo(nll)).backward()
        loop.opt.step()
        loop.finish()
        torch.set_rng_state(noise)
        twin.optimizer.zero_grad()
        for half in halves:
            scores = twin.backward(loop.x[step, half], loop.y[step, half], weight=0.5)
        twin.optimizer.step()
        if step in SWAPS:
            twin.swap(scores, cosine_fraction(step, TOTAL, FRACTION, END))
        assert_like_dense(loop.model, twin, step)
    assert loop.swaps == SWAPS


@every_optimizer
@pytest.mark.parametrize("place", ["before_swap", "after_swap", "to_zero"])
def test_the_place_of_zero_grad_changes_nothing(optimizer, place):
    loop = Loop(optimizer)
    for step in range(1, TOTAL + 1):
        loop.loss(step).backward()
        loop.opt.step()
        if place == "before_swap":
            loop.opt.zero_grad()
        loop.finish()
        loop.opt.zero_grad(set_to_none=place != "to_zero")
    assert loop.swaps == SWAPS
    assert_bit_equal(loop, plain(optimizer))


@every_optimizer
def test_loss_scaling_is_the_plain_loop(optimizer):
    """A power of two scales without rounding: equal to the last bit."""
    loop = Loop(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for step in range(1, TOTAL + 1):
        loop.opt.zero_grad()
        scaler.scale(loop.loss(step)).backward()
        scaler.step(loop.opt)
        scaler.update()
        loop.finish()
    assert scaler.get_scale() == 2.0**16
    assert loop.swaps == SWAPS
    assert_bit_equal(loop, plain(optimizer))


@every_optimizer
def test_overflow_at_a_swap_postpones_it_by_one_step(optimizer):
    """The scaled gradient of step 8 leaves float32; nothing is corrupted, step 9 swaps instead."""
    loop = Loop(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100)
    for step in range(1, TOTAL + 1):
        loop.opt.zero_grad()
        before = {n: t.clone() for n, t in loop.result().items()}
        loss = loop.loss(step) * (2.0**60 if step == 8 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(loop.opt)
        scaler.update()
        loop.finish()
        if step == 8:
            for name, value in loop.result().items():
                assert torch.equal(value, before[name]), name
    assert scaler.get_scale() == 2.0**99, "one overflow"
    assert loop.swaps == [4, 9, 12, 16]
    assert_bit_equal(loop, plain(optimizer, skip=8))


def test_overflow_against_the_dense_loop():
    """The postponed swap uses the fraction and the scores of the step in which it happens."""
    loop = Loop("sgd", torch.float64)
    twin = DenseTraining(loop.model, OPTIMIZERS["sgd"])
    for step in range(1, TOTAL + 1):
        noise = torch.get_rng_state()
        loop.opt.zero_grad()
        (loop.loss(step) * (math.inf if step == 8 else 1.0)).backward()
        if step != 8:
            loop.opt.step()
        loop.finish()
        torch.set_rng_state(noise)
        twin.optimizer.zero_grad()
        scores = twin.backward(loop.x[step], loop.y[step])
        if step != 8:
            twin.optimizer.step()
        if step in (4, 9, 12, 16):
            twin.swap(scores, cosine_fraction(step, TOTAL, FRACTION, END))
        assert_like_dense(loop.model, twin, step)
    assert loop.swaps == [4, 9, 12, 16]


def test_autocast_with_a_scaler():
    """Half precision inside: swaps happen, sizes stay, everything is finite and in float32."""
    loop = Loop("adam")
    nnz = {n: layer.nnz for n, layer in sparse_layers(loop.model).items()}
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(1, TOTAL + 1):
        loop.opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loop.loss(step)
        scaler.scale(loss).backward()
        scaler.step(loop.opt)
        scaler.update()
        loop.finish()
    assert loop.swaps == SWAPS
    assert {n: layer.nnz for n, layer in sparse_layers(loop.model).items()} == nnz
    for name, p in loop.model.named_parameters():
        assert p.dtype == torch.float32
        assert torch.isfinite(p).all(), name


def test_saving_between_any_two_steps_changes_nothing():
    """State of model, optimiser and subspace into fresh ones after each of the 20 steps."""
    straight = plain("adam")
    loop = Loop("adam")
    noise = torch.get_rng_state()
    for step in range(1, TOTAL + 1):
        fresh = Loop("adam")
        fresh.model.load_state_dict(loop.model.state_dict())
        fresh.opt.load_state_dict(loop.opt.state_dict())
        fresh.subspace.load_state_dict(loop.subspace.state_dict())
        fresh.swaps = loop.swaps
        torch.set_rng_state(noise)
        loop = fresh
        loop.opt.zero_grad()
        loop.loss(step).backward()
        loop.opt.step()
        loop.finish()
        noise = torch.get_rng_state()
    assert loop.swaps == SWAPS
    assert_bit_equal(loop, straight)
