"""Ways to train the clients of a round, and the rule that picks one.

| back end | trains | where |
|---|---|---|
| `native` | perceptrons without augmentation, by SGD without clipping, by compiled kernels, one thread per core | CPU |
| `sparse` | networks with convolutions, by compiled kernels; dense models by autograd; one thread per core | CPU |
| `gpu` | sequential networks of the layers that our Triton kernels have, all clients as one stack | GPU |
| `dense` | perceptrons, also with dropout and augmentation, as stacked matrix products | CPU and GPU |
| `mapped` | any module that torch.func can map, all clients as one stack | GPU |
| `threads` | any module that does not draw from torch's generator, by autograd, one thread per core | CPU |
| `one_by_one` | any module by autograd, one client after another | CPU and GPU |

The rule: the first of these, from top to bottom, that takes the network (`Backend.refusal`) and trains it as autograd
does. All but the last two compute the network in their own way, so `choose` first compares a short training of theirs
with autograd on the module itself. A back end that fails this is named in a notice, and the next one is tried.

To add one, write a class with the methods of `Backend` and put it in its place in `choose.BACKENDS`.
"""

from .base import Backend, Setup
from .choose import BACKENDS, choose

__all__ = ["BACKENDS", "Backend", "Setup", "choose"]
