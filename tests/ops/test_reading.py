"""A dense linear map that leaves out inputs of weight 0, against torch's own product."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.nn import functional as F

from gossamer.ops import Layout, Pattern, get_backend
from gossamer.ops.torch import reading as reading_module
from gossamer.ops.torch.reading import FEWEST_SKIPPED, ReadingBackend, reading, skips

READ = torch.tensor([1, 4, 5])
INPUTS, OUTPUTS = 9, 4


def operands(*lead: int, dtype=torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    weight = torch.zeros(OUTPUTS, INPUTS, dtype=dtype)
    weight[:, READ] = torch.randn(OUTPUTS, len(READ), dtype=dtype)
    x, bias = torch.randn(*lead, INPUTS, dtype=dtype), torch.randn(OUTPUTS, dtype=dtype)
    return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()


@pytest.mark.parametrize("lead", [(), (7,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("biased", [True, False])
def test_values_and_gradients_are_those_of_the_dense_product(lead, biased):
    x, weight, bias = operands(*lead)
    leaves = [x, weight, bias] if biased else [x, weight]
    out = reading(x, weight, bias if biased else None, READ)
    wanted = F.linear(x, weight, bias if biased else None)
    torch.testing.assert_close(out, wanted, rtol=1e-14, atol=1e-14)
    back = torch.randn_like(wanted)
    found = torch.autograd.grad(out, leaves, back)
    expected = torch.autograd.grad(wanted, leaves, back)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-14)
    off = torch.ones(INPUTS, dtype=torch.bool).index_fill(0, READ, False)
    if x.numel() > 0:
        assert bool((found[1][:, off] != 0).all()), "weights that are 0 have a gradient too"


@pytest.mark.parametrize("wanted", range(3))
def test_only_what_is_asked_for_has_a_gradient(wanted):
    leaves = [t.detach().requires_grad_(i == wanted) for i, t in enumerate(operands(5))]
    reading(*leaves, READ).sum().backward()
    assert [leaf.grad is not None for leaf in leaves] == [i == wanted for i in range(3)]


def test_a_second_derivative_is_that_of_the_dense_product():
    """Also by weights that are 0, whose slopes are."""
    x, weight, bias = operands(5)
    found = []
    for product in (lambda *args: reading(*args, READ), F.linear):
        (slope,) = torch.autograd.grad(product(x, weight, bias).sin().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(slope.sin().sum(), [x, weight, bias]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_gradients_in_batches():
    x, weight, bias = operands(5)
    out, backs = reading(x, weight, bias, READ), torch.randn(3, 5, OUTPUTS).double()
    batched = torch.autograd.grad(out, [x, weight, bias], backs, True, is_grads_batched=True)
    for i, back in enumerate(backs):
        wanted = torch.autograd.grad(F.linear(x, weight, bias), [x, weight, bias], back)
        for one, other in zip(batched, wanted, strict=True):
            torch.testing.assert_close(one[i], other, rtol=1e-13, atol=1e-13)


def large(rows: int, inputs: int, read: int) -> tuple[torch.Tensor, ...]:
    return torch.zeros(rows, inputs), torch.zeros(2, inputs), torch.zeros(2), torch.arange(read)


def test_when_it_is_worth_it():
    rows = FEWEST_SKIPPED // 448
    assert skips(*large(rows + 1, 512, 64))
    assert not skips(*large(rows, 512, 64)), "too little to gain"
    assert not skips(*large(2 * rows, 512, 65)), "too many inputs are read"
    assert not skips(*large(rows, 0, 0)), "no inputs at all"


def test_what_it_leaves_to_torch():
    x, weight, bias, read = large(FEWEST_SKIPPED, 8, 1)
    assert skips(x, weight, None, read)
    assert not skips(x.double(), weight, bias, read)
    assert not skips(x, weight, bias.double(), read)
    assert not skips(x[:, :7], weight, bias, read), "torch says what is wrong with it"
    assert not skips(torch.tensor(1.0), weight, bias, read), "and with this"
    assert not skips(x.to("meta"), weight, bias, read)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not skips(x, weight, bias, read)
    with torch.autograd.forward_ad.dual_level():
        assert not skips(x, weight, bias, read)
    seen = []

    def one(row: torch.Tensor) -> torch.Tensor:
        seen.append(skips(row.expand(FEWEST_SKIPPED, 8), weight, bias, read))
        return row

    torch.func.vmap(one)(x[:2])
    assert seen == [False]


def test_the_reference_engine_takes_it_where_it_may(monkeypatch):
    monkeypatch.setattr(reading_module, "FEWEST_SKIPPED", 12)
    monkeypatch.setattr(reading_module, "MOST_READ", 0.5)
    x, weight, bias = operands(2)
    layout, taken = Layout("linear", (OUTPUTS, INPUTS)), []

    def watched(*args):
        taken.append(True)
        return reading(*args)

    monkeypatch.setattr(reading_module, "reading", watched)
    values, pattern = weight.flatten(), Pattern(None)
    for name in ("masked", "native"):
        backend = get_backend(name)
        plain = backend.product(x, values, pattern, layout, bias, None)
        assert not taken
        stand_in = ReadingBackend(backend, READ, values)
        out = stand_in.product(x, values, pattern, layout, bias, None)
        assert taken.pop()
        torch.testing.assert_close(out, F.linear(x, weight, bias), rtol=1e-14, atol=1e-13)
        torch.testing.assert_close(out, plain, rtol=1e-14, atol=1e-13)
        others = stand_in.product(x, values.clone(), pattern, layout, bias, None)
        assert torch.equal(others, plain)
        assert not taken
        assert stand_in.name == name


def test_what_was_said_holds_for_those_values_alone():
    values = torch.nn.Parameter(torch.zeros(6))
    said = ReadingBackend(get_backend("masked"), torch.tensor([1]), values)
    assert said.holds_for(values)
    assert not said.holds_for(values.detach().clone())
    assert copy.deepcopy(said) is None
    assert pickle.loads(pickle.dumps(said)) is None
    with torch.no_grad():
        values.fill_(1.0)
    assert not said.holds_for(values)
