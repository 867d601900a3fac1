"""The finding of docs/criteria.md on a real run: criteria 2 and 4 part by rounding only."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from gossamer.core.removal import REMOVAL
from gossamer.errors import InvalidValue
from gossamer.experiments import Finished, Scope, Watch
from gossamer.experiments.li2024ssvi.iou import (
    SwapIoU,
    conclude,
    iou_along_run,
    stages,
    tasks,
)
from gossamer.experiments.li2024ssvi.printed import PRINTED
from gossamer.experiments.li2024ssvi.removed_sets import iou_matrix
from gossamer.train import RunConfig

CONFIG = RunConfig(
    data="digits",
    limit_train=300,
    epochs=6,
    model_options={"hidden": [64]},
    method_options={"sparsity": 0.5, "update_every": 4},
)


@pytest.fixture(scope="module")
def found(watch: Watch) -> list[SwapIoU]:
    return iou_along_run(CONFIG, watch)


def test_snr_and_snr_abs_remove_the_same_set_at_every_swap(found: list[SwapIoU]) -> None:
    assert len(found) >= 4
    assert [at.exact["snr"]["snr_abs"] for at in found] == [1.0] * len(found)


def test_matrices_are_symmetric_with_ones_on_the_diagonal(found: list[SwapIoU]) -> None:
    for at in found:
        for matrix in (at.exact, at.printed):
            for a, b in product(matrix, matrix):
                assert matrix[a][b] == matrix[b][a]
                assert 0.0 <= matrix[a][b] <= 1.0
            assert all(matrix[a][a] == 1.0 for a in matrix)


def test_average_is_over_the_ten_pairs_of_the_first_five(found: list[SwapIoU]) -> None:
    names = list(REMOVAL)[:5]
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    assert len(pairs) == 10
    at = found[0]
    by_hand = sum(at.exact[a][b] for a, b in pairs) / 10
    assert at.average("exact") == pytest.approx(by_hand, abs=1e-12)


def test_stages_are_first_middle_and_last(found: list[SwapIoU]) -> None:
    chosen = stages(found)
    assert chosen["beginning"] is found[0]
    assert chosen["end"] is found[-1]
    with pytest.raises(InvalidValue, match="never swapped"):
        stages([])


def test_pooling_removes_layer_by_layer() -> None:
    """Two layers whose scales differ by 1e6: each gives up half of its own."""
    mean = torch.tensor([1.0, 2.0, 3.0, 4.0])
    layers = [(mean, torch.ones(4)), (1e-6 * mean, torch.ones(4))]
    matrix = iou_matrix(layers, 0.5, {"a": REMOVAL["mean_abs"], "b": lambda m, s: -m})
    assert matrix["a"]["b"] == 0.0
    assert matrix["a"]["a"] == 1.0


def test_printed_float32_parts_where_exact_does_not() -> None:
    """The paper's Table 7 in small: at a tiny removed fraction the printed scores are ties."""
    torch.manual_seed(0)
    mean = 0.01 * torch.randn(200_000)
    std = (0.0006 + 0.0005 * torch.randn(200_000)).abs().clamp(min=1e-8)
    exact = iou_matrix([(mean, std)], 1e-4, REMOVAL)
    printed = iou_matrix([(mean, std)], 1e-4, PRINTED)
    assert exact["snr"]["snr_abs"] == 1.0
    assert printed["snr"]["snr_abs"] < 0.3
    wide = iou_matrix([(mean.double(), std.double())], 1e-4, PRINTED)
    assert wide["snr"]["snr_abs"] == 1.0


def test_a_method_without_swaps_is_refused(watch: Watch) -> None:
    with pytest.raises(InvalidValue, match="has no support to swap"):
        iou_along_run(RunConfig(data="digits", method="sgd", limit_train=100, epochs=1), watch)


def test_it_needs_its_data(watch: Watch) -> None:
    (task,) = tasks(Scope(data_dir="/nonexistent"))
    with pytest.raises(ValueError, match="fashion_mnist"):
        task.function(task.settings, watch)


def test_the_page(tmp_path: Path, watch: Watch) -> None:
    (task,) = tasks(Scope())
    small = replace(CONFIG, seed=2)
    row = json.loads(json.dumps(task.function(small, watch)))
    again = iou_along_run(small, watch)
    assert row["stages"]["end"] == again[-1].to_json()
    assert row["swaps"][0]["snr_vs_snr_abs_printed"] == again[0].printed["snr"]["snr_abs"]
    outcome = conclude(Finished("", Scope(), tmp_path, [task], {task.name: row}))
    assert outcome.values == row
    assert len(outcome.parts) == 6
    assert outcome.parts[0].startswith(f"At the beginning: step {again[0].step}, ")
    table = outcome.parts[-1]
    cell = f"{again[-1].exact['snr']['e_abs']:.4f} / {again[-1].printed['snr']['e_abs']:.4f}"
    assert table.rows[1][table.headings.index("e_abs")] == cell
