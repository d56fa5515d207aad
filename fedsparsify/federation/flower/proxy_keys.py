"""The keys and the certificate that the proxy uses, taken anew from their folder whenever it changes.

In: the folder. Out: a TLS context for nodes, and the signatures of the nodes that may join.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from ...errors import FedSparsifyError
from .keys import revoked_keys
from .registration import folder_state
from .signatures import Signatures, public_keys


class KeyFiles:
    """The files of a folder of keys. Where new ones cannot be used, the ones before stay in use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state = self._files()
        self._public = public_keys(folder)
        self.tls = server_tls(folder / "server.crt", folder / "server.key")
        self.signatures = Signatures(self._public)

    def changed(self) -> list[str]:
        """Take over what has changed since the last call. Returns a line per change, and per file that is unusable."""
        state = self._files()
        if state == self._state:
            return []
        lines = []
        if state[0] != self._state[0]:
            try:
                # A file that is merely gone counts until the next start: the folder may be in the middle of a copy.
                revoked = {key.public for key in revoked_keys(self._folder)}
                self._public = (self._public | public_keys(self._folder)) - revoked
                self.signatures = Signatures(self._public)
                lines.append(f"{len(self._public)} keys may join")
            except FedSparsifyError as error:
                lines.append(f"the keys stay as they were: {error}")
        if state[1] != self._state[1]:
            try:
                self.tls = server_tls(self._folder / "server.crt", self._folder / "server.key")
                lines.append("nodes are shown the new server.crt")
            except OSError as error:  # two files that do not fit, as between two renames
                lines.append(f"nodes are shown the server.crt of before: {error}")
        self._state = state
        return lines

    def _files(self) -> tuple[object, object]:
        pair = []
        for name in ("server.crt", "server.key"):
            try:
                facts = (self._folder / name).stat()
            except OSError:
                continue
            pair.append((name, facts.st_mtime_ns, facts.st_ino))
        return folder_state(self._folder), pair


def server_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    """What nodes are shown."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    tls.set_alpn_protocols(["http/1.1"])
    return tls
