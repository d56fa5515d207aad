"""A folder of keys over its life: made, added to, revoked, renewed. Keys and certificates are real ones."""

from __future__ import annotations

import shutil
import ssl
import stat
import subprocess
from contextlib import suppress

import pytest
from click.testing import CliRunner
from cryptography import x509

from fedsparsify.cli import cli
from fedsparsify.errors import ConfigError
from fedsparsify.federation.flower.certificates import hosts_of, valid
from fedsparsify.federation.flower.commands import Keys
from fedsparsify.federation.flower.keys import certificates_in, make_keys, node_keys, revoked_keys
from fedsparsify.federation.flower.proxy_keys import KeyFiles
from fedsparsify.federation.flower.signatures import public_keys


def keys(*words: object) -> str:
    """`fedsparsify keys …`, and what it printed."""
    result = CliRunner().invoke(cli, ["keys", *map(str, words)], catch_exceptions=False, terminal_width=200)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def folder(elsewhere):
    make_keys(elsewhere / "keys", ["a.example", "10.0.0.1"], 2)
    return elsewhere / "keys"


def names(folder):
    return [key.name for key in node_keys(folder)]


def test_a_folder_is_made_with_and_without_the_word_make(elsewhere):
    assert "keys add none --name NAME --public NAME.pub" in keys("none", "--nodes", "0")
    keys("one", "--nodes", "1")
    keys("--nodes", "1", "two")
    keys("make", "add", "--nodes", "1")  # a folder by the name of a command
    for name in ("one", "two", "add"):
        assert names(elsewhere / name) == ["node-0"]
        assert stat.S_IMODE((elsewhere / name / "ca.key").stat().st_mode) == 0o600


def test_added_nodes_have_new_names(folder):
    assert "node-2" in keys("add", "keys")
    keys("revoke", "keys", "node-2")
    keys("add", "keys", "--nodes", "2")
    assert names(folder) == ["node-0", "node-1", "node-3", "node-4"]
    keys("add", "keys", "--name", "mercy", "--name", "st-anne")
    assert names(folder)[:2] == ["mercy", "node-0"]
    for name, why in (("mercy", "a name is used once"), ("../x", "letters, digits"), ("revoked", "letters, digits")):
        with pytest.raises(ConfigError, match=why):
            keys("add", "keys", "--name", name)


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="needs ssh-keygen")
def test_a_node_may_make_its_own_key(folder, elsewhere):
    for name, kind in (("own", ["ecdsa", "-b", "384"]), ("wrong", ["ed25519"])):
        subprocess.run(["ssh-keygen", "-q", "-t", *kind, "-N", "", "-f", elsewhere / name], check=True)
    keys("add", "keys", "--name", "mercy", "--public", "own.pub")
    assert names(folder) == ["mercy", "node-0", "node-1"] and not (folder / "mercy").exists()
    printed = subprocess.run(["ssh-keygen", "-l", "-f", elsewhere / "own.pub"], check=True, capture_output=True)
    assert printed.stdout.split()[1].decode() in keys("list", "keys")
    with pytest.raises(ConfigError, match="is the key of mercy already"):
        keys("add", "keys", "--name", "again", "--public", "own.pub")
    with pytest.raises(ConfigError, match="must be an ECDSA key"):
        keys("add", "keys", "--name", "wrong", "--public", "wrong.pub")
    keys("revoke", "keys", "mercy")
    with pytest.raises(ConfigError, match="was revoked, as mercy"):
        keys("add", "keys", "--name", "again", "--public", "own.pub")


def test_a_revoked_key_stays_out_under_any_name(folder):
    public = (folder / "node-1.pub").read_bytes()
    assert "node-1 is revoked" in keys("revoke", "keys", "node-1")
    assert "before" in keys("revoke", "keys", "node-1.pub")
    for name in ("node-1.pub", "other.pub"):  # as from a backup
        (folder / name).write_bytes(public)
    assert names(folder) == ["node-0"] and [path.name for path in Keys(folder).nodes] == ["node-0.pub"]
    assert len(public_keys(folder)) == 1
    assert "revoked" in keys("list", "keys")
    with pytest.raises(ConfigError, match=r"has no node 'node-7'. It has: node-0"):
        keys("revoke", "keys", "node-7")


