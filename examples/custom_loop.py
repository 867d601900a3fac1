"""A training loop of one's own: a torch network becomes a sparse Bayesian one.

Run it with ``python examples/custom_loop.py``; it takes a few seconds.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import gossamer as gs
from gossamer.data import batches, load
from gossamer.metrics import accuracy, ece


def main(epochs: int = 30) -> float:
    """Train at 95 % sparsity on digits; returns the test accuracy."""
    torch.manual_seed(0)
    data = load("digits")
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    bnn = gs.to_bayesian(net, sparsity=0.95)
    print(gs.summary(bnn, input_shape=data.input_shape))

    steps = epochs * -(-data.num_train // 64)
    opt = torch.optim.Adam(gs.parameter_groups(bnn, lr=5e-3, std_lr=1e-2))
    elbo = gs.ELBO(bnn, data.num_train, gs.linear_warmup(steps // 2, end=0.01))
    subspace = gs.Subspace(bnn, opt, total_steps=steps)
    generator = torch.Generator().manual_seed(0)
    bnn.train()
    for _ in range(epochs):
        for x, y in batches(data.x_train, data.y_train, 64, generator):
            loss = elbo(F.cross_entropy(bnn(x), y))
            opt.zero_grad()
            loss.backward()
            opt.step()
            subspace.step()

    pred = gs.predict(bnn, data.x_test, num_samples=16)
    share = accuracy(pred.probs, data.y_test)
    print(f"accuracy {share:.4f}, ECE {ece(pred.probs, data.y_test):.4f}")
    return share


if __name__ == "__main__":
    main()
