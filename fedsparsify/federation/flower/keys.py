"""The folder of a federation's keys: a CA, the server's certificate, and one public key per node.

In: the folder, and what to change in it. Out: its files. Good for a trial and for a consortium without a PKI; one that
has it puts its own files into the folder, and uses `add` and `revoke` alone.

    ca.crt      the CA's certificate, or several: what nodes trust
    ca.key      the CA's key; `renew` needs it, and nothing else
    server.crt  server.key
    NAME.pub    a node that may join; NAME is its private key, which belongs to the node
    revoked/    the public keys of nodes that must never join again, under any name
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PrivateFormat,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
    ssh_key_fingerprint,
)

from ...errors import ConfigError, RunError
from ...text import plain
from ...wire.files import atomic
from .certificates import (
    DAYS,
    authority,
    hosts_of,
    issuer_among,
    new_key,
    pem,
    private_pem,
    read_private_pem,
    server_certificate,
    valid,
)

REVOKED = "revoked"
CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)  # that Flower takes


@dataclass(frozen=True)
class NodeKey:
    """A node's public key: its name, its file, and the key as nodes send it."""

    name: str
    path: Path
    public: bytes


def read_node_key(path: Path) -> NodeKey:
    """A node's public key, in OpenSSH's format."""
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path} is not a node's public key: {error}") from error
    if not (isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, CURVES)):
        raise ConfigError(f"{path} must be an ECDSA key (ssh-keygen -t ecdsa -b 384). Received: {type(key).__name__}.")
    return NodeKey(path.stem, path, key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def revoked_keys(folder: Path) -> list[NodeKey]:
    """The keys that were revoked."""
    return [read_node_key(path) for path in sorted((folder / REVOKED).glob("*.pub"))]


def node_keys(folder: Path) -> list[NodeKey]:
    """The keys that may join: a revoked one stays out, also where a backup brought its file back."""
    revoked = {one.public for one in revoked_keys(folder)}
    return [one for one in map(read_node_key, sorted(folder.glob("*.pub"))) if one.public not in revoked]


def make_keys(
    folder: Path, hosts: Sequence[str], nodes: int, days: int = DAYS, passphrase: str = "", keep_ca: bool = True
) -> list[Path]:
    """Make the folder: ca.crt, ca.key, server.crt, server.key and, for each node, `node-I` and `node-I.pub`.

    Nothing is written over. Without `keep_ca`, nobody can make another certificate that the nodes would trust.
    """
    if (folder / "server.key").exists():
        raise RunError(f"{folder} already holds keys. Add nodes with `fedsparsify keys add`, or choose another folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        ca_key, server_key = new_key(), new_key()
        ca = authority(ca_key)
        made = [
            _write(folder / "ca.crt", pem([ca])),
            _write(folder / "server.crt", pem([server_certificate(server_key, ca, ca_key, hosts, days)])),
            _write(folder / "server.key", private_pem(server_key), secret=True),
        ]
        if keep_ca:
            made.append(_write(folder / "ca.key", private_pem(ca_key, passphrase=passphrase), secret=True))
        for number in range(nodes):
            made += _make_node(folder, f"node-{number}")
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror}.") from error
    return made


def add_nodes(folder: Path, names: Sequence[str], public: Path | None = None) -> list[Path]:
    """Let nodes join: with new keys, or one node with the `public` key of a pair that it made itself."""
    _check_folder(folder)
    given = read_node_key(public) if public else None
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name) or name == REVOKED:
            raise ConfigError(f"a node's name has letters, digits and ._- alone. Received: {plain(name)!r}.")
        taken = [folder / name, folder / f"{name}.pub", folder / REVOKED / f"{name}.pub"]
        if found := next((path for path in taken if path.exists()), None):
            raise ConfigError(f"{found} exists: a name is used once. Choose another.")
    if given and (known := next((one for one in node_keys(folder) if one.public == given.public), None)):
        raise ConfigError(f"{public} is the key of {known.name} already.")
    if given and (known := next((one for one in revoked_keys(folder) if one.public == given.public), None)):
        raise ConfigError(f"{public} was revoked, as {known.name}: a revoked key never joins again. Make a new one.")
    try:
        if public:
            return [_write(folder / f"{names[0]}.pub", public.read_bytes())]
        return [path for name in names for path in _make_node(folder, name)]
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror}.") from error


def free_names(folder: Path, count: int) -> list[str]:
    """The next names node-I, after every number that was ever used."""
    used = [path.stem for path in (*folder.glob("node-*"), *(folder / REVOKED).glob("node-*"))]
    numbers = [int(found[1]) for name in used if (found := re.fullmatch(r"node-(\d{1,9})", name))]
    first = max(numbers, default=-1) + 1
    return [f"node-{number}" for number in range(first, first + count)]


def revoke_nodes(folder: Path, names: Sequence[str]) -> list[str]:
    """Keep nodes out for good. Returns those that were revoked already."""
    _check_folder(folder)
    (folder / REVOKED).mkdir(exist_ok=True, mode=0o700)
    names = [name.removesuffix(".pub") for name in names]
    before = [name for name in names if not (folder / f"{name}.pub").exists()]
    for name in before:
        if not (folder / REVOKED / f"{name}.pub").exists():
            known = ", ".join(sorted(path.stem for path in folder.glob("*.pub"))) or "none"
            raise ConfigError(f"{folder} has no node {plain(name)!r}. It has: {known}.")
    for name in names:
        if name not in before:
            _move_to_revoked(folder, folder / f"{name}.pub")
    return before


