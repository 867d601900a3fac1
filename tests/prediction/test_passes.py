"""Samples that share passes: the same numbers as one by one, or the same law; and who may not."""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import nn

import gossamer as gs
from cases.zoo import BACKENDS, MODELS, TwoNames, convnet, ids, mlp
from gossamer.nn import NeedsOwnPass, base, sampling_together
from gossamer.ops import fold_seed
from gossamer.prediction import NoiseDraws, Posterior
from gossamer.prediction.passes import (
    MEETING_ROWS,
    PASS_ROWS,
    ROW_BLOCK,
    SHARED_IMAGES,
    SHARED_ROWS,
    Passes,
    passes_of,
)

every_model = pytest.mark.parametrize("case", MODELS, ids=ids(MODELS))
every_engine = pytest.mark.parametrize("engine", BACKENDS)


def passes(model: nn.Module, num_samples: int, noise: str, seed: int = 3) -> Passes:
    return Passes(NoiseDraws(model.eval()), num_samples, noise, seed)


def count_passes(model: nn.Module) -> list[int]:
    """Rows of each forward pass."""
    rows: list[int] = []
    model.register_forward_pre_hook(lambda m, args: rows.append(args[0].shape[0]))
    return rows


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


class TestWeightNoise:
    @every_engine
    @every_model
    @pytest.mark.parametrize("num_rows", [1, 2])
    def test_the_same_numbers_as_one_by_one(self, case, engine, num_rows):
        torch.manual_seed(0)
        bnn = gs.to_bayesian(case.build().double(), 0.3, posterior_std=0.3, backend=engine).eval()
        x = case.input()[:num_rows]
        x = x.double() if x.is_floating_point() else x
        got = passes(bnn, 19, "weight").outputs(x, 0)
        for s in range(19):
            with gs.sampling(bnn, seed=fold_seed(3, s)):
                torch.testing.assert_close(got[s], bnn(x), rtol=1e-10, atol=1e-10)

    @pytest.mark.parametrize(
        ("build", "shape", "most"), [(mlp, (6,), SHARED_ROWS), (convnet, (1, 6, 6), SHARED_IMAGES)]
    )
    def test_small_blocks_share_and_large_ones_do_not(self, build, shape, most):
        bnn = gs.to_bayesian(build(), 0.3)
        rows = count_passes(bnn)
        passes(bnn, 20, "weight").outputs(torch.randn(1, *shape), 0)
        assert rows == [20]
        rows.clear()
        passes(bnn, 3, "weight").outputs(torch.randn(most // 8 + 1, *shape), 0)
        assert rows == [most // 8 + 1] * 3

    @pytest.mark.parametrize(("side", "expected"), [(128, [8, 8, 1]), (64, [17])])
    def test_large_images_take_several_passes_of_one_draw(self, side, expected, monkeypatch):
        bnn = gs.to_bayesian(nn.Conv2d(1, 2, 3).double(), 0.3, posterior_std=0.3).eval()
        x = torch.randn(17, 1, side, side).double()
        rows, draws, original = count_passes(bnn), [], base.draw
        monkeypatch.setattr(base, "draw", lambda *args: draws.append(1) or original(*args))
        got = passes(bnn, 2, "weight").outputs(x, 0)
        assert rows == expected * 2
        assert len(draws) == 2
        for s in range(2):
            with gs.sampling(bnn, seed=fold_seed(3, s)):
                torch.testing.assert_close(got[s], bnn(x), rtol=1e-10, atol=1e-10)

    @pytest.mark.parametrize(
        ("x", "expected"),
        [
            (torch.zeros(256, 5), [256]),
            (torch.zeros(4, 2**18), [4]),
            (torch.zeros(16, 2**17), [8, 8]),
            (torch.zeros(256, 2, 4), [256]),
            (torch.zeros(256, 3, 32, 32), [32] * 8),
            (torch.zeros(256, 1024, dtype=torch.int64), [128, 128]),
        ],
        ids=["vectors", "few wide ones", "wide", "small images", "images", "tokens"],
    )
    def test_how_rows_are_cut(self, x, expected):
        assert [len(part) for part in passes_of(x, rows_meet=False)] == expected

    def test_rows_that_meet_are_not_cut_finer(self):
        """Statistics over the rows of a pass need many of them, in moments too."""
        torch.manual_seed(0)
        bnn = gs.to_bayesian(
            nn.Sequential(
                nn.BatchNorm2d(1, track_running_stats=False),
                nn.AdaptiveAvgPool2d(2),
                nn.Flatten(),
                nn.Linear(4, 3),
            ),
            posterior_std=1e-6,
        ).eval()
        x = torch.randn(40, 1, 128, 128) * torch.arange(40).view(-1, 1, 1, 1)
        rows = count_passes(bnn)
        sampled = gs.predict(bnn, x, 1)
        assert rows == [40]
        moments = gs.predict_moments(bnn, x)
        torch.testing.assert_close(moments.probs, sampled.probs, rtol=1e-3, atol=1e-4)
        assert [len(p) for p in passes_of(torch.zeros(MEETING_ROWS + 1, 9), rows_meet=True)] == [
            MEETING_ROWS,
            1,
        ]

    def test_one_row_is_not_copied(self):
        bnn = gs.to_bayesian(convnet(), 0.3)
        strides = []
        bnn.register_forward_pre_hook(lambda m, args: strides.append(args[0].stride(0)))
        passes(bnn, 5, "weight").outputs(torch.randn(1, 1, 6, 6), 0)
        assert strides == [0]


class TestLocalNoise:
    def test_one_pass_for_all_samples(self):
        bnn = gs.to_bayesian(mlp(), 0.3)
        rows = count_passes(bnn)
        assert passes(bnn, 40, "local").outputs(torch.randn(4, 6), 0).shape == (40, 4, 3)
        assert rows == [160]
        rows.clear()
        passes(bnn, 100, "local").outputs(torch.randn(100, 6), 0)
        assert rows == [1000] * 10

    def test_a_sample_per_pass_is_the_context_by_hand(self):
        bnn = gs.to_bayesian(convnet(), 0.3, posterior_std=0.3)
        x = torch.randn(SHARED_IMAGES, 1, 6, 6)
        got = passes(bnn, 2, "local").outputs(x, 5)
        for s in range(2):
            with gs.sampling(bnn, seed=fold_seed(3, s, 5), noise="local"):
                assert torch.equal(got[s], bnn(x))

    def test_the_parts_of_a_sample_have_noise_of_their_own(self):
        torch.manual_seed(0)
        bnn = gs.to_bayesian(nn.Conv2d(1, 1, 1), posterior_std=0.5)
        x = torch.ones(16, 1, 256, 128)
        got = passes(bnn, 1, "local").outputs(x, 0)[0]
        first, second = got[:8].flatten(), got[8:].flatten()
        assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 4 / 8**0.5 / 256

    def test_samples_and_rows_are_independent(self):
        """Correlations of equal rows, over samples and within them, are those of chance."""
        torch.manual_seed(0)
        bnn = gs.to_bayesian(nn.Linear(6, 1), posterior_std=0.5)
        x = torch.randn(1, 6).expand(2, 6)
        outputs = passes(bnn, 4000, "local").outputs(x, 0).squeeze(-1)
        pairs = {
            "rows of a sample": (outputs[:, 0], outputs[:, 1]),
            "neighbouring samples": (outputs[:-1, 0], outputs[1:, 0]),
            "passes": (outputs[: -PASS_ROWS // 2, 0], outputs[PASS_ROWS // 2 :, 0]),
        }
        for name, (one, two) in pairs.items():
            assert stats.pearsonr(one.numpy(), two.numpy()).pvalue > 1e-3, name

    @every_engine
    def test_the_law_of_one_by_one(self, engine):
        torch.manual_seed(0)
        bnn = gs.to_bayesian(mlp(), 0.3, posterior_std=0.4, backend=engine)
        x = torch.randn(1, 6)
        together = passes(bnn, 2000, "local").outputs(x, 0)
        alone = passes(bnn, 2000, "local", seed=8)
        alone.may_share = False
        for one, two in zip(together.unbind(-1), alone.outputs(x, 0).unbind(-1), strict=True):
            assert stats.ks_2samp(one.flatten().numpy(), two.flatten().numpy()).pvalue > 1e-3

    def test_more_samples_leave_the_first_ones(self):
        """To rounding: a product of other size may sum in another order."""
        bnn, x = gs.to_bayesian(mlp(), 0.3, posterior_std=0.3), torch.randn(5, 6)
        few, many = (passes(bnn, n, "local").outputs(x, 0) for n in (7, 200))
        torch.testing.assert_close(few, many[:7], rtol=1e-5, atol=1e-6)

    def test_shared_weights_draw_one_theta_per_sample(self):
        """Local noise between two uses would be wrong: both see the θ of their sample."""
        bnn = gs.to_bayesian(TwoNames().double(), posterior_std=0.3).eval()
        # The other layer has local noise; without it the output is a function of the shared θ.
        bnn.middle.weight_raw_std.fill_(-60.0)
        x = torch.randn(3, 6).double()
        got = passes(bnn, 5, "local").outputs(x, 2)
        for s in range(5):
            with gs.sampling(bnn, seed=fold_seed(3, s, 2)):
                torch.testing.assert_close(got[s], bnn(x), rtol=1e-10, atol=1e-10)


class Recurs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.GRU(6, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(x)[0]
        return out


class TestWhoMayNot:
    @pytest.mark.parametrize("noise", ["weight", "local"])
    def test_parents_that_read_the_weight(self, noise):
        """One dense weight cannot be that of many samples: they run in turn, each with its own."""
        bnn = gs.to_bayesian(Recurs().double(), posterior_std=0.3).eval()
        x = torch.randn(2, 3, 6).double()
        with (
            sampling_together(bnn, seeds=[1, 2], rows=4, noise=noise),
            pytest.raises(NeedsOwnPass, match="one draw for all samples"),
        ):
            bnn(torch.cat([x, x]))
        several = passes(bnn, 4, noise)
        got = several.outputs(x, 1)
        assert not several.may_share
        for s in range(4):
            seed = fold_seed(3, s) if noise == "weight" else fold_seed(3, s, 1)
            with gs.sampling(bnn, seed=seed, noise=noise):
                assert torch.equal(got[s], bnn(x))

    def test_statistics_over_rows(self):
        net = nn.Sequential(
            nn.Linear(6, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3)
        )
        bnn = gs.to_bayesian(net, posterior_std=0.3)
        rows = count_passes(bnn)
        passes(bnn, 3, "local").outputs(torch.randn(5, 6), 0)
        assert rows == [5, 5, 5]

    @pytest.mark.parametrize("num_rows", [2, 4])
    def test_reordered_axes(self, num_rows):
        """Time first, rows second: the first axis is no longer that of the samples."""

        class TimeFirst(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(6, 3)

            def forward(self, x):
                return self.layer(x.transpose(0, 1)).transpose(0, 1)

        bnn = gs.to_bayesian(TimeFirst().double(), posterior_std=0.3).eval()
        # Eight steps of time: as many as rows of all samples where num_rows is 2.
        x = torch.randn(num_rows, 8, 6).double()
        got = passes(bnn, 4, "weight").outputs(x, 0)
        for s in range(4):
            with gs.sampling(bnn, seed=fold_seed(3, s)):
                torch.testing.assert_close(got[s], bnn(x), rtol=1e-10, atol=1e-10)

    def test_a_method_whose_samples_are_stored(self):
        """Samples that differ by more than noise are asked for one by one."""

        class Stored:
            max_samples = 3
            by_noise = False
            uses_seed = False

            def __init__(self) -> None:
                self.network = nn.Linear(6, 3)
                self.asked: list[int] = []

            def sample(self, index, *, seed, noise):
                self.asked.append(index)
                return gs.sampling(self.network, seed=seed, noise=noise)

        draws = Stored()
        posterior = Posterior(draws, gs.Categorical())
        x = torch.randn(2 * ROW_BLOCK + 3, 6)
        assert posterior.predict(x, 10, noise="local").samples.shape[0] == 3
        assert draws.asked == [0, 1, 2], "once for all blocks"

    def test_an_output_without_the_axis_of_rows(self):
        class Total(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(6, 3)

            def forward(self, x):
                return self.layer(x).sum(0, keepdim=True)

        bnn = gs.to_bayesian(Total(), posterior_std=0.3)
        assert passes(bnn, 4, "weight").outputs(torch.randn(5, 6), 0).shape == (4, 1, 3)
