"""Building methods: names, numbers and presets."""

from __future__ import annotations

import math

import pytest

import gossamer as gs
from gossamer.errors import InvalidValue, UnknownName
from gossamer.inference import METHODS, method_entry, resolve_config
from reference.method_runs import build, has, network, run

every_method = pytest.mark.parametrize("name", METHODS)
PRESETS = [(name, preset) for name, entry in METHODS.items() for preset in entry.presets]


@every_method
def test_unknown_names_are_refused(name):
    with pytest.raises(UnknownName, match=f"setting of {name} = learning_rate"):
        build(name, learning_rate=0.1)
    with pytest.raises(UnknownName, match=f"preset of {name} = fast"):
        build(name, preset="fast")
    with pytest.raises(UnknownName, match="likelihood = normal"):
        build(name, likelihood="normal")


def test_an_unknown_method():
    with pytest.raises(UnknownName, match=r"method = sgvb: .*ssvi"):
        gs.build("sgvb", network(), num_data=10, total_steps=10)


@every_method
@pytest.mark.parametrize("wrong", [0, -1])
def test_bad_counts(name, wrong):
    with pytest.raises(InvalidValue, match=f"num_data = {wrong}"):
        build(name, num_data=wrong)
    with pytest.raises(InvalidValue, match=f"total_steps = {wrong}"):
        build(name, total_steps=wrong)


@pytest.mark.parametrize("wrong", [1.0, -0.1, 0.999, math.nan])
@pytest.mark.parametrize("name", [n for n in METHODS if has(n, "sparsity")])
def test_bad_sparsity(name, wrong):
    with pytest.raises(InvalidValue, match="sparsity"):
        build(name, sparsity=wrong)


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_every_preset_builds_and_steps(name, preset):
    assert "default" in METHODS[name].presets
    settings = {"sparsity": 0.3} if has(name, "sparsity") else {}
    method = build(name, preset=preset, **settings)
    config = resolve_config(name, preset, **settings)
    for key, value in METHODS[name].presets[preset].items():
        assert getattr(config, key) == value
    assert all(math.isfinite(info.loss) for info in run(method, 3))


def test_settings_win_over_the_preset():
    config = resolve_config("ssvi", "paper", lr=0.5)
    assert config.lr == 0.5
    assert config.momentum == 0.9
    assert config.optimizer == "sgd"
    assert method_entry("ssvi") is METHODS["ssvi"]


@every_method
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("optimizer", "lbfgs"),
        ("lr_schedule", "linear"),
        ("lr", -1.0),
        ("weight_decay", -1.0),
        ("clip_norm", -1.0),
        ("momentum", -0.5),
        ("kl_warmup", 1.5),
        ("kl_weight", -0.1),
        ("temperature", -1.0),
        ("prior_std", 0.0),
        ("posterior_std", -0.1),
        ("initial_mean_std", -0.1),
        ("backend", "cuda"),
        ("sparsity_distribution", "random"),
        ("removal", "large"),
        ("addition", "large"),
        ("sigma_init", "large"),
        ("num_draws", 0),
        ("swap_fraction", 2.0),
        ("end_fraction", -1.0),
        ("update_every", 0),
    ],
)
def test_bad_settings_are_refused_by_name(name, setting, value):
    """One line that names the setting, whichever method has it, at building."""
    if not has(name, setting):
        with pytest.raises(UnknownName, match=setting):
            build(name, **{setting: value})
        return
    extra = {"optimizer": "sgd"} if setting == "momentum" else {}
    with pytest.raises((InvalidValue, UnknownName)) as caught:
        build(name, **{setting: value}, **extra)
    assert "\n" not in str(caught.value)
    assert setting in str(caught.value) or setting.partition("_")[2] in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "value", "rule"),
    [
        ("lr", "fast", "a number"),
        ("lr", True, "a number"),
        ("sparsity", None, "a number"),
        ("update_every", 2.5, "a whole number or none"),
        ("decay_biases", 1, "true or false"),
        ("removal", 3, "a text"),
        ("posterior_std", (0.1,), "two numbers"),
        ("posterior_std", ("a", "b"), "two numbers"),
        ("optimizer", "lbfgs", "'adam' or 'sgd'"),
    ],
)
def test_settings_have_types(setting, value, rule):
    """As they may come from a command line or a JSON file."""
    with pytest.raises(InvalidValue, match=rf"{setting} of ssvi.*: must be .*{rule}"):
        resolve_config("ssvi", **{setting: value})


def test_whole_numbers_and_lists_serve():
    config = resolve_config("ssvi", lr=1, posterior_std=[0.1, 0.05], std_lr=None, update_every=7)
    assert config.lr == 1
    assert config.posterior_std == (0.1, 0.05)
    assert config.std_lr is None
    assert config.update_every == 7
