"""The callback for transformers' Trainer: its hooks, and the real one (``make faces``)."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gossamer as gs
import gossamer.hf as face
from gossamer.errors import CheckpointError, InvalidValue, MissingDependency
from gossamer.nn import at_mean

ROWS, STEPS = 26, 8  # thirteen batches of two an epoch, four a step: the last step has one
ARGS = SimpleNamespace(fp16=False)


def network() -> nn.Module:
    torch.manual_seed(0)
    return gs.to_bayesian(nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3)), 0.6)


@pytest.fixture
def installed(monkeypatch):
    """As if the package were there."""
    monkeypatch.setattr(face, "_IS_HERE", True)


def trainer_state(**changes):
    return SimpleNamespace(
        **{"max_steps": 20, "global_step": 0, "stateful_callbacks": {}, **changes}
    )


def adam(model):
    return torch.optim.Adam(gs.parameter_groups(model, lr=1e-2))


def begun(model, opt, state, num_data=100, **settings):
    callback = face.SubspaceCallback(num_data, update_every=2, **settings)
    callback.on_train_begin(ARGS, state, None, model=model, optimizer=opt)
    return callback


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(face, "_IS_HERE", False)
    with pytest.raises(MissingDependency, match=r"pip install 'gossamer\[hf\]'"):
        face.SubspaceCallback(10)


@pytest.mark.usefixtures("installed")
def test_the_kl_comes_once_a_step_with_its_schedule():
    model = network().eval()  # as after an evaluation
    opt = adam(model)
    callback = begun(model, opt, trainer_state(), kl_weight=gs.linear_warmup(4), temperature=0.5)
    means = [p for n, p in model.named_parameters() if n.endswith("weight_mean")]
    for step in range(3):
        callback.on_step_begin(ARGS, None, None)
        wanted = torch.autograd.grad(gs.kl_divergence(model) * (step / 4 * 0.5 / 100), means)
        for parameter, gradient in zip(means, wanted, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-6, atol=0)
        logs = {"loss": 1.0}
        state = SimpleNamespace(log_history=[{"loss": 0.5}, dict(logs)])
        callback.on_log(ARGS, state, None, logs=logs)
        assert state.log_history == [{"loss": 0.5}, logs], "what the checkpoint will hold"
        assert logs["kl_weight"] == step / 4
        assert logs["kl"] == pytest.approx(gs.kl_divergence(model).item(), rel=1e-6)
        opt.zero_grad()
        callback.on_step_end(ARGS, None, None)
    assert callback.subspace.steps == 3


@pytest.mark.usefixtures("installed")
def test_hooks_go_on_where_they_were_saved():
    ends = []
    for broken in (False, True):
        model = network().train()
        opt = adam(model)
        callback = begun(model, opt, trainer_state(), addition="random")
        torch.manual_seed(3)
        for step in range(10):
            if broken and step == 5:
                noise, old = torch.get_rng_state(), opt
                held = {"SubspaceCallback": json.loads(json.dumps(callback.state()))}
                fresh = network().train()
                fresh.load_state_dict(model.state_dict())
                model, opt = fresh, adam(fresh)
                opt.load_state_dict(copy.deepcopy(old.state_dict()))
                state = trainer_state(global_step=step, stateful_callbacks=held)
                callback = begun(model, opt, state, addition="random")
                torch.set_rng_state(noise)
            callback.on_step_begin(ARGS, None, None)
            model(torch.randn(4, 8)).square().mean().backward()
            opt.step()
            opt.zero_grad()
            callback.on_step_end(ARGS, None, None)
        ends.append(model.state_dict())
    for name, value in ends[0].items():
        assert torch.equal(value, ends[1][name]), name


@pytest.mark.usefixtures("installed")
def test_what_would_be_wrong_is_refused():
    model = network()
    opt = adam(model)
    with pytest.raises(InvalidValue, match=r"num_data: is needed: .*left out"):
        begun(model, opt, trainer_state(), num_data=None)
    with pytest.raises(CheckpointError, match=r"step 7: has no state of SubspaceCallback"):
        begun(model, opt, trainer_state(global_step=7))
    callback = face.SubspaceCallback(100)
    args = SimpleNamespace(fp16=True)
    with pytest.raises(InvalidValue, match=r"fp16 = True: .*bf16"):
        callback.on_train_begin(args, trainer_state(), None, model=model, optimizer=opt)
    for name, value in callback.state()["attributes"].items():  # as the Trainer would rebuild it
        setattr(callback, name, value)
    with pytest.raises(InvalidValue, match="restore_callback_states_from_checkpoint"):
        callback.on_train_begin(ARGS, trainer_state(), None, model=model, optimizer=opt)


@pytest.mark.usefixtures("installed")
def test_a_deterministic_model_needs_no_objective():
    model = gs.to_sparse(nn.Linear(8, 4), 0.5)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    callback = begun(model, opt, trainer_state(), num_data=None)
    callback.on_step_begin(ARGS, None, None)
    assert callback.elbo is None
    assert model.weight_values.grad is None


class Keywords(nn.Module):
    """A model whose loss the Trainer takes for one that divides by the items of a step."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x, **_):
        return self.layer(x)