def test_a_revoked_key_is_not_lost_to_another_of_its_name(folder):
    keys("revoke", "keys", "node-1")
    (folder / "node-0.pub").rename(folder / "node-1.pub")
    keys("revoke", "keys", "node-1")
    assert len(revoked_keys(folder)) == 2


def test_renewal_keeps_the_ca_the_key_and_the_names(folder):
    before, ca = certificates_in(folder / "server.crt")[0], (folder / "ca.crt").read_bytes()
    private = (folder / "server.key").read_bytes()
    assert "for a.example, 10.0.0.1" in keys("renew", "keys", "--days", "30")
    after = certificates_in(folder / "server.crt")[0]
    after.verify_directly_issued_by(x509.load_pem_x509_certificate(ca))
    assert (folder / "ca.crt").read_bytes() == ca and (folder / "server.key").read_bytes() == private
    assert after.serial_number != before.serial_number and valid(after, 29) and not valid(after, 31)
    keys("renew", "keys", "--host", "b.example", "--new-key")
    assert hosts_of(certificates_in(folder / "server.crt")[0]) == ["b.example"]
    assert (folder / "server.key").read_bytes() != private
    assert stat.S_IMODE((folder / "server.key").stat().st_mode) == 0o600


def test_the_ca_key_may_lie_elsewhere_and_be_encrypted(elsewhere, monkeypatch):
    monkeypatch.setenv("FEDSPARSIFY_CA_PASSPHRASE", "correct horse")
    keys("keys", "--passphrase", "--nodes", "1")
    (elsewhere / "keys/ca.key").rename(elsewhere / "stick.key")
    assert b"ENCRYPTED" in (elsewhere / "stick.key").read_bytes()
    with pytest.raises(ConfigError, match=r"only the CA's key can sign"):
        keys("renew", "keys")
    keys("renew", "keys", "--ca-key", "stick.key")
    monkeypatch.setenv("FEDSPARSIFY_CA_PASSPHRASE", "wrong")
    with pytest.raises(ConfigError, match="passphrase is wrong"):
        keys("renew", "keys", "--ca-key", "stick.key")
    with pytest.raises(ConfigError, match="is not the key of a CA"):
        keys("renew", "keys", "--ca-key", "keys/server.key")


def test_a_lost_ca_is_replaced_in_two_steps(folder):
    (folder / "ca.key").unlink()
    before = (folder / "server.crt").read_bytes()
    keys("renew", "keys", "--new-ca")
    old, new = certificates_in(folder / "ca.crt")  # what nodes are given: either is trusted
    assert (folder / "server.crt").read_bytes() == before
    certificates_in(folder / "server.crt")[0].verify_directly_issued_by(old)
    keys("renew", "keys")
    certificates_in(folder / "server.crt")[0].verify_directly_issued_by(new)


def test_the_proxy_follows_the_folder(folder):
    """Added and revoked keys and a renewed certificate count at once; a file that is gone, at the next start."""
    files = KeyFiles(folder)
    assert files.changed() == []
    keys("add", "keys", "--name", "mercy")
    assert files.changed() == ["3 keys may join"]
    keys("revoke", "keys", "node-0")
    (folder / "node-1.pub").unlink()
    assert files.changed() == ["2 keys may join"]
    tls, server_key = files.tls, (folder / "server.key").read_bytes()
    keys("renew", "keys")
    assert files.changed() == ["nodes are shown the new server.crt"] and files.tls is not tls
    keys("renew", "keys", "--new-key")
    (folder / "server.key").write_bytes(server_key)  # a pair that does not fit
    tls = files.tls
    assert "server.crt of before" in files.changed()[0] and files.tls is tls
    (folder / "x.pub").write_text("half a ke")
    assert "stay as they were" in files.changed()[0]


def test_nodes_with_the_bundle_trust_the_old_and_the_new_certificate(folder):
    def trusted() -> bool:
        server, client = KeyFiles(folder).tls, ssl.create_default_context(cafile=str(bundle))
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        one = client.wrap_bio(incoming, outgoing, server_hostname="a.example")
        other = server.wrap_bio(outgoing, incoming, server_side=True)
        for side in (one, other, one, other, one):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
        return one.version() == "TLSv1.3"

    (folder / "ca.key").unlink()
    keys("renew", "keys", "--new-ca")
    bundle = folder / "ca.crt"
    assert trusted()
    keys("renew", "keys")
    assert trusted()
