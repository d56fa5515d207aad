"""What a model's file says of the state dict beyond the model's tensors; on the training side only."""

from __future__ import annotations

from torch import nn

from ..wire.state import KINDS, MOST, packed
from . import state_of


def state_facts(module: nn.Module) -> dict[str, object]:
    """Further names of a tensor, buffers of integers as the network is made with, and entries that no file can hold."""
    held = {name for group in state_of(module) for name in group}
    state = module.state_dict(keep_vars=True)
    first = {id(state[name]): name for name in reversed(state) if name in held}
    aliases, buffers, missing = {}, {}, []
    for name, value in state.items():
        if name in held:
            continue
        kind = str(getattr(value, "dtype", "")).removeprefix("torch.")
        if id(value) in first:
            aliases[name] = first[id(value)]
        elif kind in KINDS and len(data := packed(value.detach().cpu().numpy())) <= MOST:
            buffers[name] = [kind, list(value.shape), data]
        else:
            missing.append(name)
    return {"state": {"aliases": aliases, "buffers": buffers, "missing": missing}}
