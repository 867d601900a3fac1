"""Hooks of a model through its conversions: those of others go along, its own stand once."""

from __future__ import annotations

from torch import nn

from gossamer.nn.walk import begin_shared_draws, end_shared_draws, sparse_layers

_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_is_full_backward_hook",
    "_backward_pre_hooks",
)


def move_hooks(old: nn.Module, new: nn.Module) -> None:
    """Hooks go along; the dictionaries themselves move, so that their handles still remove them."""
    for hooks in _HOOKS:
        setattr(new, hooks, getattr(old, hooks))


def share_draws(model: nn.Module) -> None:
    """Let every pass of ``model`` begin with one seed for all uses of a weight that has several.

    The root alone has the hooks: an inner one would draw anew in the middle of a pass.
    """
    forget_shared_draws(model)
    if any(layer.draws_weights for layer in sparse_layers(model).values()):
        model.register_forward_pre_hook(begin_shared_draws)
        model.register_forward_hook(end_shared_draws)


def forget_shared_draws(model: nn.Module) -> None:
    """Take the hooks of shared weights off, wherever a converted part was nested."""
    for module in model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key, hook in list(hooks.items()):
                if hook in (begin_shared_draws, end_shared_draws):
                    del hooks[key]
