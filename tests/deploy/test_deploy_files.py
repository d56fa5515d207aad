"""What deploy/ and its guide say is what the command line takes, systemd accepts and compose knows."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from fedsparsify.cli import cli
from fedsparsify.config import load_config

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def check_command(words: list[str]) -> None:
    """Parse a command of ours as the command line would, without running it."""
    group = cli
    while words and words[0] in getattr(group, "commands", {}):
        group, words = group.commands[words[0]], words[1:]
    group.make_context("fedsparsify", [*words], resilient_parsing=False)


def compose() -> dict:
    return pytest.importorskip("yaml").safe_load((DEPLOY / "docker/compose.yaml").read_text())


def test_the_commands_of_compose_are_ours():
    services = compose()["services"]
    assert {*services} == {"keys", "server", "client-0", "client-1", "client-2"}
    for service in services.values():
        check_command(service["command"])
    with pytest.raises(Exception, match="No such option"):
        check_command(["join", "--superlink=a:1", "--nonsense"])


def test_compose_keeps_state_checks_health_and_shares_no_key():
    table = compose()
    services, volumes = table["services"], {*table["volumes"]}
    kept = {}
    for name in ("server", "client-0", "client-1", "client-2"):
        service = services[name]
        mounts = dict(mount.split(":")[:2] for mount in service["volumes"])
        kept[name] = next(source for source, target in mounts.items() if target == "/state")
        assert kept[name] in volumes and all(m.endswith(":ro") for m in service["volumes"] if m.startswith("./"))
        assert "/health" in service["healthcheck"]["test"][-1] and service["restart"] == "on-failure"
        if name != "server":
            assert service["depends_on"] == {"server": {"condition": "service_healthy"}}
            number = name.rpartition("-")[2]
            assert [m for m in mounts if "keys" in m] == [
                "./keys/federation/ca.crt",
                f"./keys/federation/node-{number}",
            ]
            assert f"--client={number}" in service["command"]
    assert len({*kept.values()}) == 4
    outside = [port for port in services["server"]["ports"] if not port.startswith("127.0.0.1:")]
    assert outside == ["8000:8000"]
    config = load_config(DEPLOY / "docker/run.toml")
    assert config.clients == 3


def test_the_images_files_exist():
    text = (DEPLOY / "docker/Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE) for word in line.split()]
    ignored = (DEPLOY / "docker/Dockerfile.dockerignore").read_text()
    assert {"pyproject.toml", "constraints.txt", "fedsparsify"} <= {*copied}
    assert all((ROOT / word).exists() and f"!{word}\n" in ignored for word in copied)
    extras = re.search(r"'\.\[(.*?)\]'", text)[1].split(",")
    assert all(f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text() for extra in extras)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units(unit, tmp_path):
    [command] = re.findall(r"^ExecStart=/opt/fedsparsify/bin/fedsparsify (.*)$", unit.read_text(), re.MULTILINE)
    check_command(shlex.split(command.replace("%i", "node-3").replace("${SUPERLINK}", "a:1").replace("$OPTIONS", "")))
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze")
    copy = tmp_path / unit.name.replace("@", "@node-3")
    copy.write_text(unit.read_text().replace("/opt/fedsparsify/bin/fedsparsify", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    copy.write_text(copy.read_text().replace("StartLimitBurst", "StartLimitBrust"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True)
    assert "StartLimitBrust" in done.stderr


def test_the_guides_commands_are_ours():
    text = (ROOT / "docs/deployment.md").read_text().replace("\\\n", " ")
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    found = [line for block in blocks for line in block.splitlines() if re.match(r"\S*fedsparsify ", line)]
    assert len(found) >= 3
    for line in found:
        check_command(shlex.split(line, comments=True)[1:])
    for path in re.findall(r"\]\((?!http|#)([^)#]+)", text):
        assert (ROOT / "docs" / path).exists(), path
