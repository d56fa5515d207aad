"""The plain Flower commands that `serve` and `join` stand for, and the app folder that they run."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import ConfigError
from ...wire.files import atomic
from .keys import make_loopback_keys, node_keys
from .preflight import check_certificates

LOOPBACK = "127.0.0.1"
CONNECTION = "fedsparsify"  # the SuperLink's name in Flower's own config


@dataclass(frozen=True)
class Keys:
    """Where a server's certificate and its nodes' public keys lie, by the names that `fedsparsify keys` gives them."""

    folder: Path

    def check(self) -> None:
        """Refuse a folder in which something is missing, or has expired."""
        for name in ("ca.crt", "server.crt", "server.key"):
            if not (self.folder / name).exists():
                raise ConfigError(f"{self.folder} holds no {name}. Make it with `fedsparsify keys {self.folder}`.")
        if not self.nodes:
            raise ConfigError(f"{self.folder} holds no node's public key (node-I.pub).")
        for name in ("ca.crt", "server.crt"):
            check_certificates(self.folder / name, "Nodes would refuse the server: make a new certificate.")

    @property
    def nodes(self) -> list[Path]:
        """The public keys of the nodes that may join."""
        return [key.path for key in node_keys(self.folder)]


@dataclass(frozen=True)
class Link:
    """A SuperLink on loopback, and the proxy through which nodes reach it.

    Everyone who reaches the SuperLink itself may register nodes and run apps on this machine: it is never given
    another address. Without keys what nodes send is readable, and anyone may join.
    """

    host: str  # where the proxy listens
    port: int
    superlink_port: int
    keys: Keys | None
    home: Path  # of Flower's own files
    simulated: int = 0  # nodes of Flower's simulation engine, in the place of real ones
    body_bytes: int = 2 << 30  # the longest body that a node may send

    @property
    def address(self) -> str:
        """The SuperLink's."""
        return f"{LOOPBACK}:{self.superlink_port}"

    @property
    def public_address(self) -> str:
        """Where this machine reaches the proxy."""
        host = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(self.host, self.host)
        return f"{host}:{self.port}"

    @property
    def certificates(self) -> Path:
        """Those of the SuperLink: nodes see the ones in `keys`, which need not name a loopback address."""
        return self.home / "loopback"

    def superlink(self) -> list[str]:
        """Start the SuperLink."""
        command = ["flower-superlink", "--host", LOOPBACK, "--port", str(self.superlink_port)]
        command += ["--database", str(self.home / "superlink.db"), "--disable-runtime-dependency-installation"]
        if self.keys is None:
            return [*command, "--insecure", *(["--simulation"] if self.simulated else [])]
        folder = self.certificates
        command += ["--ssl-ca-certfile", str(folder / "ca.crt"), "--ssl-certfile", str(folder / "server.crt")]
        return [*command, "--ssl-keyfile", str(folder / "server.key"), "--enable-supernode-auth"]

    def proxy(self) -> list[str]:
        """Start the proxy."""
        command = [sys.executable, "-m", "fedsparsify.federation.flower.proxy", "--host", self.host]
        command += ["--port", str(self.port), "--superlink-port", str(self.superlink_port)]
        command += ["--body-bytes", str(self.body_bytes)]
        if self.keys is None:
            return command
        return [*command, "--superlink-ca", str(self.certificates / "ca.crt"), "--keys", str(self.keys.folder)]

    def register(self) -> list[list[str]]:
        """Admit every node whose public key is there."""
        return [["flwr", "supernode", "register", str(key), CONNECTION] for key in self.keys.nodes] if self.keys else []

    def run(self, app: Path) -> list[str]:
        """Run our app."""
        command = ["flwr", "run", str(app), CONNECTION, "--stream"]
        nodes = f"num-supernodes={self.simulated} client-resources-num-cpus=1"
        return [*command, "--federation-config", nodes] if self.simulated else command

    def write_connection(self) -> None:
        """Flower's config file, how `flwr` reaches the SuperLink, and the SuperLink's certificates."""
        if self.keys:
            make_loopback_keys(self.certificates)
        ca = None if self.keys is None else json.dumps(str(self.certificates.resolve() / "ca.crt"))
        security = "insecure = true" if ca is None else f"root-certificates = {ca}"
        where = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{self.address}"\n'
        self.home.mkdir(parents=True, exist_ok=True)
        with atomic(self.home / "config.toml") as file:
            file.write(f"{where}{security}\n".encode())


def last_superlink_port(home: Path) -> int | None:
    """The port that the SuperLink had when it was last started there.

    It is used again: what is left of a SuperLink that was killed hears of its end there, or is found at it.
    """
    try:
        told = tomllib.loads((home / "config.toml").read_text())
        return int(told["superlink"][CONNECTION]["address"].rpartition(":")[2])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def supernode(
    superlink: str, ca: Path | None, key: Path | None, port: int, settings: Mapping[str, str | int]
) -> list[str]:
    """Start a SuperNode; without a CA's certificate, unsecured."""
    command = ["flower-supernode", "--superlink", superlink, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--insecure"] if ca is None else ["--root-certificates", str(ca)]
    command += ["--auth-supernode-private-key", str(key)] if key else []
    config = " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
    return [*command, "--node-config", config] if config else command


def write_app(folder: Path, settings: Mapping[str, str | int | float | bool]) -> None:
    """The folder that `flwr run` takes: nothing but names and settings, as the code is this package."""
    values = "\n".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in settings.items())
    text = f"""[project]
name = "fedsparsify-run"
version = "1.0.0"
description = "A fedsparsify run over Flower"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedsparsify"

[tool.flwr.app.components]
serverapp = "fedsparsify.federation.flower.server_app:app"
clientapp = "fedsparsify.federation.flower.client_app:app"

[tool.flwr.app.config]
{values}
"""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic(folder / "pyproject.toml") as file:
        file.write(text.encode())


def environment_variables(home: Path | None) -> dict[str, str]:
    """What Flower's commands are run with: this Python's own scripts, no telemetry, and quick polls where it allows."""
    bin = str(Path(sys.executable).parent)
    ours = {
        "PATH": os.pathsep.join([bin, os.environ.get("PATH", "")]),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    }
    return os.environ | ours | ({"FLWR_HOME": str(home)} if home else {})


def shown(command: Sequence[str]) -> str:
    """A command as it is typed in a shell."""
    return shlex.join(command)
