"""docs/integrations.md runs as it stands; the trainers of others under ``make faces``."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import gossamer as gs
from documents.pages import run, snippets

PAGE = "integrations.md"
faces = pytest.mark.faces
quiet = pytest.mark.filterwarnings("ignore")  # the frameworks' own


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3))


def rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 8, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())


def test_every_block_is_run_here():
    """A new section needs a test of its own."""
    own = ("Lightning", "Hugging Face Trainer", "Accelerate", "TensorBoard and others")
    assert sum(len(snippets(PAGE, under)) for under in own) == len(snippets(PAGE))


def test_trackers(tmp_path):
    """The snippet, with a writer that keeps what it gets."""

    class Writer:
        def __init__(self, folder):
            self.folder, self.names = folder, set()

        def add_scalar(self, name, value, step):
            self.names.add(name)

        def close(self):
            pass

    data = rows().tensors
    code = snippets(PAGE, "TensorBoard and others")
    imports = "from torch.utils.tensorboard import SummaryWriter\n"
    assert imports in code[0]
    names = {"SummaryWriter": Writer, "x": data[0], "y": data[1], "net": network()}
    names = run([code[0].replace(imports, ""), *code[1:]], names, PAGE)
    assert {"train/nll", "epoch/nll", "val/nll", "network/nnz"} <= names["writer"].names


@faces
@quiet
def test_the_same_with_the_real_writer(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.chdir(tmp_path)
    data = rows().tensors
    run(
        snippets(PAGE, "TensorBoard and others"),
        {"x": data[0], "y": data[1], "net": network()},
        PAGE,
    )
    assert list((tmp_path / "runs" / "mine").glob("events.out.tfevents.*"))


@faces
@quiet
def test_lightning(tmp_path, monkeypatch):
    pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)  # its logs
    names = run(snippets(PAGE, "Lightning"), {}, PAGE)
    train_set = rows()
    module = names["Classifier"](network(), len(train_set))
    trainer = names["trainer"]
    trainer.fit(module, DataLoader(train_set, 8))
    # Ten epochs of eight batches, four of which are a step.
    assert trainer.callbacks[0].subspace.steps == module.elbo.calls // 4 == 20
    assert gs.summary(module.net).nnz == round(0.05 * (8 * 12 + 12 * 3))


@faces
@quiet
def test_hugging_face(tmp_path):
    transformers = pytest.importorskip("transformers")

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, x, labels):
            logits = self.net(x)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    args = transformers.TrainingArguments(
        str(tmp_path), max_steps=6, report_to="none", disable_tqdm=True, use_cpu=True
    )
    train_set = [{"x": x, "labels": int(y)} for x, y in rows()]
    names = {"gs": gs, "torch": torch, "Trainer": transformers.Trainer, "args": args}
    names.update(model=Model(), train_set=train_set)
    names = run(snippets(PAGE, "Hugging Face Trainer"), names, PAGE)
    names["trainer"].train()
    (callback,) = (
        each
        for each in names["trainer"].callback_handler.callbacks
        if isinstance(each, names["SubspaceCallback"])
    )
    assert callback.subspace.steps == callback.elbo.calls == 6


@faces
@quiet
def test_accelerate():
    accelerate = pytest.importorskip("accelerate")
    train_set = rows()
    bnn = gs.to_bayesian(network(), sparsity=0.5)
    names = {
        "gs": gs,
        "F": F,
        "accelerator": accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2),
        "bnn": bnn,
        "opt": torch.optim.Adam(gs.parameter_groups(bnn, lr=1e-2)),
        "loader": DataLoader(train_set, 8),
        "train_set": train_set,
        "steps": 4,
    }
    names = run(snippets(PAGE, "Accelerate"), names, PAGE)
    assert names["subspace"].steps == 4
    assert names["elbo"].calls == 8
