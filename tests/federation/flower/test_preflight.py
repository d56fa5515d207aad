"""What `serve` and `join` refuse by name before anything is started."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from contextlib import contextmanager

import numpy as np
import pytest
from click.testing import CliRunner

from fedsparsify import RunConfig
from fedsparsify.cli import cli
from fedsparsify.config import to_toml
from fedsparsify.data.presence import check_present
from fedsparsify.errors import ConfigError, DataError
from fedsparsify.federation.flower import certificates
from fedsparsify.federation.flower.commands import Keys
from fedsparsify.federation.flower.keys import make_keys
from fedsparsify.federation.flower.preflight import check_server, read_address
from fedsparsify.federation.flower.processes import free_port, stay
from fedsparsify.federation.flower.proxy_keys import server_tls
from fedsparsify.federation.flower.serve_settings import ServeSettings


def said(command: list[str]) -> str:
    result = CliRunner().invoke(cli, command)
    assert result.exit_code and not isinstance(result.exception, OverflowError | OSError)
    return f"{result.output} {result.exception}"


@pytest.mark.parametrize("port", ["99999", "0", "-1", "65536"])
def test_ports_that_do_not_exist(port, elsewhere):
    (elsewhere / "run.toml").write_text(to_toml(RunConfig(clients=2, rounds=2)))
    for flag in ("--port", "--superlink-port"):
        assert f"'{flag}': {port} is not in the range" in said(["serve", "run.toml", "--insecure", flag, port])
    assert "'--port'" in said(["join", "--superlink", "a:1", "--insecure", "--port", port])
    assert f"Received: 'a:{port}'" in said(["join", "--superlink", f"a:{port}", "--insecure"])


def test_addresses():
    assert read_address("host.example.org:8000") == ("host.example.org", 8000)
    assert read_address("[::1]:8000") == ("::1", 8000)
    for wrong in ("host", "host:", ":8000", "http://host:8000", "host:port", "::1:8000", "host:8000/path", "a b:1"):
        with pytest.raises(ConfigError, match="superlink must be HOST:PORT"):
            read_address(wrong)


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("deadline", "0", "deadline must be a number of seconds above 0. Received: 0."),
        ("deadline", "-3", "Received: -3."),
        ("deadline", "nan", "Received: nan."),
        ("deadline", "inf", "Received: inf."),
        ("wait", "-1", "wait must be a number of seconds, 0 or more. Received: -1."),
        ("retries", "-1", "retries must be 0 or more. Received: -1."),
    ],
)
def test_how_long_a_server_waits(flag, value, words, elsewhere):
    (elsewhere / "run.toml").write_text(to_toml(RunConfig(clients=2, rounds=2)))
    assert words in said(["serve", "run.toml", "--insecure", f"--{flag}", value])
    with pytest.raises(ConfigError, match=flag):
        ServeSettings(**{flag: float(value) if flag != "retries" else int(value)})


def test_data_that_are_not_there_are_noticed_at_once(tmp_path, elsewhere):
    np.savez(tmp_path / "half.npz", x_train=np.zeros((2, 3)))
    np.savez(tmp_path / "whole.npz", x_train=np.zeros((2, 3)), y_train=np.zeros(2, int))
    (tmp_path / "text.npz").write_text("no zip")
    (elsewhere / "surgery.py").write_text("def scans(): raise SystemExit('not called')")
    check_present(str(tmp_path / "whole.npz"))
    check_present("surgery:scans")
    check_present("digits")
    for name, words in (
        (str(tmp_path / "none.npz"), "there is no file"),
        (str(tmp_path / "half.npz"), r"Missing: y_train"),
        (str(tmp_path / "text.npz"), "cannot be read as an .npz"),
        ("surgery:scan", "has no 'scan'"),
        ("clinic:scans", "there is no module 'clinic'"),
        ("digit", "digits"),
    ):
        with pytest.raises((ConfigError, DataError), match=words):
            check_present(name)
    make_keys(tmp_path / "keys", ["127.0.0.1"], 1)
    command = ["join", "--superlink", "127.0.0.1:1", "--ca", str(tmp_path / "keys/ca.crt")]
    assert "there is no file gone.npz" in said([*command, "--key", str(tmp_path / "keys/node-0"), "--data", "gone.npz"])


def expire(monkeypatch, folder, which: str) -> None:
    """Keys of which the certificate of the `server` or of the `ca` ended some weeks ago."""
    make_keys(folder, ["127.0.0.1"], 1)
    now = certificates._now
    ca_key, key = certificates.new_key(), certificates.new_key()

    def made(past: bool, make):
        then = now() - datetime.timedelta(days=400 if past else 0)
        monkeypatch.setattr(certificates, "_now", lambda: then)
        return make()

    ca = made(which == "ca", lambda: certificates.authority(ca_key, 365))
    server = made(True, lambda: certificates.server_certificate(key, ca, ca_key, ["127.0.0.1"], 365))
    monkeypatch.undo()
    (folder / "ca.crt").write_bytes(certificates.pem([ca]))
    (folder / "server.crt").write_bytes(certificates.pem([server]))
    (folder / "server.key").write_bytes(certificates.private_pem(key))


@contextmanager
def tls_server(folder):
    """Shows the certificate of a keys' folder to callers, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            tls = server_tls(folder / "server.crt", folder / "server.key")
            while True:
                try:
                    connection, _ = listener.accept()
                    with connection, tls.wrap_socket(connection, server_side=True) as stream:
                        stream.recv(1000)
                except ssl.SSLError:
                    continue
                except OSError:
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def test_an_expired_certificate_is_named_as_such(tmp_path, monkeypatch):
    expire(monkeypatch, tmp_path / "keys", "server")
    keys = tmp_path / "keys"
    with pytest.raises(ConfigError, match=r"server\.crt expired on \d{4}-\d\d-\d\d"):
        Keys(keys).check()
    with (
        tls_server(keys) as address,
        pytest.raises(ConfigError, match=r"certificate at .* has expired \(it is valid from"),
    ):
        check_server(address, keys / "ca.crt", keys / "node-0")


