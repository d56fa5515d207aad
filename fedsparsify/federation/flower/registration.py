"""Which nodes a SuperLink admits, kept equal to a folder of keys while the SuperLink runs.

In: the folder. Out: nodes that are registered and unregistered through the control API, and a line on each change.
Unregistering is for good: Flower keeps the key in its database and refuses it from then on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from ...errors import FedSparsifyError, RunError
from ...text import plain
from .keys import REVOKED, node_keys, revoked_keys

GONE = "unregistered"  # a node's status in Flower's words


class Registration:
    """The nodes of the SuperLink at `address`, whose certificate `ca` vouches for."""

    def __init__(self, folder: Path, address: str, ca: Path) -> None:
        self._folder, self._address, self._ca = folder, address, ca
        self._seen = folder_state(folder)

    def follow(self) -> list[str]:
        """Update if the folder has changed since the last call. Returns lines for the operator."""
        state = folder_state(self._folder)
        if state == self._seen:
            return []
        self._seen = state
        try:
            return self.update()
        except FedSparsifyError as error:  # such as a file that is half written
            return [f"The keys cannot be taken over: {error}"]

    def update(self) -> list[str]:
        """Register every key of the folder, and unregister those that were revoked. Returns lines for the operator.

        A key whose file is merely gone stays registered, and the proxy keeps it out: it may come back.
        """
        mine = {key.public: key.name for key in node_keys(self._folder)}
        revoked = {key.public: key.name for key in revoked_keys(self._folder)}
        lines = []
        with self._client() as client:
            found = {node.public_key: node for node in client.ListNodes(ListNodesRequest()).nodes_info}
            for public, name in mine.items():
                if public not in found:
                    client.RegisterNode(RegisterNodeRequest(public_key=public, name=name))
                    lines.append(f"{name} may join.")
                elif found[public].status == GONE:
                    lines.append(f"{name} cannot join: its key was unregistered in this run. Give it a new key.")
            for public, name in revoked.items():
                if public in found and found[public].status != GONE:
                    client.UnregisterNode(UnregisterNodeRequest(node_id=found[public].node_id))
                    lines.append(f"{name} was revoked: it is unregistered.")
        return lines

    @contextmanager
    def _client(self) -> Iterator[ControlHttpClient]:
        versions = RuntimeVersionHttpInterceptor(component_name="fedsparsify serve")
        client = ControlHttpClient.from_server_address(
            server_address=self._address, insecure=False, root_certificates=str(self._ca), interceptors=[versions]
        )
        try:
            yield client
        except httpx.HTTPError as error:
            said = error.response.text if isinstance(error, httpx.HTTPStatusError) else str(error)
            raise RunError(f"the SuperLink does not take the nodes' keys: {plain(said, 300)}") from error
        finally:
            client.close()


def folder_state(folder: Path) -> frozenset[tuple[str, int, int]]:
    """Names, times and sizes of a folder's public keys: what changes when a key is added or revoked."""
    found = set()
    for path in (*folder.glob("*.pub"), *(folder / REVOKED).glob("*.pub")):
        try:
            facts = path.stat()
        except OSError:
            continue  # it is being moved
        found.add((str(path), facts.st_mtime_ns, facts.st_size))
    return frozenset(found)
