"""Where a command serves what others may look at. In: `8080` or `0.0.0.0:8080`. Out: a host and a port."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from ..errors import ConfigError


@dataclass(frozen=True)
class Address:
    """Where to listen."""

    host: str
    port: int

    @classmethod
    def read(cls, text: str) -> Address:
        """`8080`, which is 127.0.0.1:8080, or `HOST:PORT`."""
        host, _, port = text.rpartition(":")
        if not port.isdecimal() or not 0 <= int(port) < 65536:
            raise ConfigError(f"an address is PORT or HOST:PORT, with a port up to 65535. Received: {text!r}.")
        return cls(host.strip("[]") or "127.0.0.1", int(port))

    def __str__(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def url(self) -> str:
        """How a browser on this machine reaches it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"
