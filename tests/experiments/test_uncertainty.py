"""``gossamer/uncertainty``: its tasks, its lines by hand, its verdicts, one small row for real."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from gossamer.experiments import find_experiment
from gossamer.experiments.experiment import Finished
from gossamer.experiments.gossamer.uncertainty.checks import auroc_key, verdicts
from gossamer.experiments.gossamer.uncertainty.contenders import CONTENDERS, parts_of
from gossamer.experiments.gossamer.uncertainty.costs import Contest, cost
from gossamer.experiments.gossamer.uncertainty.measuring import FORMS, Measured, measure, told
from gossamer.experiments.gossamer.uncertainty.problems import PROBLEMS, SCALES, problems_of
from gossamer.experiments.gossamer.uncertainty.rows import Board, Line, board_of
from gossamer.inference import METHODS
from gossamer.train import RunConfig

EXPERIMENT = find_experiment("gossamer/uncertainty")


class Quiet:
    def tell(self, share, text=""):
        assert 0.0 <= share <= 1.0

    note = tell


def scope(scale="grey", repeats=2):
    return EXPERIMENT.scope(scale=scale, repeats=repeats)


def test_every_contender_meets_every_problem_with_the_same_data():
    tasks = EXPERIMENT.tasks(scope("small"))
    trained = [t for t in tasks if isinstance(t.settings, Measured)]
    assert len({t.name for t in tasks}) == len(tasks)
    whole = [c for c in CONTENDERS if c.part_of is None]
    assert len(trained) == len(PROBLEMS) * len(whole) * 2
    met = {key for t in trained for key in t.settings.parts} | {c.key for c in whole}
    assert met == {c.key for c in CONTENDERS}
    shared = ("data", "model", "epochs", "batch_size", "limit_train", "ood", "validation_fraction")
    for problem in PROBLEMS:
        own = [t for t in trained if t.name.startswith(f"{problem.key}-")]
        assert len(own) == len(whole) * 2
        configs = [RunConfig.from_json(t.settings.config) for t in own]
        assert all(getattr(c, n) == getattr(problem.config, n) for c in configs for n in shared)
        for config in configs:
            METHODS[config.method].config(**config.method_options)
            assert config.finish == "none"  # every form is measured


def test_seeds_go_through_the_standard_splits():
    energy = next(p for p in PROBLEMS if p.key == "energy")
    assert [energy.seeded(seed, None, "cpu").split for seed in (0, 3, 20)] == [0, 3, 0]
    assert [p.key for p in problems_of("grey")] == ["digits", "mnist", "fashion"]
    assert set(SCALES["small"]) == {p.key for p in PROBLEMS}


def test_settings_of_a_row_are_what_differs_from_the_defaults():
    config = RunConfig(seed=3, epochs=2)
    assert told(config) == {"seed": 3, "epochs": 2}
    assert RunConfig.from_json(told(config)) == config


def line(contender, form, **figures):
    by_seed = {name: dict(enumerate(values)) for name, values in figures.items()}
    return Line(contender, contender, form, by_seed)


def test_differences_are_in_pairs():
    ours, theirs = line("a", "none", nll=[0.3, 0.4]), line("b", "none", nll=[0.31, 0.42])
    gap = ours.below(theirs, "nll")
    assert gap.mean == pytest.approx(0.015)
    assert gap.standard_error == pytest.approx(0.005)
    assert ours.below(line("c", "none"), "nll") is None


def board(fast, rigl, cost_of_fast=1.0):
    lines = {
        ("fast", "last_layer"): line("fast", "last_layer", nll=fast, ece=[0.01, 0.012]),
        ("rigl", "temperature"): line("rigl", "temperature", nll=rigl),
    }
    return Board(lines, {"fast": {"ratio": cost_of_fast}})


def named(boards, part):
    return next(v for v in verdicts(boards) if part in v.name)


def test_the_verdict_on_nll_asks_for_two_standard_errors_and_no_loss():
    won, lost = board([0.3, 0.4], [0.31, 0.412]), board([0.3, 0.4], [0.28, 0.381])
    even = board([0.3, 0.4], [0.31, 0.39])
    assert named({"mnist": won, "fashion": won, "digits": won}, "below temperature").ok
    assert named({"mnist": won, "fashion": won, "digits": won, "cifar10": even}, "below").ok
    assert not named({"mnist": won, "fashion": won, "digits": even}, "below temperature").ok
    assert not named({"mnist": won, "fashion": won, "digits": won, "cifar10": lost}, "below").ok


def test_rigl_is_met_at_both_learning_rates():
    won = board([0.3, 0.4], [0.31, 0.412])
    better = line("rigl-lr", "temperature", nll=[0.29, 0.39])
    both = {"mnist": Board({**won.lines, ("rigl-lr", "temperature"): better}, won.costs)}
    assert named(both, "RigL's on three").text == "mnist +0.0110 ± 0.0010"
    assert "mnist -0.0100" in named(both, "twice the learning rate").text


def test_what_is_missing_passes_nothing():
    for verdict in verdicts({"mnist": Board({}, {}), "fashion": Board({}, {})}):
        assert not verdict.ok, verdict


def test_costs_and_calibration():
    assert named({"mnist": board([1, 1], [1, 1], 1.1)}, "fast: a step").ok
    assert not named({"mnist": board([1, 1], [1, 1], 1.11)}, "fast: a step").ok
    assert named({"mnist": board([1, 1], [1, 1])}, "ECE of mnist").ok
    assert auroc_key("cifar10", "cifar100") == "auroc_mutual_information"
    assert auroc_key("cifar10", "svhn") == "auroc_mutual_information_svhn"
    assert auroc_key("mnist", "notmnist") == "auroc_mutual_information"
    assert auroc_key("mnist", "fashion_mnist") == "auroc_mutual_information_fashion_mnist"


def test_rows_become_lines_and_a_figure(tmp_path):
    asked = scope("quick")
    tasks = EXPERIMENT.tasks(asked)
    forms = {form: {"nll": 0.5, "accuracy": 0.9} for form in FORMS}
    rows = {
        "digits-ngvi-s0": {"forms": forms},
        "digits-rigl-average-s0": {"forms": {**forms, "last_layer": {"refused": "no"}}},
        "digits-ensemble-s1": {"forms": forms, "parts": {"ensemble-3": {"none": {"nll": 0.6}}}},
        "digits-cost": {"rigl": {"ratio": 1.0, "bytes": 24}},
    }
    found = Finished(EXPERIMENT.key, asked, Path(tmp_path), tasks, rows)
    made = board_of("digits", found)
    assert ("rigl-average", "last_layer") not in made.lines
    assert made.lines["ngvi", "none"].figures["nll"] == {0: 0.5}
    assert made.lines["ensemble-3", "none"].mean("nll") == 0.6
    assert made.bytes("rigl") == 24
    outcome = EXPERIMENT.conclude(found)
    assert not outcome.ok
    assert "front.svg" in outcome.figures
    assert "RigL 95 %, averaged" in {row[0] for row in outcome.parts[1].rows}


def contender(key):
    return next(c for c in CONTENDERS if c.key == key)


def test_a_part_is_what_it_is_called():
    """The settings of a part differ from the whole's in the number of networks alone."""
    for part in (c for c in CONTENDERS if c.part_of is not None):
        whole = contender(part.part_of)
        mine, theirs = part.of(PROBLEMS[0].config), whole.of(PROBLEMS[0].config)
        assert mine.num_samples < theirs.num_samples
        options = {k: v for k, v in theirs.method_options.items() if k != "members"}
        assert {k: v for k, v in mine.method_options.items() if k != "members"} == options
        assert mine.member_sparsity in (None, theirs.member_sparsity)


