"""One case of a method: a straight run, predictions, and a second run that goes on half way."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

import gossamer as gs
from golden.cases import FOLDER, Case
from golden.digest import flat_digests, form
from golden.problems import MORE_ROWS, NETWORKS, ROWS, batch, unseen

Note = Callable[[str, object], dict[str, str]]
"""Writes values under a label, and returns their digests by path."""

NOISES = ("weight", "local")
BY_NOISE = ("ssvi", "dense_vi", "rigl", "sgd")
"""Methods that ``predict_moments`` takes."""

PREDICTED = (
    "probs",
    "entropy",
    "mutual_information",
    "energy",
    "confidence",
    "label",
    "mean",
    "epistemic",
    "aleatoric",
    "noise",
    "samples",
)


class SelfContradiction(AssertionError):
    """A case that does not do what it is here for, or a resumed run that is another one."""


def run_method(case: Case, backend: str, note: Note) -> None:
    """All that is recorded of a case."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {k: folder if v == FOLDER else v for k, v in case.settings.items()}
        _run(replace(case, settings=settings), backend, note)


def _run(case: Case, backend: str, note: Note) -> None:
    kind, _ = NETWORKS[case.net]
    dtype = torch.float64 if case.double else torch.float32
    method = _build(case, backend, seed=0)
    half, straight = case.steps // 2, [note("step 0", _values(method, None))]
    saved: tuple[dict[str, Any], torch.Tensor] | None = None
    for step in range(1, case.steps + 1):
        info = method.step(batch(kind, case.likelihood, step, dtype))
        straight.append(note(f"step {step}", _values(method, info)))
        if step == 1:
            note("predict after step 1", _predictions(case, method, unseen(kind, 5, dtype)))
        if step == half:
            saved = copy.deepcopy(method.state_dict()), torch.get_rng_state()
    x = unseen(kind, 20, dtype)
    note("predict", _predictions(case, method, x))
    if case.many_rows:
        note("predict 300 rows", _predictions(case, method, unseen(kind, MORE_ROWS, dtype)))
        note("predict 1 row", _predictions(case, method, x[:1], num_samples=9))
    note(f"step {case.steps}, after predictions", _values(method, None))
    moves = _moves(straight)
    if moves < case.moves:
        raise SelfContradiction(f"supports or masks changed {moves} times, not {case.moves}")
    assert saved is not None
    _go_on(case, backend, note, saved, straight)


def _build(case: Case, backend: str, seed: int) -> Any:
    torch.manual_seed(seed)
    net = NETWORKS[case.net][1]()
    if case.double:
        net = net.double()
    likelihood: Any = case.likelihood
    if case.likelihood_options:
        likelihood = getattr(gs, likelihood.title())(**case.likelihood_options)
    return gs.build(
        case.method,
        net,
        num_data=ROWS,
        total_steps=case.steps,
        likelihood=likelihood,
        backend=backend,
        **case.settings,
    )


def _go_on(
    case: Case,
    backend: str,
    note: Note,
    saved: tuple[dict[str, Any], torch.Tensor],
    straight: list[dict[str, str]],
) -> None:
    """From the state half way, in a method that began elsewhere: every step as in the first run."""
    kind, _ = NETWORKS[case.net]
    dtype = torch.float64 if case.double else torch.float32
    resumed = _build(case, backend, seed=1)
    state, generator = saved
    resumed.load_state_dict(state)
    torch.set_rng_state(generator)
    for step in range(case.steps // 2 + 1, case.steps + 1):
        info = resumed.step(batch(kind, case.likelihood, step, dtype))
        found, wanted = flat_digests(_values(resumed, info)), straight[step]
        if found != wanted:
            path = next(p for p in {**wanted, **found} if found.get(p) != wanted.get(p))
            raise SelfContradiction(
                f"resumed, step {step}: {path} is {found.get(path)}, straight {wanted.get(path)}"
            )
    note("resumed predict", _predictions(case, resumed, unseen(kind, 20, dtype)))


def _values(method: Any, info: Any) -> dict[str, object]:
    return {
        "info": info,
        "model": network_values(method.model),
        "likelihood": dict(method.likelihood.named_parameters()),
        "state": method.state_dict(),
        "generator": torch.get_rng_state(),
    }


def network_values(model: torch.nn.Module) -> dict[str, object]:
    """Parameters and buffers under their own names."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _predictions(case: Case, method: Any, x: torch.Tensor, num_samples: int = 3) -> object:
    found = {
        noise: prediction_values(gs.predict(method, x, num_samples, noise=noise, seed=5))
        for noise in NOISES
    }
    if case.method in BY_NOISE and case.moments:
        found["moments"] = prediction_values(gs.predict_moments(method, x))
    return found


def prediction_values(prediction: Any) -> dict[str, object]:
    """The tensors of a prediction, of whatever kind."""
    return {name: getattr(prediction, name) for name in PREDICTED if hasattr(prediction, name)}


def _moves(steps: list[dict[str, str]]) -> int:
    """How often a support, a mask or the number of weights changed."""
    seen = [
        {
            path: text if path.endswith("indices") or "mask" in path else form(text)
            for path, text in values.items()
            if path.startswith("model/") or "mask" in path
        }
        for values in steps
    ]
    return sum(a != b for a, b in pairwise(seen))