@pytest.mark.usefixtures("installed")
def test_losses_that_the_trainer_would_sum_are_refused():
    model = gs.to_bayesian(Keywords(), 0.5)
    args = SimpleNamespace(fp16=False, gradient_accumulation_steps=2)
    callback = face.SubspaceCallback(100)
    given = {"model": model, "optimizer": adam(model)}
    with pytest.raises(InvalidValue, match="accepts_loss_kwargs = False"):
        callback.on_train_begin(args, trainer_state(), None, **given)
    model.accepts_loss_kwargs = False
    callback.on_train_begin(args, trainer_state(), None, **given)
    assert callback.elbo is not None


class Saved(nn.Module):
    """Writes a config as ``PreTrainedModel`` does."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def save_pretrained(self, folder):
        folder.mkdir()
        (folder / "config.json").write_text('{"model_type": "mine"}', encoding="utf-8")
        return type(self.layer).__name__


def test_saves_of_a_converted_model_are_marked_and_those_of_its_way_back_not(tmp_path):
    model = gs.to_bayesian(Saved(), 0.5)
    face.guard_saves(model)
    assert model.save_pretrained(tmp_path / "a") == "BayesianLinear"
    marked = json.loads((tmp_path / "a" / "config.json").read_text(encoding="utf-8"))
    assert marked["model_type"] == "mine"
    assert "gossamer.to_deterministic" in marked["transformers_weights"]
    back = gs.to_deterministic(model)
    assert back.save_pretrained(tmp_path / "b") == "Linear"
    plain = json.loads((tmp_path / "b" / "config.json").read_text(encoding="utf-8"))
    assert plain == {"model_type": "mine"}


# ----- the real Trainer -----

real = pytest.mark.faces
quiet = pytest.mark.filterwarnings("ignore")  # the frameworks' own


def bert():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "vocab_size": 30, "num_labels": 3}
    depth = {"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 12}
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.BertConfig(**sizes, **depth, **none)
    model = gs.to_bayesian(transformers.BertForSequenceClassification(config), 0.5)
    model.accepts_loss_kwargs = False  # its loss is a mean, whatever it is told
    return model


def examples():
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(30, (ROWS, 8), generator=generator)
    labels = torch.randint(3, (ROWS,), generator=generator).tolist()
    return [{"input_ids": i, "labels": y} for i, y in zip(ids, labels, strict=True)]


def train(folder, resume=None, *, model=None, callbacks=(), opt=None, **options):
    from transformers import Trainer, TrainingArguments

    model = bert() if model is None else model
    callback = face.SubspaceCallback(ROWS, kl_weight=gs.linear_warmup(5), update_every=3)
    args = TrainingArguments(
        str(folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        **{"num_train_epochs": 2, "save_steps": 3, **options},
    )
    opt = torch.optim.AdamW(gs.parameter_groups(model, lr=1e-2)) if opt is None else opt
    trainer = Trainer(
        model,
        args,
        train_dataset=examples(),
        callbacks=[callback, *callbacks],
        optimizers=(opt, None),
    )
    trainer.train(resume_from_checkpoint=resume)
    return model, callback, trainer


@real
@quiet
def test_the_trainer_resumes_bit_for_bit_and_counts_optimiser_steps(tmp_path):
    straight, callback, trainer = train(tmp_path / "one")
    assert callback.subspace.steps == trainer.state.global_step == STEPS, "not 26 micro-batches"
    again, callback, _ = train(tmp_path / "two", str(tmp_path / "one" / "checkpoint-3"))
    assert callback.subspace.steps == STEPS
    for name, value in straight.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


@real
@quiet
def test_reporters_after_the_callback_and_the_history_get_the_kl(tmp_path):
    transformers = pytest.importorskip("transformers")

    class Reporter(transformers.TrainerCallback):
        def __init__(self):
            self.got = []

        def on_log(self, args, state, control, logs=None, **_):
            self.got.append(dict(logs))

    reporter = Reporter()
    _, _, trainer = train(tmp_path, callbacks=[reporter], logging_steps=1)
    told = [logs for logs in reporter.got if "loss" in logs]
    assert len(told) >= 3
    assert all(logs["kl"] > 0 for logs in told)
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["kl"] for entry in history] == [logs["kl"] for logs in told]


@real
@quiet
def test_accumulated_gradients_are_those_of_the_elbo(tmp_path):
    """Without noise: the mean over the eight examples of a step, and the whole KL once."""
    from transformers import TrainerCallback

    model, seen = bert(), []
    start = copy.deepcopy(model)

    class Look(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model, **_):
            seen.append([p.grad.clone() for p in model.parameters()])

    opt = torch.optim.SGD(model.parameters(), lr=0.0)
    with at_mean(model):
        train(
            tmp_path,
            model=model,
            callbacks=[Look()],
            opt=opt,
            max_steps=3,
            max_grad_norm=0.0,
            train_sampling_strategy="sequential",
            save_strategy="no",
        )
    rows = examples()
    ids = torch.stack([row["input_ids"] for row in rows])
    labels = torch.tensor([row["labels"] for row in rows])
    for step in range(3):
        part = slice(8 * step, 8 * step + 8)
        with at_mean(start):
            nll = F.cross_entropy(start(input_ids=ids[part]).logits, labels[part])
        loss = nll + step / 5 / ROWS * gs.kl_divergence(start)
        wanted = torch.autograd.grad(loss, list(start.parameters()))
        for found, gradient in zip(seen[step], wanted, strict=True):
            torch.testing.assert_close(found, gradient, rtol=1e-4, atol=1e-6)


@real
@quiet
def test_from_pretrained_never_comes_back_with_fresh_weights(tmp_path):
    model, _, trainer = train(tmp_path / "run", max_steps=3)
    trainer.save_model(str(tmp_path / "final"))
    from transformers import AutoModelForSequenceClassification, BertForSequenceClassification

    for folder in ("run/checkpoint-3", "final"):
        for cls in (AutoModelForSequenceClassification, BertForSequenceClassification):
            with pytest.raises(ValueError, match=r"converted by Gossamer.*to_deterministic"):
                cls.from_pretrained(str(tmp_path / folder))
    gs.to_deterministic(model).save_pretrained(str(tmp_path / "dense"))
    back = BertForSequenceClassification.from_pretrained(str(tmp_path / "dense"))
    ids = torch.stack([row["input_ids"] for row in examples()])
    torch.testing.assert_close(back.eval()(ids).logits, model.eval()(ids).logits)
    from safetensors.torch import load_model

    fresh = bert()
    load_model(fresh, str(tmp_path / "final" / "model.safetensors"))
    assert torch.equal(fresh.eval()(ids).logits, model(ids).logits)
