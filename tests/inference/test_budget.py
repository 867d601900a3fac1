"""A budget that moves between layers, in a loop of one's own."""

from __future__ import annotations

import torch
from torch import nn

import gossamer as gs
from gossamer.nn import sparse_layers


class AllTo:
    """Everything that leaves goes to one layer first, as far as it can take it."""

    reach = 4

    def __init__(self, place: int) -> None:
        self.place = place

    def entering(self, layers):
        left = sum(layer.leaving for layer in layers)
        found = [max(0, 1 - (layer.support.nnz - layer.leaving)) for layer in layers]
        order = sorted(range(len(layers)), key=lambda i: i != self.place)
        for i in order:
            more = min(layers[i].most_entering - found[i], left - sum(found))
            found[i] += max(0, more)
        return found


def test_a_layer_may_fill_up_and_give_weights_away_again():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    bnn = gs.to_bayesian(net, 0.5)
    opt = torch.optim.Adam(gs.parameter_groups(bnn, lr=0.01))
    elbo = gs.ELBO(bnn, 50)
    budget = AllTo(0)
    subspace = gs.Subspace(
        bnn, opt, total_steps=400, budget=budget, update_every=1, end_fraction=1.0
    )
    x, y = torch.randn(50, 6), torch.arange(50) % 2
    total = gs.summary(bnn).nnz
    first = sparse_layers(bnn)["0"]
    sizes = []
    for number in range(60):
        if number == 30:
            budget.place = 1
        loss = elbo(nn.functional.cross_entropy(bnn(x), y))
        opt.zero_grad()
        loss.backward()
        opt.step()
        subspace.step()
        sizes.append(first.nnz)
        assert gs.summary(bnn).nnz == total
        assert opt.state[first.weight_mean]["exp_avg"].numel() == first.nnz
    assert max(sizes[:30]) == 24, "it was full"
    assert sizes[-1] < 24, "and gave weights away again"
