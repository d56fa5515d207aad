"""Health, metrics and the live page: over HTTP, and in a real browser where there is one."""

from __future__ import annotations

import http.client
import json
import shutil
import time
from contextlib import contextmanager

import pytest
from made_runs import write_run

from fedsparsify.errors import ConfigError, RunError
from fedsparsify.federation.flower.keys import make_keys
from fedsparsify.federation.ledger import read_history
from fedsparsify.monitor.address import Address
from fedsparsify.monitor.http_server import serving
from fedsparsify.monitor.metrics import metrics_of
from fedsparsify.monitor.status import Status
from fedsparsify.monitor.watch import watched

FREE = Address("127.0.0.1", 0)


def asked(port: int, path: str, method: str = "GET", **headers: str):
    """Status, headers and body of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def test_addresses():
    assert Address.read("8080") == Address("127.0.0.1", 8080) and Address.read("8080").loopback
    assert Address.read("[::]:80") == Address("::", 80) and Address.read("[::]:80").url == "http://[::1]:80/"
    assert not Address.read("0.0.0.0:1").loopback and Address.read("localhost:1").loopback
    for text in ("", "x", "99999", "a:b", "-1"):
        with pytest.raises(ConfigError, match="PORT or HOST:PORT"):
            Address.read(text)


@contextmanager
def at_work(status: Status, folder=None):
    """Metrics and page on one free port."""
    with watched(status, FREE, FREE if folder else None, folder) as lines:
        yield int(lines[-1].rpartition(":")[2].partition("/")[0])


def test_health_follows_the_processes():
    alive = {"superlink": True, "proxy": True}
    with at_work(Status("server", "waiting for clients", 9, processes=lambda: alive)) as port:
        code, _, body = asked(port, "/health")
        assert code == 200
        table = json.loads(body)
        assert (table["status"], table["state"], table["round"], table["rounds"]) == ("ok", "waiting for clients", 0, 9)
        alive["proxy"] = False
        code, _, body = asked(port, "/health")
        assert code == 503 and json.loads(body)["processes"] == {"superlink": True, "proxy": False}


def test_it_is_read_only_and_for_this_machine():
    with at_work(Status("client")) as port:
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert asked(port, "/health", method)[0] == 501
        code, headers, body = asked(port, "/health", "HEAD")
        assert code == 200 and body == "" and headers["Cache-Control"] == "no-store"
        assert asked(port, "/../etc/passwd")[0] == 404
        assert asked(port, "/health", Host="evil.example")[0] == 403  # another site's name for 127.0.0.1
        assert asked(port, "/health", Host=f"localhost:{port}")[0] == asked(port, "/health", Host="[::1]")[0] == 200
        taken = Address("127.0.0.1", port)
        with pytest.raises(RunError, match=r"Choose another --page"), serving([(taken, "--page", {})]):
            pass


def metrics(status: Status) -> dict[str, float]:
    lines = metrics_of(status)().body.decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_metrics_of_a_server(tmp_path):
    make_keys(tmp_path / "keys", ["a"], 0)
    status = Status("server", rounds=6, keys=tmp_path / "keys", processes=lambda: {"proxy": True, "superlink": False})
    before = metrics(status)
    assert before["fedsparsify_rounds"] == 6 and "fedsparsify_accuracy" not in before
    entries = read_history(write_run(tmp_path / "run", sparsity=0.9) / "history.jsonl")
    for entry in entries:
        status.show(entry)
    found = metrics(status)
    assert found["fedsparsify_round"] == 6 and found["fedsparsify_accuracy"] == entries[-1].accuracy
    assert found['fedsparsify_process_up{process="proxy"}'] == 1
    assert found['fedsparsify_process_up{process="superlink"}'] == 0
    sent = found['fedsparsify_sent_bytes_total{direction="to_clients"}']
    assert sent == sum(entry.download_bytes or 0 for entry in entries)
    year = found['fedsparsify_certificate_end_time_seconds{file="server.crt"}'] - time.time()
    assert 364 < year / 86400 < 365
    (tmp_path / "keys/server.crt").write_text("no certificate")
    assert not any("server.crt" in name for name in metrics(status))
    assert all(name.startswith("fedsparsify_") for name in found)


def test_metrics_of_a_client():
    found = metrics(Status("client", restarts=2, processes=lambda: {"supernode": True}))
    assert found["fedsparsify_restarts_total"] == 2 and "fedsparsify_rounds" not in found


def grow(folder, whole, lines: int) -> None:
    """The first lines of a run's history."""
    folder.mkdir(exist_ok=True)
    shutil.copy(whole / "config.toml", folder)
    (folder / "history.jsonl").write_text("".join((whole / "history.jsonl").read_text().splitlines(True)[:lines]))


