"""The face to Hugging Face's ``Trainer``: one callback with swaps, the KL and their state.

Needs ``pip install 'gossamer[hf]'``.
"""

from __future__ import annotations

import inspect
import json
from importlib.util import find_spec
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gossamer.core.schedule import Schedule
from gossamer.errors import CheckpointError, InvalidValue, MissingDependency
from gossamer.files import write_whole
from gossamer.inference import ELBO, Subspace
from gossamer.inference.carried import Carried, require_state
from gossamer.nn import scale_parameters, sparse_layers

_IS_HERE = find_spec("transformers") is not None

if not TYPE_CHECKING and _IS_HERE:
    from transformers.trainer_callback import ExportableState, TrainerCallback
else:

    class TrainerCallback:
        """What the Trainer calls."""

    class ExportableState:
        """Whose ``state()`` the Trainer saves."""


__all__ = ["SubspaceCallback", "guard_saves"]

REFUSAL = (
    "the weights were converted by Gossamer. Convert a fresh network as the saved one was and "
    "load model.safetensors with safetensors.torch.load_model, or save_pretrained "
    "gossamer.to_deterministic(model)"
)
"""What ``from_pretrained`` says of a folder with the weights of a converted model."""


class SubspaceCallback(TrainerCallback, ExportableState):
    """Swaps the support of a Trainer's model, and adds the KL to what it minimises.

    The loss stays the Trainer's own: the mean negative log-likelihood. At the start of every
    optimiser step the callback adds the gradient of kl_weight · temperature · KL / num_data, once,
    whatever ``gradient_accumulation_steps`` is. Steps are optimiser steps. The state is in
    ``trainer_state.json``: a run that is killed and resumed ends with the same bits.

    Args:
        num_data: Number of training examples, or of tokens where the loss is a mean over tokens.
            Required for a Bayesian model.
        kl_weight: As in ``gossamer.ELBO``.
        temperature: As in ``gossamer.ELBO``.
        **settings: Of ``gossamer.Subspace``; ``total_steps`` is the Trainer's unless given.

    Attributes:
        elbo: The objective that the KL comes from; ``None`` before the run, or without a posterior.
    """

    def __init__(
        self,
        num_data: int | None = None,
        *,
        kl_weight: float | Schedule = 1.0,
        temperature: float = 1.0,
        **settings: Any,
    ) -> None:
        if not _IS_HERE:
            raise MissingDependency(
                "transformers", None, "is needed for gossamer.hf", "pip install 'gossamer[hf]'"
            )
        self._carried = Carried(settings)
        self._num_data = num_data
        self._kl_weight, self._temperature = kl_weight, temperature
        self.elbo: ELBO | None = None
        self.is_rebuilt = False

    @property
    def subspace(self) -> Subspace | None:
        """The ``gossamer.Subspace`` of the run; ``None`` before it."""
        return self._carried.subspace

    def on_init_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Mark what the Trainer will save."""
        guard_saves(model)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any, optimizer: Any, **_: Any
    ) -> None:
        """Build subspace and objective, or go on where the checkpoint was written."""
        if self.is_rebuilt:
            raise InvalidValue(
                "restore_callback_states_from_checkpoint",
                True,
                "builds callbacks anew, without the settings of SubspaceCallback",
                "leave it off: its state is found without it",
            )
        saved = _saved_state(state)
        require_state(saved, state.global_step)
        self.elbo = self._objective(args, model)
        objectives = [] if self.elbo is None else [self.elbo]
        total = self._carried.settings.get("total_steps") or state.max_steps
        self._carried.begin(model, [optimizer], total, objectives, saved)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The gradient of the KL, once per optimiser step."""
        if self.elbo is not None:
            self.elbo(torch.zeros(())).backward()  # type: ignore[no-untyped-call]

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count an optimiser step; swap if one is due."""
        self._carried.require_begun().step()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """The pieces of the objective beside the Trainer's loss.

        Callbacks are asked in order: reporters before this one do not see them.
        """
        if logs is not None and "loss" in logs and self.elbo is not None and self.elbo.parts:
            parts = self.elbo.parts
            pieces = {"kl": float(parts.kl), "kl_weight": parts.kl_weight}
            logs.update(pieces)
            if state.log_history:  # where the Trainer has already put a copy
                state.log_history[-1].update(pieces)

    def state(self) -> dict[str, Any]:
        """For ``trainer_state.json``."""
        state = self._carried.state_dict()
        if state:
            generator = state["subspace"]["generator"]
            state["subspace"]["generator"] = bytes(generator.tolist()).hex()
        return {"args": {}, "attributes": {"is_rebuilt": True}, "gossamer": state}

    def _objective(self, args: Any, model: nn.Module) -> ELBO | None:
        if not scale_parameters(model):
            return None
        if self._num_data is None:
            raise InvalidValue(
                "num_data",
                None,
                "is needed: without it the KL of the weights would be left out",
                "SubspaceCallback(num_data=len(train_set))",
            )
        if getattr(args, "fp16", False):
            raise InvalidValue(
                "fp16",
                True,
                "scales the loss, but not the gradient of the KL",
                "use bf16=True, or float32",
            )
        if getattr(args, "gradient_accumulation_steps", 1) > 1:
            _require_mean(model)
        return ELBO(model, self._num_data, kl_weight=self._kl_weight, temperature=self._temperature)


def _require_mean(model: Any) -> None:
    """Raise where the Trainer would add the means of micro-batches up instead of averaging them.

    It leaves the division to models that take keywords, of whose losses some do not divide.
    """
    takes = getattr(model, "accepts_loss_kwargs", None)
    forward = inspect.signature(model.forward).parameters.values()
    if takes is None:
        takes = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in forward)
    loss = getattr(model, "loss_function", None)
    divides = callable(loss) and "num_items_in_batch" in inspect.signature(loss).parameters
    if takes and not divides:
        raise InvalidValue(
            "gradient_accumulation_steps",
            None,
            f"would make the loss of {type(model).__name__} a sum over micro-batches, beside which "
            "the KL counts too little",
            "set model.accepts_loss_kwargs = False before the Trainer is built",
        )


def _saved_state(state: Any) -> dict[str, Any] | None:
    """What the checkpoint that ``state`` was read from holds of the callback."""
    held = (state.stateful_callbacks or {}).get("SubspaceCallback", {})
    if isinstance(held, list):
        raise CheckpointError(
            "checkpoint", None, "has the state of several SubspaceCallbacks", "use one per Trainer"
        )
    saved: dict[str, Any] = held.get("gossamer") or {}
    if not saved:
        return None
    subspace = dict(saved["subspace"])
    generator = bytearray.fromhex(subspace["generator"])
    subspace["generator"] = torch.frombuffer(generator, dtype=torch.uint8)
    return {**saved, "subspace": subspace}


def guard_saves(model: Any) -> None:
    """Let ``from_pretrained`` refuse what ``model.save_pretrained`` writes while it is converted.

    Without it the layers' vectors are unknown names to ``from_pretrained``, which then draws fresh
    weights and says so in a log line only. ``SubspaceCallback`` calls this itself.

    Args:
        model: A ``PreTrainedModel``; one of another class has no such folder and stays as it is.
    """
    if hasattr(model, "save_pretrained"):
        # A bound method: copies of the model, such as to_deterministic's, get one of their own.
        model.save_pretrained = MethodType(save_pretrained, model)


def save_pretrained(model: Any, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
    """``model.save_pretrained``, and a config that names the way where weights are converted."""
    outcome = type(model).save_pretrained(model, save_directory, *args, **kwargs)
    path = Path(save_directory) / "config.json"
    if path.is_file() and sparse_layers(model):
        config = json.loads(path.read_text(encoding="utf-8"))
        # transformers takes it for the file of the weights, and quotes it where it is none.
        config["transformers_weights"] = REFUSAL
        text = json.dumps(config, indent=2, sort_keys=True) + "\n"
        write_whole(path, text.encode())
    return outcome
