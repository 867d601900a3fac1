from __future__ import annotations

from dataclasses import fields

import pytest

from gossamer.cli.settings import apply, options_of, settings_of, value_of
from gossamer.errors import GossamerError, InvalidValue
from gossamer.inference import METHODS, resolve_config
from gossamer.train import RunConfig


@pytest.mark.parametrize("method", METHODS)
def test_every_setting_is_explained_and_has_its_default(method: str) -> None:
    config = resolve_config(method)
    found = settings_of(method)
    assert list(found) == [field.name for field in fields(config)]
    for name, setting in found.items():
        assert setting.default == getattr(config, name)
        assert setting.text, name
        assert "``" not in setting.text


def test_a_setting_goes_where_it_belongs() -> None:
    texts = ["hidden=[8]", "sparsity=0.9", "kl_weight = 0.3", "epochs=7", "lr=0.1", "ood=a,b"]
    texts += ["method_options.swap_fraction=0.2", "model_options.activation=tanh", "data=a=b.csv"]
    config = apply(RunConfig(), texts)
    assert config.method_options == {"sparsity": 0.9, "kl_weight": 0.3, "swap_fraction": 0.2}
    assert config.model_options == {"hidden": [8], "activation": "tanh"}
    assert (config.epochs, config.lr, config.ood, config.data) == (7, 0.1, ("a", "b"), "a=b.csv")


def test_method_and_model_are_known_before_their_settings() -> None:
    config = apply(RunConfig(), ["prior_std=0.1", "method=dense_vi"])
    assert config.method_options == {"prior_std": 0.1}
    with pytest.raises(InvalidValue, match="no setting of the run, of rigl or of mlp"):
        apply(RunConfig(), ["prior_std=0.1", "method=rigl"])


def test_later_texts_win() -> None:
    assert apply(RunConfig(), ["sparsity=0.9", "sparsity=0.5"]).method_options["sparsity"] == 0.5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("epochs", "--set = epochs: must read key=value"),
        ("=3", "must read key=value"),
        ("kl_wieght=3", "did you mean kl_weight?"),
        ("method_options.nothing=3", "setting = nothing: is no setting"),
        ("input_shape=[3]", "is no setting"),
        ("kl_weight=much", "must be a number or none; see gossamer methods ssvi"),
        ("epochs=0", "epochs = 0: must be a whole number ≥ 1"),
        ("epochs.x=0", "epochs has no parts"),
        ("method=magic", f"choose one of: {', '.join(sorted(METHODS))}"),
        ("model=magic", "model = magic: is not known"),
    ],
)
def test_a_wrong_setting_is_named(text: str, said: str) -> None:
    with pytest.raises(GossamerError) as caught:
        apply(RunConfig(), [text])
    assert said in str(caught.value)


def test_options_of_a_model_leave_out_what_the_data_decide() -> None:
    assert list(options_of("mlp")) == ["hidden", "activation", "columns", "skip"]
    assert not {"in_channels", "num_classes", "image_size"} & set(options_of("resnet18"))


@pytest.mark.parametrize("method", METHODS)
def test_a_setting_is_found_as_resolving_would_find_it(method: str) -> None:
    for preset in METHODS[method].presets:
        config = RunConfig(method=method, preset=preset, method_options={"lr": 0.125})
        resolved = resolve_config(method, preset, lr=0.125)
        for field in fields(resolved):
            assert value_of(config, field.name) == getattr(resolved, field.name)
    assert value_of(RunConfig(method=method), "nothing") is None


def test_texts_for_a_model_have_the_types_of_its_options() -> None:
    texts = ["model=wide_resnet", "depth=16", "dropout=0.1"]
    assert apply(RunConfig(), texts).model_options == {"depth": 16, "dropout": 0.1}
    with pytest.raises(InvalidValue, match="depth = deep: must be a whole number"):
        apply(RunConfig(), ["model=wide_resnet", "depth=deep"])
    assert apply(RunConfig(), ["activation=none"]).model_options == {"activation": "none"}
