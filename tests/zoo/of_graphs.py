"""Graph networks of torch_geometric: every node's output depends on its neighbours."""

from __future__ import annotations

import torch
from torch import nn
from torch_geometric.nn.models import GAT, GCN, GIN, GraphSAGE

from zoo.entries import Entry, Inputs


def _of(kind: type[nn.Module]) -> tuple[nn.Module, Inputs]:
    edges = torch.stack([torch.randint(30, (90,)), torch.randint(30, (90,))])
    inputs: Inputs = {"x": torch.randn(30, 8), "edge_index": edges}
    return kind(8, 16, num_layers=2, out_channels=4), inputs


ENTRIES = tuple(
    Entry("torch_geometric", kind.__name__, lambda kind=kind: _of(kind), is_row_wise=False)
    for kind in (GCN, GAT, GraphSAGE, GIN)
)
