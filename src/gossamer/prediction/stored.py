"""A posterior as JSON values and a table of tensors, and back: what an archive holds.

Where the values come from a file, they are of unknown origin: whatever does not fit raises.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gossamer.errors import InvalidData, InvalidValue
from gossamer.likelihoods import LIKELIHOODS, Likelihood, make_likelihood
from gossamer.models import build_model
from gossamer.nn import restore_backends
from gossamer.nn.replica import replicate
from gossamer.nn.skeleton import backends, describe, skeleton
from gossamer.prediction.draws import Centre, Draws, GaussianDraws, NoiseDraws, StoredDraws
from gossamer.prediction.finish.record import describe_finish, finish_from
from gossamer.prediction.low_rank import LowRankDraws
from gossamer.prediction.outputs import Output

if TYPE_CHECKING:
    from gossamer.prediction.posterior import Posterior

PLAIN_KEYS = {"draws", "states", "network", "likelihood"}
"""Of a posterior that is neither a mixture nor finished, and whose networks give one tensor."""


class NeedsNetwork(InvalidValue):
    """The caller has to bring the architecture."""


class Tensors:
    """Tensors of a file, each distinct one once, whatever it is called."""

    def __init__(self) -> None:
        self.found: dict[str, Tensor] = {}
        self._keys: dict[tuple[object, ...], str] = {}

    def key_of(self, tensor: Tensor) -> str:
        """The key of a tensor in the file."""
        held = tensor.detach().cpu().contiguous()
        content = held.view(-1).view(torch.uint8).numpy().data if held.numel() else b""
        mark = (held.dtype, held.shape, hashlib.sha256(content).digest())
        if mark not in self._keys:
            self._keys[mark] = str(len(self.found))
            self.found[self._keys[mark]] = held.clone()  # safetensors refuses shared memory
        return self._keys[mark]

    def keys_of(self, state: Mapping[str, Tensor]) -> dict[str, str]:
        """The keys of a state."""
        return {name: self.key_of(tensor) for name, tensor in state.items()}


def describe_posterior(posterior: Posterior, tensors: Tensors) -> dict[str, Any]:
    """All but preparation and ``about`` as JSON values; tensors go into the table.

    Raises:
        InvalidValue: Its likelihood or draws cannot be kept in a file.
    """
    from gossamer.prediction.mixing import Mixture  # which is a posterior, which saves itself

    body: dict[str, Any] = {}
    if isinstance(posterior, Mixture):
        body["members"] = [
            {**describe_posterior(member, tensors), "about": member.about}
            for member in posterior.members
        ]
        body["weights"] = posterior.weights
    else:
        body["draws"], body["states"] = _describe_draws(posterior.draws, tensors)
        body["network"] = describe(posterior.draws.network)
        body["likelihood"] = _describe_likelihood(posterior.likelihood, tensors)
        if posterior.output is not None:
            body["output"] = _describe_output(posterior.output)
    if not posterior.finish.is_plain:
        body["finish"] = describe_finish(posterior.finish, tensors.key_of)
    return body


def posterior_from(
    body: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    network: nn.Module | None,
    origin: str,
    model: Mapping[str, Any] | None = None,
) -> Posterior:
    """The posterior that ``describe_posterior`` described, with its ``about``.

    Args:
        body: JSON values.
        tensors: By their keys.
        network: The torch architecture, or ``None`` where ``about`` names it.
        origin: What messages call the file.
        model: What ``about`` of a mixture says of the architecture of its members.
    """
    from gossamer.prediction.mixing import Mixture
    from gossamer.prediction.posterior import Posterior

    about = dict(body["about"])
    model = about.get("model", model)
    finish = finish_from(body["finish"], tensors) if "finish" in body else None
    if "members" in body:
        members = [posterior_from(m, tensors, network, origin, model) for m in body["members"]]
        weights = None if body["weights"] is None else int(body["weights"])
        return Mixture(members, weights, None, about, finish)
    plain = _architecture(origin, model) if network is None else network
    template = skeleton(plain, body["network"])
    states = [{n: tensors[key] for n, key in state.items()} for state in body["states"]]
    first = replicate(template, states[-1])
    _require_whole(first)
    restore_backends(first, backends(body["network"]))
    draws = _draws_of(body["draws"], first, states, tensors)
    likelihood = _likelihood_of(body["likelihood"], tensors)
    return Posterior(draws, likelihood, None, about, finish, _output_of(body))


def _describe_draws(draws: Draws, tensors: Tensors) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """What kind they are, and the states of their networks, the latest last."""
    if isinstance(draws, NoiseDraws):
        return {"kind": "noise"}, [tensors.keys_of(draws.network.state_dict())]
    if isinstance(draws, StoredDraws):
        indices = reversed(range(draws.max_samples))
        return {"kind": "stored"}, [tensors.keys_of(draws.state(index)) for index in indices]
    if isinstance(draws, GaussianDraws):
        centres = [
            {"name": c.name, "mean": tensors.key_of(c.mean), "rho": tensors.key_of(c.rho)}
            for c in draws.centres
        ]
        # At the means: the parameters themselves hold the draw of the last training step.
        state = {**draws.network.state_dict(), **{c.name: c.mean for c in draws.centres}}
        about = {"kind": "gaussian", "alpha": draws.alpha, "centres": centres}
        return about, [tensors.keys_of(state)]
    if isinstance(draws, LowRankDraws):
        return draws.described(tensors.key_of), [tensors.keys_of(draws.state())]
    raise InvalidValue(
        "draws", type(draws).__name__, "cannot be kept in a file", "save their networks instead"
    )


def _draws_of(
    about: Mapping[str, Any],
    network: nn.Module,
    states: list[dict[str, Tensor]],
    tensors: Mapping[str, Tensor],
) -> Draws:
    makers: dict[str, Callable[[], Draws]] = {
        "noise": lambda: NoiseDraws(network),
        "stored": lambda: StoredDraws(network, states),
        "low_rank": lambda: LowRankDraws.of(about, network, tensors),
        "gaussian": lambda: GaussianDraws(
            network,
            [
                Centre(str(c["name"]), tensors[c["mean"]], tensors[c["rho"]])
                for c in about["centres"]
            ],
            float(about["alpha"]),
        ),
    }
    return makers[about["kind"]]()


def _describe_likelihood(likelihood: Likelihood, tensors: Tensors) -> dict[str, Any]:
    if type(likelihood) is not LIKELIHOODS.get(likelihood.name):
        raise InvalidValue(
            "likelihood",
            type(likelihood).__name__,
            "is not one of Gossamer's, so that a file cannot name it",
            "keep it yourself and predict with the networks",
        )
    options = likelihood.options()
    found = {
        "name": likelihood.name,
        "options": options,
        "state": tensors.keys_of(likelihood.state_dict()),
    }
    if options.get("class_dim", 1) is None:
        # Beside the options: older readers leave out what they do not know, and took axis 1.
        found["class_dim"] = options.pop("class_dim")
    return found


def _describe_output(output: Output) -> str:
    if not isinstance(output, str):
        raise InvalidValue(
            "output",
            getattr(output, "__name__", type(output).__name__),
            "is a function, which a file cannot hold",
            'give the name of a field, as output="logits"',
        )
    return output


def _output_of(body: Mapping[str, Any]) -> str | None:
    return str(body["output"]) if "output" in body else None


def _likelihood_of(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Likelihood:
    unknown = {"class_dim": None} if "class_dim" in about else {}
    likelihood = make_likelihood(str(about["name"]), **about["options"], **unknown)
    likelihood.load_state_dict({name: tensors[key] for name, key in about["state"].items()})
    return likelihood


def _architecture(origin: str, model: Mapping[str, Any] | None) -> nn.Module:
    """The torch network that a file names, without values."""
    if model is None:
        raise NeedsNetwork(
            "network",
            origin,
            "holds a network that Gossamer cannot build by itself",
            "give the torch architecture: load(path, network=...)",
        )
    with torch.device("meta"):
        return build_model(
            str(model["name"]),
            input_shape=model["input_shape"],
            output_size=model["output_size"],
            **model["options"],
        )


def _require_whole(network: nn.Module) -> None:
    for name, tensor in [*network.named_parameters(), *network.named_buffers()]:
        if tensor.is_meta:
            raise InvalidData(name, None, "is not in the file")
