"""What a model costs, by hand."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import gossamer as gs
from cases.zoo import MODELS, OneParameter, TwoNames, convnet, encoder_layer, ids, mlp
from gossamer.errors import InvalidValue


def test_linear_by_hand():
    """A multiply and an add per kept weight; forward, two gradients, and two products each."""
    row = gs.summary(gs.to_bayesian(nn.Linear(10, 8), 0.75), (10,)).rows[0]
    assert (row.nnz, row.sparsity) == (20, 0.75)
    assert row.shape == (8, 10)
    assert row.forward_flops == 2 * 20
    assert row.training_flops == 2 * 20 * 3 * 2
    assert row.dense_flops == 2 * 80
    # mean, raw_std and index, 4 bytes each, and the bias.
    assert row.bytes == 20 * (4 + 4 + 4) + 8 * 4
    assert (row.name, row.kind, row.backend) == ("root", "BayesianLinear", "masked")


def test_deterministic_linear_by_hand():
    row = gs.summary(gs.to_sparse(nn.Linear(10, 8, bias=False), 0.75), (10,)).rows[0]
    assert row.training_flops == 2 * 20 * 3
    assert row.bytes == 20 * (4 + 4)
    full = gs.summary(gs.to_sparse(nn.Linear(10, 8, bias=False)), (10,)).rows[0]
    assert full.bytes == 80 * 4, "a full support stores no index"


@pytest.mark.parametrize(
    ("module", "shape", "uses"),
    [
        (nn.Conv2d(3, 4, 3, padding=1), (3, 8, 6), 8 * 6),
        (nn.Conv2d(3, 4, 3, stride=2), (3, 9, 7), 4 * 3),
        (nn.Conv2d(4, 8, 3, groups=2), (4, 5, 5), 3 * 3),
        (nn.Conv1d(2, 4, 4, padding="same"), (2, 9), 9),
        (nn.Conv3d(1, 2, 2), (1, 3, 4, 5), 2 * 3 * 4),
        (nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), (4, 5, 3), 5 * 3),
        (nn.Linear(3, 2), (7, 5, 3), 7 * 5),
    ],
    ids=["padded", "strided", "groups", "same", "3d", "transposed", "linear-rows"],
)
def test_uses_of_a_weight_by_hand(module, shape, uses):
    """Each kept weight is used once per output position, of a transposed layer per input one."""
    row = gs.summary(gs.to_bayesian(module, 0.5), shape).rows[0]
    assert row.nnz == round(0.5 * module.weight.numel())
    assert row.forward_flops == 2 * row.nnz * uses
    assert row.dense_flops == 2 * module.weight.numel() * uses
    assert row.training_flops == 6 * row.forward_flops


def test_totals_and_flop_density():
    bnn = gs.to_bayesian(convnet(), 0.5)
    costs = gs.summary(bnn, (1, 6, 6))
    weights = 4 * 9 + 6 * 2 * 9 + 24 * 3
    assert costs.numel == weights
    assert costs.nnz == sum(row.nnz for row in costs.rows) == round(0.5 * weights)
    assert costs.sparsity == 1 - costs.nnz / weights
    assert costs.bytes == sum(row.bytes for row in costs.rows)
    kept, dense = [r.forward_flops for r in costs.rows], [r.dense_flops for r in costs.rows]
    assert dense == [2 * 36 * 36, 2 * 108 * 4, 2 * 72]
    assert costs.flop_density == sum(kept) / sum(dense)
    assert f"FLOP density {costs.flop_density:.4g}" in str(costs)
    assert f"weight density {1 - costs.sparsity:.4g}" in str(costs)


def test_without_an_input_shape_there_are_no_flops():
    costs = gs.summary(gs.to_bayesian(mlp(), 0.5))
    assert costs.flop_density is None
    assert {row.forward_flops for row in costs.rows} == {None}
    assert "FLOP density" not in str(costs)


def test_uniform_and_erk_differ_in_flops():
    """ERK favours small layers, which in a convolutional network are the ones used most often."""
    density = {
        name: gs.summary(
            gs.to_bayesian(convnet(), 0.5, sparsity_distribution=name), (1, 6, 6)
        ).flop_density
        for name in ("erk", "uniform")
    }
    assert density["uniform"] == pytest.approx(0.5, abs=0.02)  # rounding of small layers
    assert density["erk"] > density["uniform"] + 0.03


@pytest.mark.parametrize("model", [TwoNames, OneParameter])
def test_a_shared_weight_is_stored_once_and_used_twice(model):
    costs = gs.summary(gs.to_bayesian(model()), (6,))
    assert len(costs.rows) == 2
    shared, other = costs.rows
    assert shared.nnz == 36
    assert shared.forward_flops == 2 * 2 * 36
    assert shared.note == "shared"
    assert other.note == ""
    assert costs.nnz == 36 + other.nnz


@pytest.mark.parametrize("case", MODELS, ids=ids(MODELS))
def test_every_model_prints_and_serialises(case):
    bnn = gs.to_bayesian(case.build(), 0.5)
    costs = gs.summary(bnn)
    text = str(costs)
    assert f"total: {costs.nnz} of {costs.numel} weights" in text
    assert all(row.name in text for row in costs.rows)
    plain = json.loads(json.dumps(costs.to_json()))
    assert plain["nnz"] == costs.nnz
    assert [row["name"] for row in plain["layers"]] == [row.name for row in costs.rows]
    assert [row["name"] for row in plain["unconverted"]] == [u.name for u in costs.unconverted]


def test_the_model_is_left_as_it_was():
    bnn = gs.to_bayesian(convnet(), 0.5).train()
    bnn[3].eval()
    before = {k: v.clone() for k, v in bnn.state_dict().items()}
    generator = torch.get_rng_state()
    gs.summary(bnn, (1, 6, 6))
    assert [m.training for m in bnn] == [True, True, True, False, True, True]
    assert all(torch.equal(before[k], v) for k, v in bnn.state_dict().items())
    assert not any(m._forward_hooks for m in bnn.modules())
    assert torch.equal(generator, torch.get_rng_state())


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (mlp, (7,)),  # torch: RuntimeError
        (convnet, (1, 2, 2)),  # kernel larger than input
        (convnet, (6,)),  # BatchNorm and Flatten complain in their own ways
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm2d(4)), (4,)),  # torch: ValueError
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (2, 3))), (4,)),
    ],
)
def test_an_input_shape_that_does_not_fit(build, shape):
    bnn = gs.to_bayesian(build())
    with pytest.raises(InvalidValue, match=r"input_shape = .*does not fit the model") as caught:
        gs.summary(bnn, shape)
    assert "\n" not in str(caught.value)
    assert bnn.training
    assert not any(m._forward_hooks for m in bnn.modules()), "hooks are removed all the same"


def test_any_module_is_accepted():
    costs = gs.summary(mlp())
    assert costs.rows == ()
    assert (costs.nnz, costs.numel, costs.sparsity, costs.bytes) == (0, 0, 0.0, 0)
    assert costs.flop_density is None
    assert [u.name for u in costs.unconverted] == ["0", "2", "4"]
    assert "total: 0 of 0 weights" in str(costs)


def test_a_model_with_attention_still_has_a_flop_density():
    """Attention reads its out-projection instead of calling it; its FLOPs are known all the same,
    and one layer must not hide the figures of all others."""
    costs = gs.summary(gs.to_bayesian(encoder_layer(), 0.5), (5, 8))
    called = [r for r in costs.rows if r.name in ("linear1", "linear2")]
    assert [r.dense_flops for r in called] == [2 * 128 * 5] * 2
    assert costs.flop_density is not None