def test_the_pages_values_follow_the_folder(tmp_path):
    whole, folder, status = write_run(tmp_path / "whole", sparsity=0.9), tmp_path / "run", Status("server", rounds=6)
    with at_work(status, folder) as port:

        def values() -> dict:
            return json.loads(asked(port, "/data.json")[2])

        empty = values()
        assert empty["environments"] == [] and empty["notes"] == [] and empty["live"]["state"] == "starting"
        grow(folder, whole, 2)
        status.state = "running"
        two = values()
        assert two["environments"][0]["runs"][0]["round"] == [1, 2] and two["live"]["round"] == 2
        assert two["notes"] == [] and two["live"]["version"] != empty["live"]["version"]
        assert values() == two
        line = json.loads((whole / "history.jsonl").read_text().splitlines()[2])
        with (folder / "history.jsonl").open("a") as file:
            file.write(json.dumps(line | {"refused": {"client 3": "<img src=x>\n"}}) + "\n")
        assert values()["live"]["left"] == ["round 3, client 3: <img src=x>\\n"]
        code, headers, page = asked(port, "/")
        assert code == 200 and "connect-src 'self'" in headers["Content-Security-Policy"]
        assert "connect-src 'self'" in page and "<img" not in page and "{{" not in page


# ——— in a browser


@pytest.fixture(scope="module")
def browser():
    from browser import chromium

    with chromium() as driver:
        yield driver


def text(browser, selector: str) -> str:
    return browser.find_element("css selector", selector).text


def eventually(browser, condition) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 20, 0.1).until(lambda _: condition())


def test_the_page_grows_with_the_run(browser, tmp_path):
    whole, folder = write_run(tmp_path / "whole", sparsity=0.9), tmp_path / "run"
    status = Status("server", "waiting for clients", rounds=6)

    def points() -> int:
        curves = browser.find_elements("css selector", "#rounds-chart path.line")
        return curves[0].get_attribute("d").count("L") + 1 if curves else 0

    with at_work(status, folder) as port:
        browser.get(f"http://127.0.0.1:{port}/")
        assert "waiting for clients. No round has ended yet" in text(browser, "#now-state")
        assert not browser.find_element("css selector", "#shown").is_displayed()
        status.state = "running"
        grow(folder, whole, 3)
        eventually(browser, lambda: "Round 3 of 6" in text(browser, "#now-state"))
        assert points() == 3 and "(at round 3)" in text(browser, "#table tbody")
        browser.find_element("css selector", "#rounds-x option[value='mbit']").click()  # a choice of the reader
        browser.find_element("css selector", "#rounds-x-log").click()
        grow(folder, whole, 6)
        eventually(browser, lambda: "Round 6 of 6" in text(browser, "#now-state"))
        assert points() == 6
        chosen = browser.find_element("css selector", "#rounds-x").get_attribute("value")
        assert chosen == "mbit" and browser.find_element("css selector", "#rounds-x-log").is_selected()
        assert text(browser, "h1") == browser.title != "fedsparsify: report"
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 1200
        assert [entry["message"] for entry in browser.get_log("browser")] == []
    eventually(browser, lambda: "No answer" in text(browser, "#now-state"))  # the command has ended
    assert points() == 6
