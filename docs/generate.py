"""What the site's reference takes from the package: commands, settings, methods, operations, names, errors.

A line `<!-- made from: SOURCE ARGUMENTS -->` of a page is replaced by Markdown when the page is read. `SOURCES` lists
the sources. Nothing here needs Sphinx, so that tests can look at what a page will hold.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from fedsparsify import METHODS, Entry, RunConfig, errors
from fedsparsify.cli import cli
from fedsparsify.methods import Averaging
from fedsparsify.ops import OPERATIONS
from fedsparsify.options import SETTINGS, Setting, settings

MARK = re.compile(r"^<!-- made from: (\w+) ?(.*?) -->$", re.MULTILINE)
LOG = Path(__file__).parent / "log.md"
PACKAGE = Path(errors.__file__).parent


def fill(text: str) -> str:
    """A page with every mark replaced."""
    return MARK.sub(lambda found: f"{found[0]}\n\n{SOURCES[found[1]](*found[2].split())}", text)


def setup(app: Any) -> None:
    """Connect to Sphinx."""
    app.connect("source-read", lambda app, page, source: source.__setitem__(0, fill(source[0])))
    before_napoleon = 400
    app.connect("autodoc-process-docstring", lambda *given: plain(given[-1]), before_napoleon)


def plain(lines: list[str]) -> None:
    """A docstring's `code` in the form that reStructuredText has for it, and nothing else marked; examples stay."""
    example = False
    for number, line in enumerate(lines):
        example = bool(line.strip()) and (example or line.lstrip().startswith(">>>"))
        if not example:
            pieces = re.split(r"(``.+?``|`[^`]+`)", line)
            coded = (
                f"``{piece.strip('`')}``" if piece[:1] == "`" else re.sub(r"[|*]", r"\\\g<0>", piece)
                for piece in pieces
            )
            lines[number] = "".join(coded)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    listed = [[*head], *([*row] for row in rows)]
    listed.insert(1, ["---"] * len(listed[0]))
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in listed)


def commands() -> str:
    """Every command with its usage, its help text and its flags."""
    parts = []
    for command in cli.commands.values():
        parts += _command(command, click.Context(command, info_name=f"fedsparsify {command.name}"), 2)
    return "\n\n".join(parts)


def _command(command: click.Command, context: click.Context, level: int) -> list[str]:
    usage = " ".join([context.info_name or "", *command.collect_usage_pieces(context)])
    parts = [f"{'#' * level} {context.info_name}", f"```text\n{usage}\n```", _help(command)]
    rows = [record for one in command.params if (record := one.get_help_record(context)) and record[1]]
    if rows:
        parts.append(table(("flag", "meaning"), ((f"`{names}`", _escaped(text)) for names, text in rows)))
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            parts += _command(inner, click.Context(inner, info_name=f"{context.info_name} {name}"), level + 1)
    return parts


def _help(command: click.Command) -> str:
    """A help text; paragraphs that click leaves as they are become literal."""
    shown = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        literal = paragraph.startswith("\b")
        shown.append(f"```text\n{paragraph[1:].strip(chr(10))}\n```" if literal else _escaped(paragraph))
    return "\n\n".join(shown)


def _escaped(text: str) -> str:
    """Text in which nothing is taken for Markdown but `code`."""
    pieces = re.split(r"(`[^`]+`)", " ".join(text.split()))
    return "".join(piece if piece[:1] == "`" else re.sub(r"([\\*_<>\[\]])", r"\\\1", piece) for piece in pieces)


def _setting(setting: Setting) -> tuple[str, str, str, str]:
    kind = ", ".join(f"`{word}`" for word in setting.choices) or setting.type.__name__
    many = "" if setting.length is None else " (a list)"
    return f"`{setting.name}`", kind + many, _escaped(setting.shown_default), _escaped(setting.help)


def config() -> str:
    """Every setting of a run, by the dataclass that declares it."""
    parts = []
    seen: set[str] = set()
    for kind in (*reversed(RunConfig.__mro__),):
        rows = {name: one for name, one in settings(kind).items() if name not in seen} if _has_settings(kind) else {}
        seen |= rows.keys()
        if rows:
            title = {"Training": "Local training", "MergeSettings": "Merging and privacy"}.get(kind.__name__, "The run")
            parts += [f"## {title}", table(("setting", "values", "default", "meaning"), map(_setting, rows.values()))]
    return "\n\n".join(parts)


def _has_settings(kind: type) -> bool:
    return "__dataclass_fields__" in vars(kind)


