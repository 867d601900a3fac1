"""The Lightning callback: its hooks by themselves, and in the real Trainer (``make faces``)."""

from __future__ import annotations

import csv
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import gossamer as gs
import gossamer.lightning as face
from gossamer.errors import CheckpointError, InvalidValue, MissingDependency
from gossamer.nn import at_mean, sparse_layers

ROWS, BATCH, EPOCHS, ACCUMULATE, EVERY = 70, 10, 4, 2, 3
STEPS = 16  # of each epoch's seven batches the last is a step by itself


def network() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3))
    return gs.to_bayesian(net, sparsity=0.6)


def rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 8, generator=generator)
    return TensorDataset(x, torch.randint(3, (ROWS,), generator=generator))


# ----- hooks alone -----


class Holder(nn.Module):
    """What a LightningModule is to the callback."""

    def __init__(self):
        super().__init__()
        self.net = network()
        self.elbo = gs.ELBO(self.net, num_data=ROWS, kl_weight=gs.linear_warmup(10))


@pytest.fixture
def installed(monkeypatch):
    """As if the package were there."""
    monkeypatch.setattr(face, "Callback", type("Callback", (), {}))


def fake_trainer(module, steps=20, **changes):
    opt = torch.optim.Adam(gs.parameter_groups(module, lr=1e-2))
    values = {"optimizers": [opt], "global_step": 0, "ckpt_path": None, "is_last_batch": False}
    values["loggers"] = []
    return SimpleNamespace(**{**values, "estimated_stepping_batches": steps, **changes})


def begun(module, trainer, state=None, **settings):
    callback = face.SubspaceCallback(update_every=2, **settings)
    if state is not None:
        callback.load_state_dict(state)
    callback.on_fit_start(trainer, module)
    callback.on_train_start(trainer, module)
    return callback


def micro_batch(callback, trainer, module, number):
    """One micro-batch; every second one is a step, as Lightning would do it."""
    callback.on_train_batch_start(trainer, module, None, number)
    (module.elbo(module.net(torch.randn(4, 8)).square().mean()) / 2).backward()
    if number % 2 == 1:
        trainer.optimizers[0].step()
        trainer.optimizers[0].zero_grad()
        trainer.global_step += 1
    callback.on_train_batch_end(trainer, module, None, None, number)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(face, "Callback", object)
    with pytest.raises(MissingDependency, match=r"pip install 'gossamer\[lightning\]'"):
        face.SubspaceCallback()


@pytest.mark.usefixtures("installed")
def test_micro_batches_are_no_steps():
    module = Holder().train()
    trainer = fake_trainer(module)
    callback = begun(module, trainer)
    weights = []
    for number in range(8):
        weights.append(module.elbo.kl_weight)
        micro_batch(callback, trainer, module, number)
    assert callback.subspace.steps == 4
    assert weights == [0.0, 0.0, 0.1, 0.1, 0.2, 0.2, pytest.approx(0.3), pytest.approx(0.3)]


@pytest.mark.usefixtures("installed")
def test_the_trainers_loggers_get_every_swap():
    class Logger:
        def __init__(self):
            self.got = []

        def log_metrics(self, metrics, step=None):
            self.got.append((step, metrics))

    module, loggers = Holder().train(), [Logger(), Logger()]
    trainer = fake_trainer(module, loggers=loggers)
    callback = begun(module, trainer)
    moved = []
    for number in range(12):
        before = {n: set(m.indices.tolist()) for n, m in sparse_layers(module).items()}
        micro_batch(callback, trainer, module, number)
        after = {n: set(m.indices.tolist()) for n, m in sparse_layers(module).items()}
        if after != before:
            moved.append(
                (callback.subspace.steps - 1, sum(len(before[n] - after[n]) for n in after))
            )
    assert len(moved) >= 2
    for logger in loggers:
        assert logger.got == [
            (step, {"swap/removed": count, "swap/added": count}) for step, count in moved
        ]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("saved_after", [3, 4])
def test_hooks_go_on_where_they_were_saved(saved_after):
    ends = []
    for broken in (False, True):
        module = Holder().train()
        trainer = fake_trainer(module)
        callback = begun(module, trainer)
        torch.manual_seed(3)
        for number in range(16):
            if broken and number == 2 * saved_after:
                state, parts = callback.state_dict(), module.state_dict()
                optimizer = trainer.optimizers[0].state_dict()
                module = Holder().train()
                module.load_state_dict(parts)
                trainer = fake_trainer(module, ckpt_path="some", global_step=saved_after)
                torch.manual_seed(99)
                callback = begun(module, trainer, state)
                trainer.optimizers[0].load_state_dict(optimizer)
            micro_batch(callback, trainer, module, number)
        ends.append((module.state_dict(), callback.subspace.steps))
    assert ends[0][1] == ends[1][1] == 8
    for name, value in ends[0][0].items():
        assert torch.equal(value, ends[1][0][name]), name


@pytest.mark.usefixtures("installed")
def test_what_a_callback_cannot_do_is_refused():
    module = Holder()
    with pytest.raises(InvalidValue, match=r"addition = grad_mean: needs passes of its own"):
        face.SubspaceCallback(addition="grad_mean")
    with pytest.raises(InvalidValue, match=r"total_steps = unlimited: .*max_steps"):
        begun(module, fake_trainer(module, steps=float("inf")))
    with pytest.raises(CheckpointError, match="has no state of SubspaceCallback"):
        begun(module, fake_trainer(module, ckpt_path="old.ckpt"))
    trainer = fake_trainer(module)
    callback = begun(module, trainer)
    trainer.global_step = 2
    with pytest.raises(InvalidValue, match=r"optimizer steps in one batch = 2: .*training_step"):
        callback.on_train_batch_end(trainer, module, None, None, 0)


