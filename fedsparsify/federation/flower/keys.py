"""Keys and certificates for a federation: a CA of its own, the server's certificate, and a key for every node.

Good for a trial and for a consortium without a PKI; one that has it uses its own certificates.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ...errors import RunError

DAYS = 365


def make_keys(folder: Path, hosts: Sequence[str], nodes: int) -> list[Path]:
    """Make ca.crt, server.crt, server.key and, for each node, `node-I` and `node-I.pub`. Nothing is written over.

    The CA's own key is used once and not kept: nobody can make another certificate that the nodes would trust.
    """
    if (folder / "server.key").exists():
        raise RunError(f"{folder} already holds keys. Choose another folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        ca_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
        ca = _certificate("fedsparsify CA", ca_key, None, ca_key, [])
        server = _certificate(hosts[0], server_key, ca.subject, ca_key, hosts)
        made = [
            _write(folder / "ca.crt", ca.public_bytes(Encoding.PEM)),
            _write(folder / "server.crt", server.public_bytes(Encoding.PEM)),
            _write(folder / "server.key", _private(server_key, PrivateFormat.PKCS8), secret=True),
        ]
        for number in range(nodes):
            key = ec.generate_private_key(ec.SECP384R1())
            public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
            made.append(_write(folder / f"node-{number}", _private(key, PrivateFormat.OpenSSH), secret=True))
            made.append(_write(folder / f"node-{number}.pub", public + f" node-{number}\n".encode()))
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror}.") from error
    return made


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
    make_keys(folder, ["127.0.0.1", "localhost"], 0)


def _good(certificate: Path) -> bool:
    """Whether a certificate is there, and good for another month."""
    try:
        ends = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    except (FileNotFoundError, ValueError):
        return False
    return ends - datetime.datetime.now(datetime.UTC) > datetime.timedelta(days=30)


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name | None,
    signer: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    now = datetime.datetime.now(datetime.UTC)
    authority = issuer is None
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(
            x509.KeyUsage(not authority, False, False, False, False, authority, authority, False, False), critical=True
        )
    )
    if not authority:
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(signer, hashes.SHA384())


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private(key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> bytes:
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def _write(path: Path, data: bytes, secret: bool = False) -> Path:
    """Write a file; a secret one is never readable by others, not even for a moment."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    return path
