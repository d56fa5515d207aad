"""What a file, a run or a client says is text: it steers no terminal, and fits where it is put."""

from __future__ import annotations

import os

import numpy as np
import pytest

from fedsparsify import RunConfig, save
from fedsparsify.cli.progress import Progress
from fedsparsify.cli.screen import Screen
from fedsparsify.federation.ledger import Entry
from fedsparsify.model import Layout, SparseModel, TensorSpec
from fedsparsify.text import visible

HOSTILE = [
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x9b2J",
    "a\nb",
    "a\rb",
    "a\x08b",
    "\u202egnp.exe",
    "\u2066x\u2069\u200b",
    "\x00",
    "\udcff",
    "[bold red]x[/]",
    "[link=file:///etc/passwd]x[/link]",
    "[/nothing]",
    ":smile:",
    "x" * 100_000,
]


def harmless(said: str) -> bool:
    return all(letter.isprintable() or letter == "\n" for letter in said)


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text)[:20])
def test_inspect(here, elsewhere, text):
    sound = text.encode("utf-8", "ignore").decode()
    layout = Layout((TensorSpec(sound[:900], (2, 2)),), (TensorSpec(f"{sound[:900]}s", (1,)),))
    said = {"network": sound, "data": [sound], "method": {sound: sound}, "graph_missing": sound}
    save("model.fsz", SparseModel.dense(layout, np.ones(5, np.float32)), said)
    code, out, errors = here("inspect", "model.fsz")
    assert code == 0, errors
    assert harmless(out)
    assert len(out) < 20_000
    if text.startswith("["):
        assert text in out.replace("\n", "")


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text)[:20])
def test_everything_that_a_screen_prints(capsys, monkeypatch, text):
    monkeypatch.setenv("COLUMNS", "1000")
    screen = Screen()
    screen.print(text, soft_wrap=True)
    out = capsys.readouterr().out
    assert harmless(out)
    assert out == visible(text, keep="\n") + "\n"


def test_a_round_tells_what_a_client_wrote(capsys):
    progress = Progress(Screen(), RunConfig(rounds=1))
    entry = dict.fromkeys(Entry.__dataclass_fields__, 0) | {
        "round": 1,
        "client_bytes": {},
        "phases": {},
        "metrics": {},
        "empty": HOSTILE,
        "bounded": dict(zip(HOSTILE, HOSTILE, strict=True)),
    }
    told = dict(zip(HOSTILE, HOSTILE, strict=True)) | {"[/x]\n": "[/]"}
    progress.show(Entry(**entry | {"refused": told, "bounded": told, "metrics": dict.fromkeys(HOSTILE, 0.5)}))
    out = capsys.readouterr().out
    assert harmless(out)
    assert r"[/x]\n was left out: [/]" in out


def test_an_error_is_one_line(here, elsewhere):
    name = "\x1b[31m\n\u202e.toml"
    (elsewhere / name).write_text("rounds = [")
    for words in (["run", name], ["sweep", name], ["inspect", name], ["report", f"no{name}"]):
        code, _, errors = here(*words)
        assert code == 2
        assert harmless(errors)
        assert errors.count("\n") == 1
    os.mkdir(os.fsencode(elsewhere) + b"/\xff")
    code, _, errors = here("run", "--out", os.fsdecode(b"\xff/x/\xfe"), "--data", "none.npz")
    assert code == 2, errors


def test_labels_of_a_model_file(here, elsewhere):
    torch = pytest.importorskip("torch")
    pytest.importorskip("numba")
    from fedsparsify.networks import model_of
    from fedsparsify.networks.tracing import trace

    network = torch.nn.Sequential(torch.nn.Linear(3, 2))
    for labels in (["\x1b[31ma\nb", "c"], "ab", {"a": 1}, [None, [1]]):
        facts = {"shape": [3], "labels": labels, "graph": [node.to_json() for node in trace(network)]}
        save("model.fsz", model_of(network), facts)
        np.save("images.npy", np.ones((2, 3), np.float32))
        code, out, errors = here("infer", "model.fsz", "images.npy")
        assert code == 0, errors
        assert harmless(out)
        assert out.count("\n") == 2
