"""The same methods and the same rounds over a network, carried by Flower: the only folder that imports `flwr`.

`server_app` and `client_app` are what a SuperLink and its SuperNodes run for `fedsparsify serve` and `join`.
`SparseStrategy` and `sparse_mod` bring a method into a Flower app of yours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .mod import sparse_mod
    from .strategy import SparseStrategy

__all__ = ["SparseStrategy", "sparse_mod"]


def __getattr__(name: str) -> Any:
    """Loaded when asked for: a client's process needs nothing of a server's."""
    if name == "SparseStrategy":
        from .strategy import SparseStrategy

        return SparseStrategy
    if name == "sparse_mod":
        from .mod import sparse_mod

        return sparse_mod
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
