"""MC dropout against the closed form of dropout in linear regression, and through its file."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.errors import InvalidValue
from gossamer.models import build_model
from gossamer.nn import dropout_of, sparse_layers
from gossamer.train import RunConfig, load_run, train

RATE = 0.4


def problem(n: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(n, 4, generator=generator) * torch.tensor([1.0, 0.5, 2.0, 1.0])
    x[:, 3] += x[:, 0]
    w = torch.tensor([1.0, -2.0, 0.5, 0.7])
    return x, x @ w + 0.3 * torch.randn(n, generator=generator)


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_linear_regression_is_ridge_with_the_scale_of_each_input(decay):
    """E over masks of the loss is least squares plus rate/(1-rate) Σ w² Σ x², plus the prior.

    Weight decay d is the prior N(0, 1/(N d)): ridge with N d σ², here of a known noise σ = 0.5.
    """
    x, y = problem()
    torch.manual_seed(0)
    net = nn.Linear(4, 1, bias=False)
    method = gs.build(
        "mc_dropout",
        net,
        num_data=len(x),
        total_steps=1500,
        likelihood=gs.Gaussian(0.5),
        layers="all",
        rate=RATE,
        weight_decay=decay,
        lr=0.02,
    )
    for _ in range(1500):
        method.step((x, y.unsqueeze(1)))
    gram = x.T @ x
    ridge = RATE / (1 - RATE) * gram.diagonal().diag() + len(x) * decay * 0.25 * torch.eye(4)
    wanted = torch.linalg.solve(gram + ridge, x.T @ y)
    plain = torch.linalg.solve(gram, x.T @ y)
    found = method.model.weight.detach().flatten()
    assert float((plain - wanted).abs().max()) > 0.4, "the test can tell"
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=0.02)
    # And its predictions: the variance of Σ w x b/(1-rate).
    pred = gs.predict(method, x[:6], 4000, seed=1)
    spread = (RATE / (1 - RATE) * (x[:6] * found).square().sum(1)).sqrt()
    torch.testing.assert_close(pred.epistemic.flatten(), spread, rtol=0.05, atol=0.0)
    torch.testing.assert_close(pred.mean.flatten(), x[:6] @ found, rtol=0.0, atol=0.15)


def test_what_is_dropped():
    torch.manual_seed(0)
    net = build_model("lenet", input_shape=[1, 28, 28], output_size=10)
    for layers, absent in (("hidden", 1), ("all", 0)):
        method = gs.build("mc_dropout", net, num_data=9, total_steps=2, rate=0.2, layers=layers)
        found = [dropout_of(layer) for layer in sparse_layers(method.model).values()]
        assert [d is None for d in found] == [i < absent for i in range(4)]
        assert [d.rate for d in found if d is not None] == [0.2] * (4 - absent)
        assert [d.axis for d in found if d is not None] == [-3, -3, -1, -1][absent:]
    with pytest.raises(InvalidValue, match="rate"):
        gs.build("mc_dropout", net, num_data=9, total_steps=2, rate=0.0)


def test_sparse_and_dense():
    net = build_model("mlp", input_shape=[6], output_size=3, hidden=[8])
    dense = gs.build("mc_dropout", net, num_data=9, total_steps=2)
    sparse = gs.build("mc_dropout", net, num_data=9, total_steps=2, sparsity=0.75)
    assert gs.summary(dense.model).sparsity == 0.0
    assert gs.summary(sparse.model).nnz == round(0.25 * (6 * 8 + 8 * 3))


def test_a_finished_run_predicts_from_its_file(tmp_path):
    """The run's posterior draws masks again, as the trained method does."""
    config = RunConfig(
        data="digits", method="mc_dropout", method_options={"rate": 0.3}, epochs=1, batch_size=256
    )
    train(config, tmp_path / "run")
    posterior = gs.load(tmp_path / "run")
    assert posterior.max_samples is None
    x = torch.rand(7, 64)
    found = posterior.predict(x, 6)
    assert float(found.mutual_information.min()) > 0.0
    kept = load_run(tmp_path / "run").posterior
    assert torch.equal(kept.predict(x, 6).samples, found.samples)
