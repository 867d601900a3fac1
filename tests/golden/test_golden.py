"""The tool itself: a changed bit is found and named, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from golden import compare as command
from golden.cases import METHOD_CASES, Case, matches
from golden.difference import Report, compare, read
from golden.digest import digest, flat_digests
from golden.places import find
from golden.record import Recording, record
from golden.runs import SelfContradiction, run_method

CASE = "ssvi/mlp/grad@native"
HEADER = {"torch": "2", "threads": 1, "isa": "avx2", "registry": ["ssvi"]}


def states() -> list[dict[str, object]]:
    """Three steps of something like a method."""
    torch.manual_seed(0)
    return [
        {
            "info": {"loss": 1.0 / step, "swap": None},
            "model": {"1.weight_mean": torch.randn(5), "1.indices": torch.arange(5)},
            "state": {"engines": {"1": "native"}, "steps": step, "reused": []},
        }
        for step in (1, 2, 3)
    ]


def write(path: Path, steps: list[dict[str, object]], case: str = CASE) -> Path:
    with path.open("w") as file:
        note = Recording(file, HEADER).case(case)
        for number, state in enumerate(steps, start=1):
            note(f"step {number}", state)
        note("predict", {"weight": {"probs": torch.ones(2, 2)}})
    return path


def flip(tensor: torch.Tensor, slot: int) -> None:
    """Change the lowest bit of one element."""
    tensor.view(torch.int32)[slot] ^= 1


def both(tmp_path: Path, one: list[dict[str, object]], two: list[dict[str, object]]) -> Report:
    base, present = write(tmp_path / "base", one), write(tmp_path / "present", two)
    return compare(read(base)[1], read(present)[1])


def test_equal_recordings_pass(tmp_path):
    report = both(tmp_path, states(), states())
    assert report.differences == []
    assert (report.cases, report.values) == (1, 3 * 7 + 1)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_changed_bit_is_named(tmp_path, step):
    changed = states()
    flip(changed[step - 1]["model"]["1.weight_mean"], 3)
    (found,) = both(tmp_path, states(), changed).differences
    assert (found.case, found.step, found.path) == (CASE, f"step {step}", "model/1.weight_mean")
    assert found.base.startswith("float32[5] sha256=")
    assert found.base.split()[1] != found.present.split()[1]
    assert f"case {CASE}, step {step}, tensor model/1.weight_mean" in str(found)


def test_a_number_that_changed_by_one_bit_is_named(tmp_path):
    changed = states()
    changed[1]["info"]["loss"] = 0.5 + 2.0**-53
    (found,) = both(tmp_path, states(), changed).differences
    assert (found.step, found.path) == ("step 2", "info/loss")


def test_new_names_are_the_old_ones(tmp_path):
    renamed = states()
    for state in renamed:
        values = state["state"]
        values["backends"] = values.pop("engines")
        values["method"] = "ssvi"
    assert both(tmp_path, states(), renamed).differences == []
    renamed[2]["state"]["backends"]["1"] = "masked"
    (found,) = both(tmp_path, states(), renamed).differences
    assert (found.step, found.path) == ("step 3", "state/backends/1")


def test_what_one_side_lacks_is_a_difference(tmp_path):
    less = states()
    del less[1]["model"]["1.indices"]
    for pair in ((states(), less), (less, states())):
        (found,) = both(tmp_path, *pair).differences
        assert (found.step, found.path) == ("step 2", "model/1.indices")
    (found,) = both(tmp_path, states(), states()[:2]).differences
    assert (found.step, found.present) == ("step 3", "predict")
    base, other = write(tmp_path / "a", states()), write(tmp_path / "b", states(), "rigl/mlp/grad")
    assert len(compare(read(base)[1], read(other)[1]).differences) == 2


def test_a_fault_is_a_difference_even_if_both_have_it(tmp_path):
    for name in ("base", "present"):
        with (tmp_path / name).open("w") as file:
            Recording(file, HEADER).fault(CASE, "ValueError: no")
    (found,) = compare(read(tmp_path / "base")[1], read(tmp_path / "present")[1]).differences
    assert found.present == "ValueError: no"


def test_digests_tell_bits_apart():
    assert digest(torch.tensor(0.0)) != digest(torch.tensor(-0.0))
    assert digest(torch.tensor(1.0)) != digest(torch.tensor(1.0).double())
    assert digest(torch.zeros(2, 3)) != digest(torch.zeros(3, 2))
    assert digest(torch.tensor(float("nan"))) == digest(torch.tensor(float("nan")))
    assert digest(torch.arange(6).view(2, 3).T) == digest(torch.arange(6).view(2, 3).T.contiguous())
    assert digest(True) != digest(1) != digest(1.0)


def test_a_real_case_equals_itself_and_not_a_changed_formula(tmp_path, monkeypatch):
    """One bit of the learning rate, which only the new code has."""
    only = "rigl/mlp/grad@masked"
    record(tmp_path / "base", "base", only)
    record(tmp_path / "present", "present", only)
    base = read(tmp_path / "base")[1]
    report = compare(base, read(tmp_path / "present")[1])
    assert report.differences == []
    assert report.values > 500
    usual = torch.optim.Adam.step

    def one_bit_off(self, *arguments):
        for group in self.param_groups:
            group["lr"] *= 1.0 + 2.0**-52
        return usual(self, *arguments)

    monkeypatch.setattr(torch.optim.Adam, "step", one_bit_off)
    record(tmp_path / "present", "present", only)
    (found,) = compare(base, read(tmp_path / "present")[1]).differences
    assert (found.case, found.step) == (only, "step 1")


def ignore(label: str, value: object) -> dict[str, str]:
    return flat_digests(value)


def test_a_case_must_move_its_supports():
    with pytest.raises(SelfContradiction, match="changed 0 times, not 1"):
        run_method(Case("sgd", "mlp", "dense", moves=1, steps=2), "masked", ignore)


def test_a_resumed_run_must_be_the_straight_one(monkeypatch):
    monkeypatch.setattr(torch, "set_rng_state", lambda state: None)
    with pytest.raises(SelfContradiction, match=r"resumed, step 2: .* straight"):
        run_method(Case("dense_vi", "mlp", "default", steps=3), "masked", ignore)


def test_every_method_has_a_case():
    assert {case.method for case in METHOD_CASES} >= set(find("METHODS"))
    names = [case.name for case in METHOD_CASES]
    assert len(names) == len(set(names))


def test_patterns():
    assert [matches(CASE, p) for p in (None, "ssvi/*", "mlp/grad", "rigl")] == [True] * 3 + [False]


def test_the_command_asks_for_a_base(capsys):
    assert command.main([]) == 2
    assert "make golden BASE=<commit>" in capsys.readouterr().out


def test_the_total_and_the_exit_code(tmp_path, capsys):
    base = write(tmp_path / "base", states())
    assert command.judge(base, base, only=None, seconds=1.0) == 0
    assert capsys.readouterr().out == "golden: 1 cases, 22 tensors equal (1 s)\n"
    changed = states()
    flip(changed[0]["model"]["1.weight_mean"], 0)
    present = write(tmp_path / "present", changed)
    assert command.judge(base, present, only=None, seconds=1.0) == 1
    shown = capsys.readouterr().out
    assert f"first difference: case {CASE}, step 1, tensor model/1.weight_mean" in shown
    assert f"golden: differing: {CASE}\ngolden: 1 of 1 cases differ" in shown