def _move_to_revoked(folder: Path, path: Path) -> None:
    """Never over another key: that one would be free to join again."""
    for number in count(1):
        target = folder / REVOKED / (path.name if number == 1 else f"{path.stem}-{number}.pub")
        if not target.exists() or target.read_bytes() == path.read_bytes():
            path.replace(target)
            return


def renew(
    folder: Path, hosts: Sequence[str], days: int = DAYS, ca_key: Path | None = None, passphrase: str = "",
    replace_key: bool = False,
) -> x509.Certificate:  # fmt: skip
    """Replace server.crt by one of the same CA, for the same hosts unless others are given."""
    path = ca_key or folder / "ca.key"
    before, authorities = certificates_in(folder / "server.crt"), certificates_in(folder / "ca.crt")
    if not path.exists():
        raise ConfigError(
            f"there is no {path}: only the CA's key can sign. Name it with --ca-key; if it is lost, begin "
            f"a new CA with `fedsparsify keys renew {folder} --new-ca`."
        )
    signer = read_private_pem(path.read_bytes(), str(path), passphrase)
    issuer = issuer_among(authorities, signer)
    if issuer is None:
        raise ConfigError(f"{path} is not the key of a CA in {folder / 'ca.crt'}: nodes would refuse the server.")
    if not valid(issuer):
        raise ConfigError(
            f"the CA of {path} has ended. Begin a new one with `fedsparsify keys renew {folder} --new-ca`."
        )
    key_file = folder / "server.key"
    key = new_key() if replace_key else read_private_pem(key_file.read_bytes(), str(key_file))
    made = server_certificate(key, issuer, signer, hosts or hosts_of(before[0]), days)
    if replace_key:
        replace_file(key_file, private_pem(key), secret=True)
    replace_file(folder / "server.crt", pem([made]))
    return made


def begin_authority(folder: Path, passphrase: str = "") -> None:
    """A new CA beside the old one: ca.crt holds both, so that nodes that are given it trust either.

    The server's certificate stays as it is until every node has the new ca.crt; `renew` then replaces it.
    """
    authorities = certificates_in(folder / "ca.crt")
    key = new_key()
    replace_file(folder / "ca.key", private_pem(key, passphrase=passphrase), secret=True)
    replace_file(folder / "ca.crt", pem([*(one for one in authorities if valid(one)), authority(key)]))


def make_loopback_keys(folder: Path) -> None:
    """ca.crt, server.crt and server.key of a SuperLink that only this machine reaches.

    Those of an earlier start are kept: its ServerApp, which may still be there, then hears that its run is over.
    """
    try:
        if (folder / "server.key").exists() and _good(folder / "server.crt"):
            return
        for name in ("ca.crt", "server.crt", "server.key"):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror}.") from error
    make_keys(folder, ["127.0.0.1", "localhost"], 0, keep_ca=False)


def encrypted(key: Path) -> bool:
    """Whether a private key needs a passphrase."""
    return b"ENCRYPTED" in key.read_bytes()


def fingerprint(key: NodeKey) -> str:
    """A public key's fingerprint, as `ssh-keygen -l` prints it."""
    public = load_pem_public_key(key.public)
    assert isinstance(public, ec.EllipticCurvePublicKey)  # read_node_key refuses others
    return f"SHA256:{b64encode(ssh_key_fingerprint(public, SHA256())).decode().rstrip('=')}"


def replace_file(path: Path, data: bytes, secret: bool = False) -> None:
    """Replace a file as a whole; a secret one is never readable by others, not even for a moment."""
    with atomic(path) as file:
        os.fchmod(file.fileno(), 0o600 if secret else 0o644)
        file.write(data)


def _good(certificate: Path) -> bool:
    """Whether a certificate is there, and good for another month."""
    try:
        return valid(x509.load_pem_x509_certificate(certificate.read_bytes()), 30)
    except (FileNotFoundError, ValueError):
        return False


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}. Make it with `fedsparsify keys {folder}`.")


def certificates_in(path: Path) -> list[x509.Certificate]:
    """The certificates in a file, which may be a bundle."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not a certificate in PEM: {error}") from error


def certificate_ends(folder: Path) -> dict[str, float]:
    """When ca.crt and server.crt end, in Unix time; of a bundle, the last. A file that cannot be read is left out."""
    ends = {}
    for name in ("ca.crt", "server.crt"):
        with suppress(ConfigError, ValueError):
            ends[name] = max(one.not_valid_after_utc.timestamp() for one in certificates_in(folder / name))
    return ends


def _make_node(folder: Path, name: str) -> list[Path]:
    key = new_key()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return [
        _write(folder / name, private_pem(key, PrivateFormat.OpenSSH), secret=True),
        _write(folder / f"{name}.pub", public + f" {name}\n".encode()),
    ]


def _write(path: Path, data: bytes, secret: bool = False) -> Path:
    """Write a new file; a secret one is never readable by others, not even for a moment."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    return path
