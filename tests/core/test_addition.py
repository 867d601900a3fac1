"""The addition criteria's table."""

from __future__ import annotations

import pytest
import torch

from gossamer.core.addition import ADDITION, AdditionRule, addition_rule
from gossamer.errors import InvalidValue, UnknownName


def test_the_issue_s_keys_are_there():
    assert {"grad", "grad_mean", "grad_multi", "random"} <= set(ADDITION)


def test_what_each_rule_asks_for():
    assert not addition_rule("grad").own_pass, "grad uses the training backward"
    assert addition_rule("grad_mean").own_pass
    assert addition_rule("grad_mean").at_mean
    assert addition_rule("grad_multi").many
    assert not addition_rule("random").gradient


def test_absolute_before_or_after_the_average():
    """E|g| (the paper) and |E g| (the authors' code) differ where signs cancel."""
    passes = [torch.tensor([1.0, -2.0]), torch.tensor([-1.0, -2.0])]
    total = {
        name: sum(addition_rule(name).contribution(g) for g in passes).abs() / 2
        for name in ("grad_multi", "grad_multi_signed")
    }
    assert total["grad_multi"].tolist() == [1.0, 2.0]
    assert total["grad_multi_signed"].tolist() == [0.0, 2.0]


def test_a_score_counts_or_is_refused():
    """Rules with passes of their own average |gradient|; another score would be ignored there."""
    assert AdditionRule(score="abs", own_pass=True).score == "abs"
    with pytest.raises(InvalidValue, match="score = near: is not averaged"):
        AdditionRule(score="near", own_pass=True)


def test_unknown_rule():
    with pytest.raises(UnknownName, match="addition = gradient: is not known; choose one of: grad"):
        addition_rule("gradient")
