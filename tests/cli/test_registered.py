"""The commands are registered in one way, and starting the command line loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click

from fedsparsify import cli

SHARED = {
    "time_bar",
    "units",
    "model_files",
    "__init__",
    "ending",
    "flags",
    "json_lines",
    "log",
    "progress",
    "screen",
    "size",
}


def test_one_file_per_command():
    files = {path.stem for path in Path(cli.__file__).parent.glob("*.py")} - SHARED
    commands = {name: import_module(f"fedsparsify.cli.{name}").command for name in files}
    assert {command.name: command for command in cli.COMMANDS} == commands == dict(cli.cli.commands)


def test_every_command_and_flag_has_a_help_text():
    for command in cli.COMMANDS:
        assert command.help
        for parameter in command.params:
            assert isinstance(parameter, click.Argument) or parameter.help, f"{command.name} {parameter.name}"


def test_help_loads_nothing_heavy():
    heavy = {"torch", "numba", "flwr", "matplotlib", "onnx", "safetensors", "mlflow"}
    code = f"import sys, fedsparsify.cli; sys.exit(', '.join({heavy} & sys.modules.keys()) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
