"""Ways to train the clients of a round, and the rule that picks one.

| back end | trains | where |
|---|---|---|
| `native` | perceptrons by compiled kernels, one thread per core | CPU |
| `gpu` | sequential networks by Triton kernels, all clients as one stack | GPU |
| `dense` | perceptrons as stacked matrix products | CPU and GPU |
| `mapped` | any module that torch.func can map, as one stack | GPU |
| `threads` | any module by autograd, one thread per core | CPU |
| `one_by_one` | any module by autograd, one client after another | CPU and GPU |

`choose` asks them in this order. All but the last two compute the network in their own way, so each of those proves
itself first: `check` compares a short training with autograd on the module itself.
"""

from .base import Backend, Setup
from .choose import BACKENDS, choose

__all__ = ["BACKENDS", "Backend", "Setup", "choose"]
