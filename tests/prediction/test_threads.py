"""Eight threads that predict at once get the bits of one, whatever the draws; nothing changes."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import gossamer as gs
from cases.zoo import BACKENDS, TwoNames, convnet, mlp
from gossamer.prediction import Posterior, posterior_of

THREADS, CALLS = 8, 12
METHODS = ["ssvi", "sgd", "mc_dropout", "swag", "cv_adam", "csghmc", "em_mcmc"]


@pytest.fixture(autouse=True)
def _eager_switching() -> Iterator[None]:
    """Threads change places every 0.1 ms, to provoke what may go wrong."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


def at_once(function: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """What ``function(number)`` gives in each of some threads that start together."""
    start = threading.Barrier(threads)
    found: list[Any] = [None] * threads

    def run(number: int) -> None:
        start.wait()
        try:
            found[number] = function(number)
        except BaseException as error:
            found[number] = error

    workers = [threading.Thread(target=run, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


def questions(x: torch.Tensor) -> list[tuple[torch.Tensor, int, str, int]]:
    """Rows, samples, noise, seed: passes that samples share, and passes of their own."""
    return [
        (x[:1], 9, "weight", 0),
        (x[:40], 3, "weight", 1),
        (x[:3], 9, "local", 2),
        (x, 2, "local", 3),
    ]


def assert_threads_agree(posterior: Posterior, x: torch.Tensor) -> None:
    asked = questions(x)

    def answer(question: tuple[torch.Tensor, int, str, int]) -> torch.Tensor:
        rows, count, noise, seed = question
        found = posterior.predict(rows, count, noise=noise, seed=seed)
        return torch.cat([found.samples.flatten(), found.energy.flatten()])

    alone = [answer(question) for question in asked]

    def ask(thread: int) -> int:
        wrong = 0
        for call in range(CALLS):
            number = (thread + call) % len(asked)
            wrong += not torch.equal(answer(asked[number]), alone[number])
        return wrong

    assert sum(at_once(ask)) == 0
    assert all(torch.equal(answer(q), a) for q, a in zip(asked, alone, strict=True))


@pytest.mark.parametrize("engine", BACKENDS)
@pytest.mark.parametrize(("build", "shape"), [(mlp, (6,)), (TwoNames, (6,)), (convnet, (1, 6, 6))])
def test_a_network_that_draws_by_noise(build, shape, engine):
    torch.manual_seed(0)
    bnn = gs.to_bayesian(build(), 0.5, posterior_std=0.3, backend=engine)
    bnn.train()
    bnn(torch.randn(20, *shape))
    modes = [m.training for m in bnn.modules()]
    state = copy.deepcopy(bnn.state_dict())
    assert_threads_agree(posterior_of(bnn), torch.randn(60, *shape))
    assert [m.training for m in bnn.modules()] == modes
    assert all(m.sampling_state is None for m in bnn.modules() if hasattr(m, "sampling_state"))
    assert all(torch.equal(v, state[k]) for k, v in bnn.state_dict().items())


def test_a_bare_model_and_its_mean():
    """The failure that a server meets first: the layers stayed in sampling for good."""
    torch.manual_seed(0)
    bnn = gs.to_bayesian(mlp(), 0.5, posterior_std=0.3).eval()
    x = torch.randn(50, 6)
    mean = bnn(x)
    alone = [gs.predict(bnn, x, 3, seed=s).samples for s in range(THREADS)]
    found = at_once(
        lambda n: [torch.equal(gs.predict(bnn, x, 3, seed=n).samples, alone[n]) for _ in range(20)]
    )
    assert all(all(one) for one in found)
    assert torch.equal(bnn(x), mean)


def trained(name: str, engine: str, steps: int, build: Callable[[], nn.Module], x: torch.Tensor):
    torch.manual_seed(1)
    options = {"cycles": 3} if name in ("csghmc", "em_mcmc") else {}
    if name == "em_mcmc":
        options["target_sparsity"] = 0.5
    method = gs.build(
        name,
        build(),
        num_data=40,
        total_steps=12,
        likelihood="categorical",
        backend=engine,
        **options,
    )
    classes = torch.arange(len(x)) % 3
    for _ in range(steps):
        method.step((x, classes))
    return method


@pytest.mark.parametrize("engine", BACKENDS)
@pytest.mark.parametrize("name", METHODS)
def test_every_kind_of_draws(name, engine):
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(2))
    method = trained(name, engine, 12, mlp, x)
    before = copy.deepcopy(method.state_dict()["model"])
    assert_threads_agree(method.posterior(), torch.cat([x, x[:20]]))
    after = method.state_dict()["model"]
    assert all(torch.equal(after[key], value) for key, value in before.items())


@pytest.mark.parametrize("name", ["ssvi", "csghmc"])
def test_while_another_thread_trains_a_copy(name):
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(2))
    method = trained(name, "auto", 8, mlp, x)
    posterior = method.posterior().frozen()
    alone = posterior.predict(x, 3).samples
    done = threading.Event()

    def work(thread: int) -> bool:
        if thread == 0:
            for _ in range(4):
                method.step((x, torch.arange(40) % 3))
            done.set()
            return True
        right = True
        while not done.is_set():
            right &= torch.equal(posterior.predict(x, 3).samples, alone)
        return right

    assert all(at_once(work, 4))
    assert not torch.equal(method.posterior().predict(x, 3).samples, alone), "it was trained"
    assert torch.equal(posterior.predict(x, 3).samples, alone)


def test_recording_for_moments_leaves_other_threads_alone():
    """torch.fx changes every module of the process while it records."""
    torch.manual_seed(0)
    bnn = gs.to_bayesian(mlp(), 0.5, posterior_std=0.3)
    posterior, x = posterior_of(bnn), torch.randn(30, 6)
    moments, samples = posterior.predict_moments(x).probs, posterior.predict(x, 3).probs

    def work(thread: int) -> bool:
        if thread % 2:
            return all(torch.equal(posterior.predict_moments(x).probs, moments) for _ in range(6))
        return all(torch.equal(posterior.predict(x, 3).probs, samples) for _ in range(20))

    assert all(at_once(work))
    assert nn.Module.__call__.__module__ == "torch.nn.modules.module"
