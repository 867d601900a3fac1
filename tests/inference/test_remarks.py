"""What a step says of inputs of the wrong kind, of targets far from unit scale, of its end."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import gossamer
from gossamer.errors import InvalidData

METHODS = pytest.mark.parametrize("name", ["ssvi", "rigl", "ngvi", "csghmc", "cv_adam"])


def build(name: str = "rigl", likelihood: str = "gaussian", **settings: object):
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    options = {"num_data": 20, "total_steps": 4, "likelihood": likelihood, **settings}
    return gossamer.build(name, net, **options)


X, Y = torch.randn(20, 3), torch.randn(20, 1)


@METHODS
def test_numpy_and_float64_are_refused_with_the_call_that_mends_it(name):
    method = build(name)
    with pytest.raises(InvalidData, match=r"x = ndarray: must be a tensor; torch\.as_tensor"):
        method.step((X.numpy(), Y))
    with pytest.raises(InvalidData, match=r"y = ndarray: must be a tensor"):
        method.step((X, Y.numpy()))
    with pytest.raises(InvalidData, match=r"x = torch\.float64: .*use x\.to\(torch\.float32\)"):
        method.step((X.double(), Y))
    method.step((X, Y.double()))  # targets follow the output
    assert method.steps == 1


def test_a_later_batch_of_another_kind_is_refused_too():
    method = build()
    method.step((X, Y))
    with pytest.raises(InvalidData, match="float64"):
        method.step((X.double(), Y))
    with pytest.raises(InvalidData, match="ndarray"):
        method.step((np.zeros((20, 3), dtype=np.float32), Y))


def test_members_say_it_too():
    with pytest.raises(InvalidData, match="float64"):
        build(members=2, sparsity=0.5).step((X.double(), Y))


@METHODS
@pytest.mark.parametrize("target", [5e5 + 1e5 * Y, 1e-3 * Y, 100.0 + Y])
def test_targets_far_from_unit_scale_are_remarked_once(name, target):
    method = build(name, lr=1e-9)
    with pytest.warns(UserWarning, match=r"targets of mean .* are far from 0 and 1.*standardise"):
        method.step((X, target))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        method.step((X, target))


@pytest.mark.parametrize("target", [Y, 3.0 + 5.0 * Y, torch.ones(20, 1), 0.05 * Y])
def test_ordinary_targets_pass_unsaid(target):
    build(lr=1e-9).step((X, target))


def test_a_noise_that_was_told_knows_its_scale():
    method = build(likelihood=gossamer.Gaussian(1e5), lr=1e-9)
    method.step((X, 5e5 + 1e5 * Y))


@METHODS
def test_a_step_beyond_the_run_is_said_once(name):
    method = build(name, cycles=1) if name == "csghmc" else build(name)
    for _ in range(4):
        method.step((X, Y))
    with pytest.warns(UserWarning, match=f"step 5 of a {name} run of total_steps=4: .*as many"):
        method.step((X, Y))
    method.step((X, Y))


def test_real_targets_are_not_sent_to_whole_numbers():
    method = gossamer.build("rigl", nn.Linear(3, 1), num_data=20, total_steps=4, sparsity=0.0)
    with pytest.raises(InvalidData, match="for real targets give likelihood='gaussian'"):
        method.step((X, Y))