def test_parts_of_a_row_are_measured_as_posteriors_of_their_own():
    base = replace(PROBLEMS[0].config, epochs=1, limit_train=300)
    whole = contender("best")
    config, parts = whole.of(base), parts_of(whole, base)
    assert parts == {"fast": 1, "good": 2}
    row = measure(Measured(told(config), parts), Quiet())
    losses = [forms["none"]["nll"] for forms in (*row["parts"].values(), row["forms"])]
    assert len(set(losses)) == 3
    # The network that ``fast`` is: the first member, which is trained as if there were no others.
    fewer = replace(config, members=2, num_samples=2)
    again = measure(Measured(told(fewer), {"fast": 1}), Quiet())
    assert again["parts"]["fast"] == row["parts"]["fast"]


def test_a_row_for_real():
    config = replace(contender("fast").of(PROBLEMS[0].config), epochs=2, limit_train=300, seed=1)
    row = measure(Measured(told(config)), Quiet())
    assert set(row["forms"]) == set(FORMS)
    assert row["nnz"] == round(0.05 * (64 * 256 + 256 * 256 + 256 * 10))
    assert row["forms"]["temperature"]["temperature"] > 0
    assert "last_layer_scale" in row["forms"]["last_layer"]
    nll = {form: row["forms"][form]["nll"] for form in FORMS}
    assert nll["none"] != nll["temperature"]


def test_steps_are_timed_in_turn_and_bytes_are_exact():
    base = replace(PROBLEMS[0].config, limit_train=300)
    timed = ("rigl", "fast", "ensemble", "swag")
    configs = {c.key: told(c.of(base)) for c in CONTENDERS if c.key in timed}
    before = torch.get_num_threads()
    found = cost(Contest(configs), Quiet())
    assert torch.get_num_threads() == before
    kept = round(0.05 * (64 * 256 + 256 * 256 + 256 * 10))
    biases = 256 + 256 + 10
    assert found["rigl"]["ratio"] == 1.0
    # Values and Adam's two numbers for each, its step count for every tensor, and the indices.
    indices = found["rigl"]["bytes"] - 4 * (3 * (kept + biases) + 6)
    assert indices in (4 * kept, 8 * kept)
    # A curvature, which counts its steps in Python, and the mean, one more network on its support.
    more = 4 * kept + 4 * (kept + biases) + indices
    assert found["fast"]["bytes"] == found["rigl"]["bytes"] - 4 * 6 + more
    dense = 64 * 256 + 256 * 256 + 256 * 10 + biases
    assert found["ensemble"]["bytes"] == 5 * 4 * (3 * dense + 6)
    # Mean, squares and twenty points beside value and Adam's two numbers.
    assert found["swag"]["bytes"] == pytest.approx(4 * 25 * dense, rel=0.01)
    assert asdict(Contest(configs))["configs"] == configs
