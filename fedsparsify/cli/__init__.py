"""The command line: one file per command, each with a `command`, and the group that holds them all.

Nothing here imports torch, numba or flwr: a command imports them when it runs, so that `--help` is quick.
"""

from __future__ import annotations

import click

from . import bench, data, export, infer, inspect, join, keys, methods, report, run, serve, sweep

COMMANDS: tuple[click.Command, ...] = (
    run.command,
    sweep.command,
    report.command,
    inspect.command,
    export.command,
    infer.command,
    bench.command,
    serve.command,
    join.command,
    keys.command,
    methods.command,
    data.command,
)


@click.group(commands=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="fedsparsify")
def cli() -> None:
    """Train extremely sparse neural networks on data that never leaves its owners.

    \b
    fedsparsify run                                     a small run on the digits that come with us
    fedsparsify run --data fashion-mnist --split classes:2 --sparsity 0.95
    fedsparsify run --out runs/mine --resume            go on after a stop
    """