def test_an_expired_authority_is_named_as_such(tmp_path, monkeypatch):
    keys = tmp_path / "keys"
    expire(monkeypatch, keys, "ca")
    with pytest.raises(ConfigError, match=r"ca\.crt expired on"):
        Keys(keys).check()
    with pytest.raises(ConfigError, match=r"ca\.crt expired on .* Ask the server's operator"):
        check_server("127.0.0.1:1", keys / "ca.crt", keys / "node-0")


def test_certificates_for_another_name_and_of_another_authority(tmp_path):
    make_keys(tmp_path / "other", ["server.example.org"], 1)
    make_keys(tmp_path / "mine", ["127.0.0.1"], 1)
    with tls_server(tmp_path / "other") as address:
        with pytest.raises(ConfigError, match=r"is for another name: .*127"):
            check_server(address, tmp_path / "other/ca.crt", tmp_path / "other/node-0")
        with pytest.raises(ConfigError, match=r"is not by the CA in .*mine/ca\.crt"):
            check_server(address, tmp_path / "mine/ca.crt", tmp_path / "mine/node-0")


def test_a_server_that_is_not_there_yet_is_no_fault(tmp_path):
    make_keys(tmp_path / "keys", ["127.0.0.1"], 1)
    check_server(f"127.0.0.1:{free_port()}", tmp_path / "keys/ca.crt", tmp_path / "keys/node-0")


def test_a_node_is_not_started_again_once_it_is_known_that_nothing_will_mend(tmp_path, monkeypatch):
    monkeypatch.setattr("fedsparsify.federation.flower.processes.PAUSE_SECONDS", 0.01)
    starts = []

    def check() -> None:
        starts.append("checked")
        if len(starts) == 3:
            raise ConfigError("this key is not registered")

    with pytest.raises(ConfigError, match="not registered"):
        stay(["false"], tmp_path, 0, print, check)
    assert len(starts) == 3
    with pytest.raises(ConfigError, match="not registered"):
        starts[:] = ["before"]
        stay(["true"], tmp_path, 0, print, check)  # a SuperNode that was sent away ends without an error
