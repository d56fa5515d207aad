"""X.509 certificates of a federation: a CA of its own, and server certificates that it signs.

In: keys, names and lifetimes. Out: certificates and private keys, as PEM.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ...errors import ConfigError

DAYS = 365  # of a server's certificate
CA_DAYS = 3650
Key = ec.EllipticCurvePrivateKey


def new_key() -> Key:
    """A private key on P-384."""
    return ec.generate_private_key(ec.SECP384R1())


def authority(key: Key, days: int = CA_DAYS) -> x509.Certificate:
    """The certificate of a CA, signed by itself."""
    return _certificate("fedsparsify CA", key, None, key, [], _now() + datetime.timedelta(days=days))


def server_certificate(
    key: Key, ca: x509.Certificate, ca_key: Key, hosts: Sequence[str], days: int = DAYS
) -> x509.Certificate:
    """A server's certificate for these names and addresses; it ends no later than its CA's."""
    ends = min(_now() + datetime.timedelta(days=days), ca.not_valid_after_utc)
    return _certificate(hosts[0], key, ca.subject, ca_key, hosts, ends)


def issuer_among(authorities: Sequence[x509.Certificate], ca_key: Key) -> x509.Certificate | None:
    """The newest CA certificate that belongs to the key."""
    mine = [one for one in authorities if one.public_key() == ca_key.public_key()]
    return max(mine, key=lambda one: one.not_valid_after_utc, default=None)


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """The names and addresses that a server's certificate is for."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names if isinstance(name, (x509.DNSName, x509.IPAddress))]


def valid(certificate: x509.Certificate, days: int = 0) -> bool:
    """Whether a certificate is still good, so many days from now."""
    return certificate.not_valid_after_utc - _now() > datetime.timedelta(days=days)


def pem(certificates: Sequence[x509.Certificate]) -> bytes:
    """Certificates one after another."""
    return b"".join(one.public_bytes(Encoding.PEM) for one in certificates)


def private_pem(key: Key, form: PrivateFormat = PrivateFormat.PKCS8, passphrase: str = "") -> bytes:
    """A private key; with a passphrase, encrypted."""
    encryption = BestAvailableEncryption(passphrase.encode()) if passphrase else NoEncryption()
    return key.private_bytes(Encoding.PEM, form, encryption)


def read_private_pem(data: bytes, name: str, passphrase: str = "") -> Key:
    """A private key from its file's content."""
    try:
        key = load_pem_private_key(data, passphrase.encode() if passphrase else None)
    except TypeError as error:  # it is encrypted and there is no passphrase, or the other way round
        raise ConfigError(f"{name} cannot be opened: {error}.") from error
    except ValueError as error:
        why = "the passphrase is wrong" if passphrase else "it is not a private key in PEM"
        raise ConfigError(f"{name} cannot be read: {why}.") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{name} must be a key on an elliptic curve. Received: {type(key).__name__}.")
    return key


def _certificate(
    name: str, key: Key, issuer: x509.Name | None, signer: Key, hosts: Sequence[str], ends: datetime.datetime
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    authority = issuer is None
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - datetime.timedelta(minutes=5))  # clocks differ
        .not_valid_after(ends)
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


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
