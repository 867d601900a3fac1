from __future__ import annotations

import copy
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gossamer.data import batches
from gossamer.errors import NonFinite
from gossamer.experiments import Finished, Outcome, Scope, Watch
from gossamer.experiments.cvadam2023.table4 import experiment as table4
from gossamer.experiments.cvadam2023.table4 import repeat, settings, timing
from gossamer.experiments.cvadam2023.table4.problem import (
    LiveInputs,
    Problem,
    chain_of,
    method_of,
    read_inputs,
)
from gossamer.experiments.cvadam2023.table4.settings import METHODS, RepeatSettings
from gossamer.experiments.cvadam2023.table4.timing import TimingSettings
from gossamer.inference.methods.em_mcmc import EMMCMC
from gossamer.inference.pruning import Pruning
from gossamer.nn import sparse_layers
from gossamer.train import Epoch, Fit, Observer

KEYS = {"example", "method", "repeat", "fdr", "fndr", "miss_rate", "selected", "seconds"}


SIZES = {"num_train": 300, "num_test": 50, "num_features": 24, "batch_size": 64}
TINY = {**SIZES, "epochs": 18, "warmup_epochs": 4, "candidates": 1}


def tiny(example: int, method: Pruning, **changes: Any) -> RepeatSettings:
    """A repeat of a few epochs on a few inputs."""
    about = RepeatSettings.of(example, method, 0, seed=3)
    return replace(about, **{**TINY, **changes})


def in_double(problem: Problem) -> Problem:
    network = copy.deepcopy(problem.network).double()
    return replace(problem, x=problem.x.double(), y=problem.y.double(), network=network)


