"""`fedsparsify join`: a client of a run that another machine serves, over Flower."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import ConfigError
from ..stopping import EXIT_CODE, ending, uninterrupted
from .flags import METRICS, PATH, PORT
from .log import LogScreen, with_log
from .screen import Screen

if TYPE_CHECKING:
    from ..monitor.address import Address


@click.command("join")
@click.option("--superlink", required=True, metavar="HOST:PORT", help="where the server listens")
@click.option("--data", help="your samples: FILE.npz or module:function  [default: your part of the run's data set]")
@click.option(
    "--client", type=click.IntRange(0), help="your number among the clients  [default: the server gives you one]"
)
@click.option("--ca", type=PATH, help="certificate of the federation's CA (ca.crt)")
@click.option("--key", type=PATH, help="your private key (node-I)")
@click.option("--insecure", is_flag=True, help="without encryption and without a key: for trials only")
@click.option("--folder", type=PATH, help="where this node keeps masks and momentum  [default: nodes/NUMBER-OR-KEY]")
@click.option("--device", default="cpu", show_default=True, help="where to train: cpu, cuda or cuda:N")
@click.option("--share-errors", is_flag=True, help="send errors to the server whole: text, paths and lines")
@click.option("--port", type=PORT, help="local port of the SuperNode's own  [default: a free one]")
@click.option(
    "--tries",
    default=0,
    type=click.IntRange(0),
    help="how often to start the SuperNode  [default: as often as it takes]",
)
@METRICS
@with_log
def command(
    console: Screen,
    superlink: str,
    data: str | None,
    client: int | None,
    ca: Path | None,
    key: Path | None,
    insecure: bool,
    folder: Path | None,
    device: str,
    share_errors: bool,
    port: int | None,
    tries: int,
    metrics: Address | None,
) -> int:
    """Join a run as a client: a Flower SuperNode that trains on your samples, which never leave this machine.

    --data is an .npz with x_train and y_train, or a module:function that returns them. For a trial, leave it out: this
    client then trains on its part of the run's own data set, the same part as in a simulation.

    If training fails here, the server is told the error's class; what the error says stays in this command's output.
    """
    with uninterrupted():  # an interrupted import may leave half a module
        from ..data.presence import check_present
        from ..federation.flower.commands import shown, supernode
        from ..federation.flower.preflight import check_server, read_address
        from ..federation.flower.processes import free_port, stay
        from ..monitor.status import Status
        from ..monitor.watch import watched

    if insecure == bool(ca and key):
        raise ConfigError("join needs either --ca ca.crt with --key node-I, or --insecure.")
    read_address(superlink)
    for path in (ca, key):
        if path and not path.is_file():
            raise ConfigError(f"there is no file {path}.")
    if data:
        check_present(data)
    home = (folder or Path("nodes") / (str(client) if client is not None else key.name if key else "own")).resolve()
    told: dict[str, str | int] = {"folder": str(home), "device": device}
    told |= {} if client is None else {"client": client}
    told |= {"share-errors": True} if share_errors else {}
    if data:
        told["data"] = str(Path(data).resolve()) if data.endswith(".npz") else data
    command = supernode(superlink, ca, key, port or free_port(), told)
    home.mkdir(parents=True, exist_ok=True)
    console.show_command(shown(command))

    def check() -> None:
        if ca and key:
            check_server(superlink, ca, key)

    pass_on = console.log_line if isinstance(console, LogScreen) else None
    status = Status("client", "running")

    def started(process: subprocess.Popen[bytes]) -> None:
        status.restarts += bool(status.processes())
        status.processes = lambda: {"supernode": process.poll() is None}

    try:
        with watched(status, metrics) as lines:
            for line in lines:
                console.print(line, soft_wrap=True)
            return stay(command, home / "flower", tries, console.print, check, pass_on, started)
    except KeyboardInterrupt:
        with ending():
            console.print("Left. Masks and momentum are kept; the same command joins again.")
            return EXIT_CODE