@pytest.mark.usefixtures("installed")
def test_a_checkpoint_of_another_script_is_refused():
    module = Holder()
    state = begun(module, fake_trainer(module)).state_dict()
    other = Holder()
    del other.elbo
    with pytest.raises(CheckpointError, match=r"1 ELBO: does not fit a script with 0"):
        begun(other, fake_trainer(other, ckpt_path="x"), state)


# ----- the real Trainer -----


class Resumable:
    """Batches in order, which can be saved within an epoch."""

    def __init__(self):
        self.batches, self.start, self.at = list(DataLoader(rows(), BATCH)), 0, 0

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        start, self.start = self.start, 0
        for number in range(start, len(self.batches)):
            self.at = number + 1
            yield self.batches[number]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.start = state["at"] % len(self.batches)


def fit(folder, *, loader, resume=None, every=None, quiet=False):
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Plain(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()
            self.elbo = gs.ELBO(self.net, num_data=ROWS, kl_weight=gs.linear_warmup(12))
            self.seen = []

        def training_step(self, batch, _):
            self.seen.append(self.elbo.kl_weight)
            return self.elbo(F.cross_entropy(self.net(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.Adam(gs.parameter_groups(self.net, lr=1e-2))

    module = Plain()
    torch.manual_seed(5)
    callback = face.SubspaceCallback(update_every=EVERY)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accumulate_grad_batches=ACCUMULATE,
        callbacks=[callback, ModelCheckpoint(folder, every_n_train_steps=every, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    with at_mean(module.net) if quiet else nullcontext():
        trainer.fit(module, loader, ckpt_path=resume)
    return module, callback, trainer


REAL = [
    pytest.mark.faces,
    pytest.mark.filterwarnings("ignore"),  # Lightning's own
]


def in_the_trainer(marked):
    for mark in REAL:
        marked = mark(marked)
    return marked


@in_the_trainer
@pytest.mark.parametrize("case", ["shuffled, between epochs", "in order, within epochs"])
def test_lightning_resumes_bit_for_bit(tmp_path, case):
    shuffled = case.startswith("shuffled")

    def loader():
        return DataLoader(rows(), BATCH, shuffle=True) if shuffled else Resumable()

    every = None if shuffled else 5
    straight, callback, trainer = fit(tmp_path / "one", loader=loader(), every=every)
    assert callback.subspace.steps == trainer.global_step == STEPS, "not the 28 micro-batches"
    assert straight.seen[:8] == [0, 0, 1 / 12, 1 / 12, 2 / 12, 2 / 12, 3 / 12, 4 / 12]
    found = sorted((tmp_path / "one").iterdir())
    assert len(found) >= 3
    for path in found[:2]:
        again, callback, _ = fit(tmp_path / path.stem, loader=loader(), every=every, resume=path)
        assert callback.subspace.steps == STEPS
        for name, value in straight.state_dict().items():
            assert torch.equal(value, again.state_dict()[name]), (path, name)


@in_the_trainer
def test_lightnings_own_logger_has_swaps_beside_its_metrics(tmp_path):
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch.loggers import CSVLogger

    class Plain(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, _):
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(gs.parameter_groups(self.net, lr=1e-2))

    trainer = lightning.Trainer(
        max_epochs=2,
        log_every_n_steps=1,
        callbacks=[face.SubspaceCallback(update_every=EVERY)],
        logger=CSVLogger(tmp_path),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(Plain(), DataLoader(rows(), BATCH))
    with open(tmp_path / "lightning_logs" / "version_0" / "metrics.csv", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    losses = [int(line["step"]) for line in lines if line["loss"]]
    swaps = [int(line["step"]) for line in lines if line["swap/removed"]]
    assert losses == list(range(14))
    assert swaps[:2] == [EVERY - 1, 2 * EVERY - 1], "after the third step, whose number is 2"


@in_the_trainer
def test_lightning_is_the_loop_of_ones_own(tmp_path):
    """The same steps written by hand, without noise, give the same bits."""
    module, callback, _ = fit(tmp_path, loader=Resumable(), quiet=True)
    net = network()
    opt = torch.optim.Adam(gs.parameter_groups(net, lr=1e-2))
    elbo = gs.ELBO(net, num_data=ROWS, kl_weight=gs.linear_warmup(12))
    subspace = gs.Subspace(net, opt, total_steps=STEPS, update_every=EVERY)
    elbo.count_by(subspace)
    for number in range(EPOCHS * 7):
        x, y = Resumable().batches[number % 7]
        with at_mean(net):
            (elbo(F.cross_entropy(net(x), y)) / ACCUMULATE).backward()
        if number % 7 in (1, 3, 5, 6):
            opt.step()
            opt.zero_grad()
            subspace.step()
    assert callback.subspace.steps == subspace.steps == STEPS
    for name, value in net.state_dict().items():
        assert torch.equal(value, module.net.state_dict()[name]), name


@in_the_trainer
def test_lightning_with_several_processes_is_refused(tmp_path):
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    pytest.importorskip("lightning")
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        with pytest.raises(InvalidValue, match=r"group: is needed: .*has 2 processes"):
            fit(tmp_path, loader=Resumable())
    finally:
        distributed.destroy_process_group()