def dense_weights(method: EMMCMC) -> dict[str, torch.Tensor]:
    """The masked weights in their dense shapes, and the biases, by the names of the plain net."""
    found = {}
    state = method.snapshot()
    for name, layer in sparse_layers(method.model).items():
        weight = torch.zeros(layer.layout.numel, dtype=torch.float64)
        indices = state.get(f"{name}.indices")
        places = torch.arange(weight.numel()) if indices is None else indices.long()
        weight[places] = state[f"{name}.weight_values"].flatten()
        found[f"{name}.weight"] = weight.reshape(layer.layout.shape)
        found[f"{name}.bias"] = state[f"{name}.bias"]
    return found


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("example", [1, 3])
def test_sparse_and_dense_code_give_the_same_weights(
    example: int, method: Pruning, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Below λ₂ under DPF: what is masked is under the spike all the same.
    soft = 0.02 if method == "dfp" else 0.012
    chosen = settings.ExampleSettings(18, lr=0.05, slab_decay=2e-3, spike_threshold=soft)
    monkeypatch.setitem(settings.SETTINGS_OF, example, chosen)
    # A spike weak enough for DPF's to come back; λ₂ between the sizes of the first weights'
    # columns, so that a few leave in every epoch.
    about = tiny(example, method, spike_decay=1e-2, prune_threshold=0.018)
    order, same_order = (torch.Generator().manual_seed(5) for _ in range(2))
    problem = replace(in_double(Problem.of(about)), order=order)
    dense = timing.dense(about, problem)
    torch.manual_seed(6)
    chain = chain_of(about, problem)
    sparse, noise = chain.method, torch.get_rng_state()
    counts = []
    for epoch in range(about.epochs):
        chain.run(until=epoch + 1)
        torch.set_rng_state(noise)
        for batch in batches(problem.x, problem.y, about.batch_size, same_order):
            dense.step(batch)
        noise = torch.get_rng_state()
        expected = dense.effective()
        for name, weight in dense_weights(sparse).items():
            torch.testing.assert_close(
                weight, expected[name], rtol=1e-9, atol=1e-12, msg=f"{name}, epoch {epoch}"
            )
        counts.append(len(read_inputs(sparse)))
    assert counts[2] == 24  # the warm-up
    falls = sum(after < before for before, after in pairwise(counts))
    rises = sum(after > before for before, after in pairwise(counts))
    assert falls >= 2, counts
    assert (rises > 0) == (method == "dpf")
    if method == "dfp":
        assert counts[-2] <= 6, counts  # few enough for LiveInputs to load them alone


@pytest.mark.parametrize(("example", "metric"), [(1, "mse"), (2, "mse"), (3, "accuracy")])
def test_a_repeat_has_its_keys_and_is_repeatable(example: int, metric: str, watch: Watch) -> None:
    about = tiny(example, "dfp", epochs=6, cycles=2)
    row = repeat.carry_out(about, watch)
    assert row.keys() >= KEYS | {metric, f"{metric}_ensemble", f"{metric}_cycle"}
    assert row["num_selected"] == len(row["selected"])
    assert all(1 <= variable <= 24 for variable in row["selected"])
    again = repeat.carry_out(about, watch)
    assert {**again, "seconds": 0} == {**row, "seconds": 0}
    other = repeat.carry_out(replace(about, seed=4), watch)
    assert other[metric] != row[metric] or other["selected"] != row["selected"]


def test_scores_are_of_the_samples_they_name() -> None:
    about = tiny(1, "dpf", epochs=6, cycles=2)
    problem = Problem.of(about)
    method = method_of(about, problem)
    for _ in range(about.epochs):
        for batch in batches(problem.x, problem.y, 64, problem.order):
            method.step(batch)
    x = torch.from_numpy(problem.simulation.x_test)
    outputs = []
    for index in range(len(method.samples)):
        with (
            method.posterior().draws.sample(index, seed=0, noise="weight") as network,
            torch.no_grad(),
        ):
            outputs.append(network(x)[:, 0])
    stacked = torch.stack(outputs).double()
    y = torch.from_numpy(problem.simulation.y_test).double()
    found = repeat.scores(method, problem)
    assert len(outputs) == 6
    for name, count in (("mse", 1), ("mse_cycle", 3), ("mse_ensemble", 6)):
        error = float((stacked[:count].mean(0) - y).square().mean())
        assert found[name] == pytest.approx(error, rel=1e-5)


class Epochs(Observer):
    """Counts the epochs of all chains."""

    number = 0

    def on_epoch(self, fit: Fit, epoch: Epoch) -> None:
        self.number += 1


def test_the_best_chain_on_held_out_training_points_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    about = tiny(1, "dfp", candidates=4, rounds=((1, 2), (3, 1)))
    problem = Problem.of(about)
    seen: list[tuple[int, EMMCMC]] = []
    errors = iter([0.5, 0.25, float("nan"), 0.125, 0.25, 0.75])

    def error(method: EMMCMC, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
        assert torch.equal(x, problem.x[270:])
        assert torch.equal(y, problem.y[270:])
        seen.append((method.steps // 5, method))
        return {"nll": next(errors)}

    monkeypatch.setattr(repeat, "held_out_error", error)
    epochs = Epochs()
    chosen = repeat.best_chain(about, problem, [epochs])
    assert epochs.number == 4 + 2 * 2
    assert [epochs for epochs, _ in seen] == [1, 1, 1, 1, 3, 3]
    assert [method for _, method in seen[4:]] == [seen[1][1], seen[3][1]]
    assert chosen.method is seen[1][1]
    assert chosen.method.num_data == 270  # what was held out stays out
    # Its first weights, order and noise are those of its number, whatever ran beside it.
    words = np.random.SeedSequence((about.seed, 1, 2)).generate_state(2)
    torch.manual_seed(int(words[0]))
    widths = (24, 5, 3, 1)
    network = nn.Sequential(nn.Flatten())
    for inputs, outputs in pairwise(widths):
        network.extend([nn.Linear(inputs, outputs), nn.ReLU()])
    alone = chain_of(
        about,
        replace(
            problem,
            x=problem.x[:270],
            y=problem.y[:270],
            network=network[:-1],
            order=torch.Generator().manual_seed(int(words[1])),
            steps=18 * 5,
            steps_per_epoch=5,
        ),
    )
    alone.run(until=3)
    for one, two in zip(
        chosen.method.model.parameters(), alone.method.model.parameters(), strict=True
    ):
        assert torch.equal(one, two)


def test_all_epochs_of_a_repeat_are_told() -> None:
    shares: list[float] = []

    class Told(Watch):
        def tell(self, share: float, figures: str = "") -> None:
            shares.append(share)

    about = tiny(1, "dfp", candidates=4, rounds=((1, 2), (30, 1)))
    repeat.carry_out(about, Told(Path(), "task"))
    total = 4 + 2 * 17  # the second round ends with the run
    assert shares == [n / total for n in range(1, total + 1)]


def test_a_single_chain_has_all_points() -> None:
    about = tiny(1, "dfp")
    assert repeat.best_chain(about, Problem.of(about)).method.num_data == 300


def test_the_error_of_a_chain_is_its_negative_log_likelihood() -> None:
    about = tiny(1, "dfp")
    problem = Problem.of(about)
    method = method_of(about, problem)
    with torch.no_grad():
        squares = (method.model(problem.x)[:, 0] - problem.y).square()
    wanted = float(squares.mean()) + 0.5 * np.log(np.pi)  # variance one half
    found = repeat.held_out_error(method, problem.x, problem.y)
    assert found == {"nll": pytest.approx(wanted, rel=1e-5)}


def test_a_diverged_chain_gives_way_and_all_together_raise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    about = tiny(1, "dfp", candidates=3, rounds=((1, 2), (3, 1)))
    problem = Problem.of(about)

    def best(*failing: int) -> int:
        begun: list[Fit] = []

        def chain(*args: Any, **options: Any) -> Fit:
            begun.append(chain_of(*args, **options))
            if len(begun) - 1 in failing:
                with torch.no_grad():
                    next(begun[-1].method.model.parameters()).fill_(float("nan"))
            return begun[-1]

        monkeypatch.setattr(repeat, "chain_of", chain)
        return begun.index(repeat.best_chain(about, problem))

    first = best()
    others = {0, 1, 2} - {first}
    second = best(first)
    assert second in others
    assert best(first, second) in others - {second}
    with pytest.raises(NonFinite):
        best(0, 1, 2)


def test_live_inputs_are_the_same_rows_with_other_columns_zero() -> None:
    x, y = torch.randn(50, 20), torch.arange(50.0)
    data, columns = LiveInputs(x, y, 16), torch.tensor([3, 7])

    def loaded(source: LiveInputs) -> tuple[torch.Tensor, torch.Tensor]:
        order = torch.Generator().manual_seed(1)
        parts = [(batch.x.clone(), batch.y) for batch in source.epoch(order)]
        return torch.cat([a for a, _ in parts]), torch.cat([b for _, b in parts])

    full, target = loaded(data)
    data.narrow(torch.arange(11))  # too many to be worth it
    assert torch.equal(loaded(data)[0], full)
    data.narrow(columns)
    narrow, same_target = loaded(data)
    assert torch.equal(target, same_target)
    assert torch.equal(narrow[:, columns], full[:, columns])
    assert float(narrow.abs().sum()) == pytest.approx(float(full[:, columns].abs().sum()), rel=1e-6)
    assert data.steps_per_epoch == 4
    later = [batch.x.clone() for batch in data.epoch(torch.Generator().manual_seed(1), start=3)]
    assert torch.equal(torch.cat(later), narrow[48:])


def test_settings_are_the_authors() -> None:
    tasks = table4.tasks(Scope("paper", 5, 10))
    assert len({task.name for task in tasks}) == len(tasks) == 61
    assert [task.name for task in tasks if task.alone] == ["timing"]
    found = {task.name: task.settings for task in tasks}
    last = found["example2-dpf-r9"]
    assert (last.epochs, last.cycles, last.seed) == (6000, 1, 14)
    assert last.batch_size == 1024
    problem = Problem.of(replace(last, num_train=2048, num_test=10))
    assert [tuple(p.shape) for p in problem.network.parameters()][::2] == [
        (6, 2000),
        (4, 6),
        (3, 4),
        (1, 3),
    ]
    config = method_of(last, problem).config
    assert (config.lr, config.weight_decay, config.spike_threshold) == (0.01, 5e-4, 1e-2)
    assert (config.spike_decay, config.prune_threshold) == (4.0, 1e-2)
    spikes = [task.settings.spike_decay for task in tasks[:3]]
    assert spikes == [1e-2, 1e-2, 5e-2]  # DFP: the authors', but for Example 3
    cycles = {
        method: [found[f"example{n}-{method}-r0"].cycles for n in (1, 2, 3)] for method in METHODS
    }
    assert cycles == {"dfp": [6, 1, 6], "dpf": [1, 1, 1]}
    assert [found[f"example{n}-dpf-r0"].spike_decay for n in (1, 2, 3)] == [1.0, 4.0, 0.2]
    assert [found[f"example{n}-dpf-r0"].warmup_epochs for n in (1, 2, 3)] == [50, 200, 50]
    assert [found[f"example{n}-dpf-r0"].epochs for n in (1, 2, 3)] == [3000, 6000, 3000]
    assert found["example2-dfp-r0"].rounds == ((150, 3), (1000, 1))
    assert found["example2-dpf-r0"].rounds == ((1000, 3), (3000, 1))
    assert {one.candidates for name, one in found.items() if name != "timing"} == {8}
    assert (config.noise_scale, config.temperature) == (1.0, None)
    assert (config.betas, config.tau_lr, config.decay_biases) == ((0.1, 1.0), 0.1, True)
    steps = problem.steps
    assert 399 < config.warmup * steps < 400  # 200 epochs of 2 batches
    small = table4.tasks(Scope("small", 0, 2))
    assert [task.name for task in small] == ["example1-dfp-r0", "example1-dfp-r1", "timing"]
    assert (small[0].settings.epochs, small[0].settings.cycles) == (500, 1)


def test_rows_of_earlier_versions_are_found(tmp_path: Path) -> None:
    """The settings of a row as version 0.1.0 first wrote them."""
    earlier = {
        "example": 1,
        "method": "dfp",
        "repeat": 0,
        "seed": 0,
        "epochs": 3000,
        "cycles": 6,
        "warmup_epochs": 50,
        "spike_decay": 0.01,
        "prune_threshold": 0.001,
        "candidates": 8,
        "rounds": [[150, 3], [500, 1]],
        "batch_size": 1024,
        "num_train": 10000,
        "num_test": 1000,
        "num_features": 1000,
        "kind": "timing",
        "epochs_before": 150,
        "epochs_timed": 50,
    }
    *_, task = table4.tasks(Scope("paper"))
    (tmp_path / "rows").mkdir()
    stored = {"task": "timing", "settings": earlier, "row": {"ratio": 2.0}}
    (tmp_path / "rows" / "timing.json").write_text(json.dumps(stored))
    assert task.found(tmp_path) == {"ratio": 2.0}


def test_timing_measures_both(watch: Watch) -> None:
    about = TimingSettings.of(1, "dfp", 0, seed=0)
    row = timing.carry_out(replace(about, **TINY, epochs_before=6, epochs_timed=2), watch)
    assert row["seconds_per_epoch"] > 0
    assert row["ratio"] == row["seconds_per_epoch_dense"] / row["seconds_per_epoch"]
    assert "alternating epochs" in timing.describe(row)


def row_of(example: int, repeat: int, value: float, fdr: float = 0.0) -> dict[str, Any]:
    metric = "accuracy" if example == 3 else "mse"
    scores = {metric: value, f"{metric}_cycle": value, f"{metric}_ensemble": value + 0.1}
    selected = [1, 2, 3, 4, 5][: 4 if example == 3 else 5]
    return {
        "example": example,
        "method": "dfp",
        "repeat": repeat,
        **scores,
        "fdr": fdr,
        "fndr": 0.0,
        "miss_rate": 0.0,
        "selected": selected,
        "num_selected": len(selected),
        "nnz": 40,
        "epochs": 3000,
        "seconds": 60.0,
    }


def concluded(rows: dict[str, Any], scale: str) -> Outcome:
    return table4.conclude(Finished("cvadam2023/table4", Scope(scale), Path(), [], rows))


def test_verdicts() -> None:
    rows = [row_of(1, 0, 1.2), row_of(1, 1, 1.3, fdr=0.2), row_of(3, 0, 0.93), row_of(3, 1, 0.94)]
    named = {f"example{row['example']}-dfp-r{row['repeat']}": row for row in rows}
    found = concluded(named, "paper")
    assert [(verdict.name, verdict.ok) for verdict in found.verdicts] == [
        ("example1-dfp: FDR = FNDR = 0 in every repeat", False),
        ("example3-dfp: FDR = FNDR = 0 in every repeat", True),
        ("example1-dfp: MSE of the last sample ≤ 1.320", True),
        ("example1-dfp: MSE of the ensemble ≤ 1.320", False),
        ("example3-dfp: accuracy of the last sample ≥ 93.50 %", True),
        ("example3-dfp: accuracy of the ensemble ≥ 93.50 %", True),
    ]
    assert found.verdicts[0].text == "1 of 2 repeats; not in repeat 1"
    assert found.verdicts[2].text == "1.250 ± 0.050"
    text = "\n".join(p if isinstance(p, str) else p.to_markdown() for p in found.parts)
    assert "| Example 1, DFP | 2 | 1.250 ± 0.050 |" in text
    assert "| Example 3, DFP | 1 | 94.00 % | 1, 2, 3, 4 |" in text
    line = found.values["lines"][1]
    assert line["paper"] == {"accuracy": 0.947, "fdr": 0.0, "fndr": 0.0, "num_selected": 4}
    assert line["accuracy"] == pytest.approx(0.935, rel=1e-12)
    assert len(concluded(named, "small").verdicts) == 2
    rows[0]["mse"] = None  # what a file holds of a NaN
    assert not concluded(named, "paper").verdicts[2].ok


def test_a_chain_that_leaves_the_numbers_is_told() -> None:
    about = tiny(1, "dfp", epochs=6, cycles=2)
    problem = Problem.of(about)
    problem.y[0] = float("nan")
    with pytest.raises(NonFinite):
        chain_of(about, problem).run()