def methods() -> str:
    """Every method with its paper and its settings; those of all methods that average once, before the others."""
    shared = settings(Averaging)
    head = ("setting", "values", "default", "meaning")
    parts = ["### Every method that averages", table(head, map(_setting, shared.values()))]
    for name, kind in METHODS.items():
        about = (inspect.getdoc(kind) or "").partition(SETTINGS)[0]
        home = (inspect.getdoc(sys.modules[kind.__module__]) or "").split("\n\n")[0]
        parts += [f"### {name}", _escaped(about), _escaped(home)]
        if issubclass(kind, Averaging):
            parts.append("It averages, and takes the settings of all such methods.")
        if rows := [one for one in settings(kind).values() if one != shared.get(one.name)]:
            parts.append(table(head, map(_setting, rows)))
    return "\n\n".join(parts)


def operations() -> str:
    """Every operation of a graph: how PyTorch spells it, what it computes and which attributes it has."""

    def row(name: str) -> tuple[str, str, str]:
        op = OPERATIONS[name]
        spelled = [f"`nn.{module}`" for module in op.modules] + [f"`{function}`" for function in op.functions]
        kept = ", ".join(f"`{attribute}`" for attribute in op.attributes)
        about = " ".join((inspect.getdoc(type(op)) or "").split("\n\n")[0].split())
        return f"`{name}`", ", ".join(spelled) or "–", about + f" Attributes: {kept}." * bool(kept)

    return table(("operation", "in PyTorch", "what it computes"), map(row, OPERATIONS))


def calls() -> str:
    """Calls of PyTorch that torch.export gives, and that a graph says in the words of its operations."""
    handlers = import_module("fedsparsify.networks.exporting").HANDLERS
    return ", ".join(f"`{name}`" for name in sorted(handlers) if not name.startswith("_"))


def names(*wanted: str) -> str:
    """Public names with their docstrings, by autodoc."""
    parts = []
    for name in wanted:
        home, _, attribute = name.rpartition(".")
        public = getattr(import_module(home), attribute)
        if isinstance(public, type):
            signature = "(**settings)" if public is RunConfig or issubclass(public, Averaging) else ""
            lines = [f".. autoclass:: {name}{signature}"]
            lines += ["   :show-inheritance:"] * (public.__base__ is not object)
            lines += ["   :members:"] * (public is not Entry and not issubclass(public, Exception))
        else:
            lines = [f".. autofunction:: {name}"]
        parts.append(f"## {attribute}\n\n```{{eval-rst}}\n" + "\n".join(lines) + "\n```")
    return "\n\n".join(parts)


def exceptions() -> str:
    """The tree of errors."""
    tree = re.search(r"(    FedSparsifyError\n(?:     .*\n)+)", errors.__doc__ or "")
    return f"```text\n{inspect.cleandoc(tree[1]) if tree else ''}\n```"


def messages() -> str:
    """Every message of an error, by the error's class, with `…` for what is filled in."""
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                said = _literal(node.exc.args[0])
                if len(re.findall(r"\w{2,}", said)) >= 3:
                    found.setdefault(ast.unparse(node.exc.func), set()).add(said)
    parts = []
    for kind in [name for name in vars(errors) if name.endswith("Error")] + ["OutOfMemory", "Untraceable"]:
        listed = sorted(found.get(kind, ()), key=lambda said: said.lstrip("… :'\"").lower())
        if listed:
            parts += [f"### {kind}", "\n".join(f"- {_escaped(said)}" for said in listed)]
    return "\n\n".join(parts)


def _literal(node: ast.expr) -> str:
    """A message as it stands in the source; empty where it is computed."""
    if isinstance(node, ast.JoinedStr):
        pieces = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
        return "".join(map(str, pieces))
    return str(node.value) if isinstance(node, ast.Constant) else ""


def log() -> str:
    """Links to the entries of the log."""
    entries = re.findall(r"^## (\S+) · (.+)$", LOG.read_text(), re.MULTILINE)
    rows = ((date, f"[{title}](#{anchor(f'{date} · {title}')})") for date, title in entries)
    return table(("date", "entry"), rows)


def anchor(title: str) -> str:
    """The anchor of a heading, as MyST and GitHub make it."""
    return re.sub(r"[^\w\- ]", "", title.lower().replace("`", "")).replace(" ", "-")


SOURCES: dict[str, Callable[..., str]] = {
    "commands": commands,
    "config": config,
    "methods": methods,
    "operations": operations,
    "calls": calls,
    "names": names,
    "exceptions": exceptions,
    "messages": messages,
    "log": log,
}
