"""Logs of `serve` and `join`: every line has a time and a level."""

from __future__ import annotations

import json
import math
import re
import sys
import warnings

import pytest

from fedsparsify import RunConfig
from fedsparsify.cli.log import LogScreen
from fedsparsify.cli.progress import Progress
from fedsparsify.config import to_toml
from fedsparsify.federation.flower.log_lines import Tail, with_levels
from fedsparsify.federation.flower.processes import stay
from fedsparsify.federation.ledger import Entry
from fedsparsify.notices import notice

STAMPED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR|CRITICAL) +\S.*")


def entry(round: int, **more) -> Entry:
    costs = dict.fromkeys(("download_params", "upload_params", "paper_params"), 0)
    numbers = {"accuracy": 0.5, "loss": 1.0, "target_sparsity": 0.0, "sparsity": 0.25, "nonzero": 7, "clients": 2}
    return Entry(round=round, **numbers, **costs, train_loss=1.0, seconds=2.0, **more)


def test_levels_of_flowers_lines():
    lines = [
        b"\x1b[92mINFO \x1b[0m:      Starting\n",
        b"\x1b[91mERROR \x1b[0m:     ClientApp raised an exception\n",
        b"Traceback (most recent call last):\n",
        b"\n",
        b"INFO:     Shutting down\n",
        b"\xff not UTF-8\n",
    ]
    assert [*with_levels(lines)] == [
        ("INFO", "Starting"),
        ("ERROR", "ClientApp raised an exception"),
        ("ERROR", "Traceback (most recent call last):"),
        ("INFO", "Shutting down"),
        ("INFO", "\ufffd not UTF-8"),
    ]


def test_a_tail_gives_each_warning_once(tmp_path):
    path, tail = tmp_path / "log", Tail(tmp_path / "log")
    assert [*tail] == []
    with path.open("w") as file:
        file.write(
            "INFO : fine\nINFO : 2 of 3 clients joined\nINFO : waiting for clients: 2; at most 570 s more\n"
            "WARNING : one\nWARNING : half a"
        )
        file.flush()
        assert [*tail] == [
            ("INFO", "2 of 3 clients joined"),
            ("INFO", "waiting for clients: 2; at most 570 s more"),
            ("WARNING", "one"),
        ]
        file.write(" line\n")
    assert [*tail] == [("WARNING", "half a line")] and [*tail] == []


@pytest.mark.parametrize("form", ["text", "json"])
def test_one_line_per_round_with_time_and_level(form, capsys):
    with Progress(LogScreen(form), RunConfig(rounds=40), every_round=True) as progress:
        progress.show(entry(1, metrics={"rounds": 3.0, "auc": math.nan}, epsilon=2.0))
        progress.show(entry(2, refused={"client 1": "it\nlies \x1b[31m"}))
        progress.show(entry(3, empty=["fc.weight"]))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    if form == "text":
        assert all(STAMPED.fullmatch(line) for line in lines)
        assert [line.split()[1] for line in lines] == ["INFO", "WARNING", "INFO", "WARNING", "INFO"]
        return
    tables = [json.loads(line) for line in lines]
    assert [table["level"] for table in tables] == ["INFO", "WARNING", "INFO", "WARNING", "INFO"]
    assert tables[0]["metrics"] == {"rounds": 3.0} and tables[0]["epsilon"] == 2.0
    assert tables[0]["accuracy"] == 0.5 and tables[0]["rounds"] == 40 and tables[2]["left_out"] == 1
    assert tables[1]["message"] == "round 2: client 1 was left out: it\\nlies \\x1b[31m"


def test_what_a_node_writes_is_part_of_the_log(tmp_path, capsys):
    log, said = LogScreen("json"), "print('\\x1b[93mWARNING \\x1b[0m:   slow'); import sys; sys.exit('gone')"
    assert stay([sys.executable, "-c", said], tmp_path, 1, log.print, lambda: None, log.log_line) == 1
    tables = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"slow", "gone"} <= {table["message"] for table in tables}
    assert all(table["level"] == "WARNING" for table in tables)


def test_errors_and_notices_are_lines_of_the_log(here, elsewhere, monkeypatch):
    (elsewhere / "run.toml").write_text(to_toml(RunConfig(clients=2, rounds=2)))
    code, said, errors = here("serve", "run.toml", "--keys", "nothing", "--log-format", "json")
    table = json.loads(errors)
    assert (code, said, table["level"], table["error"]) == (2, "", "ERROR", "ConfigError")
    code, _, errors = here("join", "--superlink", "a:1")  # the output is no terminal
    assert code == 2 and STAMPED.fullmatch(errors.strip()) and "ERROR" in errors

    def warn(*_, **__):
        notice("mind\nthe gap")
        return 0

    monkeypatch.setattr("fedsparsify.federation.flower.processes.stay", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        code, said, _ = here("join", "--superlink", "a:1", "--insecure")
    assert code == 0 and "WARNING Note: mind\\nthe gap" in said
