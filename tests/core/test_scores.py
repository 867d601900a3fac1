"""Scores of free positions: each position by itself, so that blocks do not matter."""

from __future__ import annotations

import pytest
import torch

from gossamer.core.scores import SCORES, score_named
from gossamer.errors import UnknownName


@pytest.mark.parametrize("name", SCORES)
def test_blocks_and_order_do_not_matter(name):
    score, gradient = SCORES[name], torch.randn(60)
    whole = score(gradient.clone(), range(60))
    blocks = [score(gradient[i : i + 7].clone(), range(i, min(i + 7, 60))) for i in range(0, 60, 7)]
    assert torch.equal(torch.cat(blocks), whole)
    order = torch.randperm(60)
    assert torch.equal(score(gradient[order], order), whole[order])
    assert bool((whole >= 0.0).all())


def test_the_size_of_a_gradient():
    assert SCORES["abs"](torch.tensor([-2.0, 0.5]), range(2)).tolist() == [2.0, 0.5]


def test_unknown_name():
    with pytest.raises(UnknownName, match="score = age"):
        score_named("age")
