from __future__ import annotations

import pytest

from gossamer.report.keys import (
    DETECTION,
    ShiftKey,
    detection_words,
    numeric,
    ood_label,
    ood_suffixes,
    shift_key,
    shift_values,
)


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("shift_rotation_3_accuracy", ShiftKey("rotation", 3, "accuracy")),
        ("shift_motion_blur_1_nll_local", ShiftKey("motion_blur", 1, "nll_local")),
        ("shift_accuracy", None),
        ("shift_accuracy_local", None),
        ("accuracy", None),
        ("old_shift_noise_3_nll", None),
    ],
)
def test_the_parts_of_a_key(key, parts):
    assert shift_key(key) == parts


def test_severities_begin_with_the_part_as_it_is():
    metrics = {"nll": 0.2, "shift_nll": 9.0, "shift_noise_2_nll": 0.4, "shift_noise_1_nll": 0.3}
    assert shift_values(metrics) == {"nll": {"noise": {0: 0.2, 1: 0.3, 2: 0.4}}}
    assert shift_values({"shift_blur_1_ece": 0.5}) == {"ece": {"blur": {1: 0.5}}}
    assert shift_values({"accuracy": 1.0}) == {}


def test_foreign_sets_are_found_by_their_keys():
    keys = ["auroc", "auroc_energy", "aupr", "auroc_svhn", "auroc_energy_svhn", "aupr_svhn"]
    assert ood_suffixes([*keys, "aupr_local", "aupr_svhn_local"]) == [
        "",
        "_svhn",
        "_local",
        "_svhn_local",
    ]
    assert ood_suffixes(["auroc", "accuracy"]) == [""]
    assert ood_suffixes(["accuracy"]) == []


@pytest.mark.parametrize(
    ("suffix", "sets", "label"),
    [
        ("", ("mnist", "svhn"), "mnist"),
        ("_svhn", ("mnist", "svhn"), "svhn"),
        ("_local", ("mnist",), "mnist, local noise"),
        ("_svhn_local", ("mnist",), "svhn, local noise"),
        ("", ("/data/not_mnist.npz",), "not_mnist.npz"),
        ("_../other.npz", ("mnist",), "other.npz"),
        ("", (), "out of distribution"),
    ],
)
def test_what_a_foreign_set_is_called(suffix, sets, label):
    assert ood_label(suffix, sets) == label


def test_the_first_score_depends_on_the_task():
    assert detection_words("auroc", tasks=["classification", None]) == "by entropy"
    assert detection_words("auroc", tasks=["regression"]) == "by predicted std"
    both = detection_words("auroc", tasks=["classification", "regression"])
    assert both == "by entropy or by predicted std"
    assert all(detection_words(k, tasks=[]) == DETECTION[k] for k in DETECTION if k != "auroc")


def test_numbers_only():
    assert numeric({"a": 1, "b": True, "c": "x", "d": None, "e": 0.5}) == {"a": 1.0, "e": 0.5}
