"""Calibrated posteriors: what they answer, keep in files and refuse."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.errors import CheckpointError, InvalidData, InvalidValue
from gossamer.likelihoods import Categorical, Gaussian, Poisson
from gossamer.prediction import (
    NoiseDraws,
    Posterior,
    calibrated,
    calibrated_by_scores,
    mixture,
    posterior_of,
)
from gossamer.prediction.conformal.classes import ClassCalibration, LabelScore
from gossamer.prediction.conformal.real import RealCalibration
from gossamer.prediction.conformal.scale import std_factor


def real(outputs=1) -> Posterior:
    torch.manual_seed(0)
    bnn = gs.to_bayesian(nn.Linear(3, outputs), sparsity=0.3, posterior_std=0.2)
    return Posterior(NoiseDraws(bnn), Gaussian(0.4))


def real_rows(posterior, n=60, seed=1):
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))
    mean = posterior.predict(x).mean
    y = mean + 1.5 * torch.randn(mean.shape, generator=torch.Generator().manual_seed(seed + 1))
    return x, y


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("kind", ["symmetric", "signed"])
def test_intervals_are_those_of_plain_residuals(outputs, kind) -> None:
    """The temperature scales std and mixture, and changes no interval."""
    posterior = real(outputs)
    x, y = real_rows(posterior)
    found = calibrated(posterior, (x, y), score=kind)
    plain = posterior.predict(x)
    z = (y.double() - plain.mean.double()) / plain.std.double()
    new = torch.randn(9, 3)
    before, after = posterior.predict(new), found.predict(new)
    for level in (0.5, 0.9):
        low, high = RealCalibration.of(z, kind).interval(before.mean, before.std, level)
        got = after.interval(level)
        torch.testing.assert_close(got[0], low, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(got[1], high, rtol=1e-5, atol=1e-5)
    factor = gs.tempered(posterior, (x, y)).finish.temperature
    assert found.finish.temperature == factor
    assert factor > 1.5
    torch.testing.assert_close(after.std, factor * before.std)
    assert found.finish_figures == {"temperature": factor, "calibration_rows": 60.0}
    scaled, interval = after.to_scale(5.0, 2.0), after.interval(0.8)
    torch.testing.assert_close(scaled.interval(0.8)[0], 5.0 + 2.0 * interval[0])
    torch.testing.assert_close(scaled.interval(0.8)[1], 5.0 + 2.0 * interval[1])
    median = after.quantile(0.5)
    torch.testing.assert_close(after.cdf(median.double()).mean(), torch.tensor(0.5).double(),
                               rtol=0, atol=0.02)  # fmt: skip


def test_blocks_of_rows_keep_the_calibration() -> None:
    posterior = real()
    found = calibrated(posterior, real_rows(posterior))
    x = torch.randn(1100, 3)
    low, _ = found.predict(x, keep_samples=False).interval(0.9)
    assert low.shape == (1100,)
    assert not torch.equal(low, found.finished(replace(found.finish, calibration=None))
                           .predict(x).interval(0.9)[0])  # fmt: skip


def test_scores_of_folds() -> None:
    posterior = real()
    x, _ = real_rows(posterior)
    z = 3.0 * torch.randn(40)
    found = calibrated_by_scores(posterior, z, score="signed")
    before, after = posterior.predict(x), found.predict(x)
    truth = RealCalibration.of(z, "signed").interval(before.mean, before.std, 0.9)
    torch.testing.assert_close(after.interval(0.9), truth, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(after.std, std_factor(z) * before.std)
    with pytest.raises(InvalidData, match="must fit calibration scores"):
        calibrated_by_scores(posterior, torch.randn(40, 2)).predict(x)


@pytest.mark.parametrize("case", ["symmetric", "signed", "lac", "aps", "mixture"])
def test_files_give_the_same_bits(case, tmp_path) -> None:
    x = torch.randn(50, 3)
    if case in ("lac", "aps"):
        source = Posterior(NoiseDraws(nn.Linear(3, 4)), Categorical())
        score = LabelScore(case) if case == "lac" else LabelScore(case, 0.1, 3)
        found = calibrated(source, (x, torch.arange(50) % 4), score=score)
    elif case == "mixture":
        both = mixture([real(), posterior_of(nn.Linear(3, 1), "gaussian")])
        found = calibrated(both, real_rows(both))
    else:
        source = real()
        found = calibrated(source, real_rows(source), score=case)
    path = tmp_path / "one.safetensors"
    found.save(path)
    header = path.read_bytes()
    size = int.from_bytes(header[:8], "little")
    assert json.loads(json.loads(header[8 : 8 + size])["__metadata__"]["gossamer"])["version"] == 4
    back = gs.load(path, network=nn.Linear(3, 4 if case in ("lac", "aps") else 1))
    for other in (back, found.frozen(), found.to("cpu")):
        assert other.finish_figures == found.finish_figures
        assert torch.equal(other.finish.calibration.scores, found.finish.calibration.scores)
        if case in ("lac", "aps"):
            assert other.finish.calibration.score == found.finish.calibration.score
            assert torch.equal(other.predict(x).label_set(0.9), found.predict(x).label_set(0.9))
        else:
            for a, b in zip(other.predict(x).interval(), found.predict(x).interval(), strict=True):
                assert torch.equal(a, b)


def test_files_without_calibration_keep_their_version(tmp_path) -> None:
    posterior = real()
    for number, one in ((1, posterior), (2, gs.tempered(posterior, real_rows(posterior)))):
        one.save(tmp_path / "one.safetensors")
        content = (tmp_path / "one.safetensors").read_bytes()
        assert f'\\"version\\": {number},'.encode() in content
        assert (
            gs.load(tmp_path / "one.safetensors", network=nn.Linear(3, 1)).finish.calibration
            is None
        )


def test_a_file_whose_scores_are_wrong_is_refused(tmp_path) -> None:
    posterior = real()
    finish = replace(posterior.finish, calibration=RealCalibration(-torch.ones(9).double(), True))
    posterior.finished(finish).save(tmp_path / "bad.safetensors")
    with pytest.raises((CheckpointError, InvalidData), match="must not be negative"):
        gs.load(tmp_path / "bad.safetensors", network=nn.Linear(3, 1))


def test_label_sets_of_a_posterior() -> None:
    net = nn.Linear(3, 4)
    x, y = torch.randn(80, 3), torch.arange(80) % 4
    found = calibrated(Posterior(NoiseDraws(net), Categorical()), (x[:60], y[:60]))
    probs = net(x).detach().softmax(1)
    truth = ClassCalibration.of(probs[:60], y[:60], LabelScore()).sets(probs[60:], 0.5)
    after = found.predict(x[60:])
    assert torch.equal(after.label_set(0.5, may_be_empty=True), truth)
    full = after.label_set(0.5)
    assert torch.equal(full, truth | nn.functional.one_hot(after.label, 4).bool())
    assert found.finish.temperature == 1.0
    drawn = calibrated(found, (x[:60], y[:60]), score="aps", generator=torch.Generator())
    with pytest.raises(InvalidValue, match="generator: is needed"):
        drawn.predict(x).label_set()
    assert drawn.predict(x).label_set(generator=torch.Generator()).shape == (80, 4)


def test_what_cannot_be_guaranteed_is_refused() -> None:
    posterior = real()
    x, y = real_rows(posterior)
    with pytest.raises(InvalidValue, match="needs 9 held-out rows or more, and there are 8"):
        calibrated(posterior, (x[:8], y[:8]))
    with pytest.raises(InvalidValue, match="needs 19 held-out rows"):
        calibrated(posterior, (x[:18], y[:18]), score="signed")
    with pytest.raises(InvalidValue, match=r"coverage = 0.99: needs 99 .* ask for 0.983 or less"):
        calibrated(posterior, (x, y)).predict(x).interval(0.99)
    with pytest.raises(InvalidValue, match="poisson: has no calibration"):
        calibrated(Posterior(NoiseDraws(nn.Linear(3, 1)), Poisson()), (x, y.abs().round()))
    with pytest.raises(InvalidValue, match="is for labels"):
        calibrated(posterior, (x, y), score="aps")
    with pytest.raises(InvalidValue, match="mix them first"):
        mixture([calibrated(posterior, (x, y)), posterior])
    with pytest.raises(InvalidValue, match="use predict"):
        calibrated(posterior, (x, y)).predict_moments(x)
    assert gs.tempered(calibrated(posterior, (x, y)), (x, y)).finish.calibration is None
    tokens = Posterior(NoiseDraws(nn.Linear(3, 4)), Categorical(class_dim=-1))
    with pytest.raises(InvalidData, match="not exchangeable"):
        calibrated(tokens, (torch.randn(20, 5, 3), torch.zeros(20, 5).long()))
