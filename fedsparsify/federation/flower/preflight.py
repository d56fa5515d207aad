"""What can be known before a SuperNode is started: whether the certificates and its key will do.

A SuperNode says "check your network connection" where a certificate has expired, and tries for ever with a key that the
server does not know. In: what `join` was given. Out: nothing; or an error that names the cause.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
from base64 import b64encode
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

from ...errors import ConfigError
from ...text import plain

SECONDS = 10.0
EXPIRED, NOT_YET, OTHER_NAME = 10, 9, (62, 64)  # OpenSSL's codes of what is wrong with a certificate
PORTS = range(1, 65536)


def read_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; an IPv6 address stands in brackets."""
    found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):(\d{1,5})", text)
    if not found or int(found[2]) not in PORTS:
        raise ConfigError(f"superlink must be HOST:PORT, with a port in 1 … 65535. Received: {text!r}.")
    return found[1].strip("[]"), int(found[2])


def check_certificates(path: Path, remedy: str) -> None:
    """Refuse a file of certificates of which none is valid now."""
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not a certificate: {error}. {remedy}") from error
    now = datetime.now(UTC)
    if all(now > one.not_valid_after_utc for one in found):
        raise ConfigError(
            f"{path} expired on {max(one.not_valid_after_utc for one in found):%Y-%m-%d %H:%M} UTC. {remedy}"
        )
    if all(now < one.not_valid_before_utc for one in found):
        starts = min(one.not_valid_before_utc for one in found)
        raise ConfigError(f"{path} is valid from {starts:%Y-%m-%d %H:%M} UTC on. Is the clock of this machine right?")


def check_server(superlink: str, ca: Path, key: Path) -> None:
    """Refuse a server whose certificate does not hold, and a key that it does not admit.

    A server that cannot be reached is no fault: it may be started later.
    """
    host, port = read_address(superlink)
    check_certificates(ca, "Ask the server's operator for the new ca.crt.")
    headers = signed_headers(key) | {"content-type": "application/protobuf"}
    try:
        tls = ssl.create_default_context(cafile=ca)
        with closing(http.client.HTTPSConnection(host, port, timeout=SECONDS, context=tls)) as connection:
            connection.request("POST", "/v1/fleet/pull-messages", b"", headers)
            answer = connection.getresponse()
            refusal = _refusal(answer.read(4096)) if answer.status in (401, 403) else ""
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(_certificate_fault(error, host, port, ca)) from error
    except (OSError, http.client.HTTPException):
        return
    if refusal:
        raise ConfigError(f"the server at {superlink} does not admit {key}: {plain(refusal)} Ask its operator.")


def _refusal(body: bytes) -> str:
    """Why our proxy refuses a node; nothing where it was not refused for its key."""
    try:
        told = json.loads(body)
        return str(told["detail"]) if "code" in told else ""
    except (ValueError, TypeError, KeyError):
        return ""


def _certificate_fault(error: ssl.SSLCertVerificationError, host: str, port: int, ca: Path) -> str:
    where = f"the server's certificate at {host}:{port}"
    if error.verify_code in (EXPIRED, NOT_YET):
        try:
            shown = x509.load_pem_x509_certificate(ssl.get_server_certificate((host, port), timeout=SECONDS).encode())
            dates = f" (it is valid from {shown.not_valid_before_utc:%Y-%m-%d} to {shown.not_valid_after_utc:%Y-%m-%d})"
        except (OSError, ValueError):
            dates = ""
        what = "has expired" if error.verify_code == EXPIRED else "is not valid yet"
        return f"{where} {what}{dates}. Ask its operator to renew it, and look at the clock of this machine."
    if error.verify_code in OTHER_NAME:
        return f"{where} is for another name: {error.verify_message} Its operator makes it with `keys --host {host}`."
    return f"{where} is not by the CA in {ca}: {error.verify_message}. (CERTIFICATE_VERIFY_FAILED)"


def signed_headers(path: Path) -> dict[str, str]:
    """The headers by which a node shows that it has a private key."""
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path} is not a node's private key: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} must be a key on an elliptic curve, as `fedsparsify keys` makes them.")
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    now = datetime.now(UTC).isoformat()
    signature = key.sign(now.encode(), ec.ECDSA(SHA256()))
    values = (b64encode(public).decode(), now, b64encode(signature).decode())
    return dict(zip(("flwr-public-key", "flwr-timestamp", "flwr-signature"), values, strict=True))
