"""The recipe for Accelerate in docs/integrations.md, killed and resumed."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import gossamer as gs

EPOCHS, STEPS = 4, 16


def train(folder, *, until=EPOCHS, resume=False):
    accelerate = pytest.importorskip("accelerate")
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(32, 8, generator=generator)
    loader = DataLoader(TensorDataset(x, torch.arange(32) % 3), batch_size=4)
    bnn = gs.to_bayesian(nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3)), 0.6)
    opt = torch.optim.Adam(gs.parameter_groups(bnn, lr=1e-2))
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    bnn, opt, loader = accelerator.prepare(bnn, opt, loader)
    elbo = gs.ELBO(bnn, num_data=32, kl_weight=gs.linear_warmup(10), accumulate=2)
    subspace = gs.Subspace(bnn, opt, total_steps=STEPS, update_every=3)
    accelerator.register_for_checkpointing(subspace, elbo)
    if resume:
        accelerator.load_state(str(folder))
    for _ in range(subspace.steps // 4, until):
        for rows, labels in loader:
            with accelerator.accumulate(bnn):
                accelerator.backward(elbo(F.cross_entropy(bnn(rows), labels)))
                opt.step()
                opt.zero_grad()
            if accelerator.sync_gradients:
                subspace.step()
    accelerator.save_state(str(folder))
    assert elbo.calls == 2 * subspace.steps
    return bnn, subspace


@pytest.mark.faces
@pytest.mark.filterwarnings("ignore")
def test_accelerate_resumes_bit_for_bit(tmp_path):
    straight, subspace = train(tmp_path / "one")
    assert subspace.steps == STEPS
    train(tmp_path / "two", until=2)
    again, subspace = train(tmp_path / "two", resume=True)
    assert subspace.steps == STEPS
    for name, value in straight.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
