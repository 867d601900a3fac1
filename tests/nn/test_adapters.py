"""Low-rank adapters with a posterior beside a frozen network (``zoo/test_peft.py``: the real)."""

from __future__ import annotations

import warnings

import pytest

import gossamer as gs
from cases.adapters import ADAPTERS, adapted
from gossamer.nn import sparse_layers
from reference import adapter_checks


@pytest.mark.parametrize("sparsity", [0.0, 0.5])
def test_only_adapters_change(sparsity):
    adapter_checks.only_adapters_change(adapted, sparsity)


def test_outputs_are_those_of_dense_matrices():
    adapter_checks.outputs_are_those_of_dense_matrices(adapted)


def test_state_and_way_back():
    adapter_checks.state_and_way_back(adapted)


def test_rules_by_name_and_no_warning_of_what_stays():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bnn = gs.to_bayesian(
            adapted(),
            {"*.lora_A.*": 0.5, "*": 0.0},
            include=ADAPTERS,
            prior_std={"*.lora_B.*": 0.1, "*": "scaled"},
        )
    layers = sparse_layers(bnn)
    up = [layer for name, layer in layers.items() if ".lora_B." in name]
    assert [layer.prior_std for layer in up] == [0.1, 0.1]
    assert all(layer.support.is_full for layer in up)
    assert sum(layer.nnz for name, layer in layers.items() if ".lora_A." in name) == 60
