from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.errors import GossamerError, InvalidValue, UnknownName
from gossamer.train.config import RunConfig


def test_the_defaults_survive_json() -> None:
    config = RunConfig()
    values = json.loads(json.dumps(config.to_json()))
    assert RunConfig.from_json(values) == config
    assert list(values) == [f.name for f in dataclasses.fields(RunConfig)]


@given(
    st.builds(
        RunConfig,
        epochs=st.integers(1, 1000),
        lr=st.none() | st.floats(1e-8, 1.0),
        seed=st.integers(0, 2**63 - 1),
        noise=st.sampled_from(["weight", "local", "both"]),
        ood=st.lists(st.text(min_size=1)).map(tuple),
        method_options=st.dictionaries(
            st.text(min_size=1), st.floats(allow_nan=False, allow_infinity=False) | st.text()
        ),
    )
)
def test_any_config_survives_json(config: RunConfig) -> None:
    assert RunConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data", ""),
        ("data", 3),
        ("data_dir", ""),
        ("task", "ranking"),
        ("model", None),
        ("model_options", [1]),
        ("method_options", {"a": {1, 2}}),
        ("method_options", {"a": float("nan")}),
        ("method_options", {1: 2}),
        ("epochs", 0),
        ("epochs", 1.0),
        ("epochs", True),
        ("batch_size", -1),
        ("lr", 0.0),
        ("lr", float("inf")),
        ("lr", "1e-3"),
        ("lr", False),
        ("seed", -1),
        ("seed", 2**63),
        ("limit_train", 0),
        ("validation_fraction", 1.0),
        ("num_samples", 0),
        ("noise", "none"),
        ("select", None),
        ("checkpoint_every", 0),
        ("keep_checkpoints", 0),
        ("ood", "notmnist"),
        ("ood", [""]),
        ("shift", "noise"),
        ("shift", [3]),
    ],
)
def test_a_value_against_its_rule_is_named_in_one_line(key: str, value: Any) -> None:
    with pytest.raises(GossamerError) as caught:
        RunConfig.from_json({key: value})
    assert caught.value.name.startswith(key) or caught.value.name == f"key of {key}"
    assert "\n" not in str(caught.value)


def test_settings_of_before_shifts_take_none() -> None:
    values = RunConfig(ood=("a",)).to_json()
    del values["shift"]
    assert RunConfig.from_json(values) == RunConfig(ood=("a",))
    assert RunConfig.from_json(values).shift == ()


def test_an_unknown_key_is_named() -> None:
    with pytest.raises(UnknownName, match="setting = epoch: is not known; choose one of: backend"):
        RunConfig.from_json({"epoch": 3})


def test_the_config_keeps_no_reference_to_what_it_was_given() -> None:
    options = {"hidden": [10]}
    config = RunConfig(model_options=options)
    options["hidden"].append(20)
    config.to_json()["model_options"]["hidden"].append(30)
    assert config.model_options == {"hidden": [10]}


def test_overrides_are_parsed_by_type() -> None:
    config = RunConfig(lr=0.5, limit_train=9).with_overrides(
        [
            "epochs=7",
            "lr=1e-2",
            "limit_train=none",
            "data=a=b.csv",
            "target = 3",
            "ood=notmnist, uniform",
            "shift=noise,blur",
            "noise=both",
            "method_options.sparsity=0.9",
            "method_options.swap.every=10",
            "method_options.removal=snr_abs",
            "method_options.flag=True",
            "method_options.empty=none",
            "model_options.hidden=[100, 50]",
        ]
    )
    assert config == RunConfig(
        epochs=7,
        lr=0.01,
        data="a=b.csv",
        target="3",
        ood=("notmnist", "uniform"),
        shift=("noise", "blur"),
        noise="both",
        method_options={
            "sparsity": 0.9,
            "swap": {"every": 10},
            "removal": "snr_abs",
            "flag": True,
            "empty": None,
        },
        model_options={"hidden": [100, 50]},
    )


def test_whole_tables_and_empty_lists_can_be_set() -> None:
    config = RunConfig(ood=("a",)).with_overrides(['method_options={"sparsity": 0.5}', "ood="])
    assert (config.method_options, config.ood) == ({"sparsity": 0.5}, ())


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("epochs", "must read key=value"),
        ("=3", "must read key=value"),
        ("epochs=ten", "epochs = ten: must be a whole number ≥ 1"),
        ("epochs=1.5", "must be a whole number ≥ 1"),
        ("epochs=some", "must be a whole number"),
        ("lr=fast", "lr = fast: must be a number > 0"),
        ("epoch=3", "setting = epoch: is not known"),
        ("epochs.x=3", "epochs has no parts"),
        ("method_options.=3", "has an empty part"),
        ("method_options=3", "must be a table"),
        ("method_options.a.b=3", "a has no parts"),
        ("method_options.x=NaN", "method_options.x = nan: must be finite"),
    ],
)
def test_a_bad_override_is_one_line(assignment: str, message: str) -> None:
    with pytest.raises((InvalidValue, UnknownName)) as caught:
        RunConfig(method_options={"a": 1}).with_overrides([assignment])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_first_difference_is_named_with_both_values() -> None:
    a = RunConfig(epochs=3, method_options={"sparsity": 0.9, "swap": {"every": 1}})
    assert a.first_difference(RunConfig.from_json(a.to_json())) is None
    assert a.first_difference(RunConfig(epochs=4)) == ("method_options.sparsity", 0.9, None)
    b = a.with_overrides(["method_options.swap.every=2"])
    assert a.first_difference(b) == ("method_options.swap.every", 1, 2)
    c = a.with_overrides(["method_options.extra=null"])
    assert a.first_difference(c) == ("method_options.extra", None, None)
