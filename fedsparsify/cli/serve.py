"""`serve`, `join` and `keys`: a real federation over Flower."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ..config import RunConfig, load_config
from ..errors import ConfigError, FedSparsifyError, RunError
from ..federation.flower.patience import Patience
from ..options import settings
from ..stopping import EXIT_CODE, ending, uninterrupted
from .ending import show_ending
from .screen import Screen

RESTARTS = 3  # of a ServerApp that was killed
PATH = click.Path(path_type=Path)


def _say(console: Console) -> Callable[[str], None]:
    """Print the Flower command that is about to run."""
    return lambda command: console.print(f"$ {command}", style="dim", soft_wrap=True)


def _patience(command: Callable[..., int]) -> Callable[..., int]:
    """The flags of how long a server waits."""
    for setting in reversed(settings(Patience).values()):
        flag = click.option(f"--{setting.name}", default=setting.default, show_default=True, help=setting.help)
        command = flag(command)
    return command


@click.command()
@click.argument("config", required=False, type=PATH)
@click.option("--out", type=PATH, help="folder for the run  [default: runs/NAME-OF-CONFIG]")
@click.option("--resume", is_flag=True, help="go on where the run in --out stopped")
@click.option("--host", default="0.0.0.0", show_default=True, help="address to listen at")
@click.option("--port", default=8000, show_default=True, help="port to listen at")
@click.option("--superlink-port", type=int, help="the SuperLink's port at 127.0.0.1  [default: a free one, kept]")
@click.option("--keys", type=PATH, help="folder with certificate and nodes' public keys, see `fedsparsify keys`")
@click.option("--insecure", is_flag=True, help="without encryption and without asking who joins: for trials only")
@click.option(
    "--ray", is_flag=True, help="no real clients: Flower's simulation engine, on a Ray cluster or this machine"
)
@_patience
@click.option("--app-only", is_flag=True, help="write the Flower app, print the commands and start nothing")
def serve(
    config: Path | None,
    out: Path | None,
    resume: bool,
    host: str,
    port: int,
    superlink_port: int | None,
    keys: Path | None,
    insecure: bool,
    ray: bool,
    app_only: bool,
    **patience: Any,
) -> int:
    """Serve a run to real clients: a Flower SuperLink, a proxy in front of it, and our app.

    CONFIG is the TOML file that `fedsparsify run` takes. The server needs the data set's test samples only; clients
    come with `fedsparsify join`. The Flower commands that this stands for are printed as they run.
    """
    with uninterrupted():  # an import that is interrupted may leave half a module
        from ..federation.flower.commands import Keys, Link, last_superlink_port, shown, write_app
        from ..federation.flower.prepare import make_task, most_body_bytes
        from ..federation.flower.processes import Server, free_port
        from ..federation.ledger import read_history
        from ..federation.lock import held
        from .progress import Progress

    console = Screen()
    if (keys is not None) + insecure + ray != 1:
        raise ConfigError("serve needs one of --keys DIR (make it with `fedsparsify keys DIR`), --insecure and --ray.")
    made, folder = _run_of(config, out, resume)
    if made.diagnose:
        raise ConfigError("diagnose looks at training samples, which a server does not have: leave it out.")
    home = folder.path.resolve() / "flower"
    secured = Keys(keys) if keys else None
    if secured:
        secured.check()
    task, app = make_task(made, folder), folder.path / "app"
    simulated = made.clients if ray else 0
    inner = superlink_port or last_superlink_port(home) or (port if ray else free_port())
    link = Link(host, port, inner, secured, home, simulated, most_body_bytes(task))
    told = task.settings() | {"out": str(folder.path.resolve())} | asdict(Patience(**patience))
    if app_only:
        write_app(app, told | {"resume": resume})
        link.write_connection()
        commands = [link.superlink(), *link.register(), *([] if ray else [link.proxy()]), link.run(app)]
        for text in (f"export FLWR_HOME={link.home}", *map(shown, commands)):
            console.print(text, soft_wrap=True)
        return 0
    how = f"--keys {keys}" if keys else "--ray" if ray else "--insecure"
    with held(home):  # what the SuperLink uses; the ServerApp holds the run's folder while it plays
        try:
            with Server(link, _say(console)).open() as server, Progress(console, made) as progress:
                where = "in Flower's simulation engine" if ray else f"at {host}, port {port}"
                console.print(f"{made.clients} clients take part, {where}.")
                write_app(app, told | {"resume": resume})
                for left in range(RESTARTS, -1, -1):
                    if server.play(app, folder, made.rounds, progress.show):
                        break
                    if not left:
                        raise RunError(f"the ServerApp ended {RESTARTS + 1} times too early. See {link.home}/run.log.")
                    console.print("The ServerApp is gone; it is started again from its checkpoint.", style="yellow")
                    write_app(app, told | {"resume": True})
            show_ending(console, made, read_history(folder.history), folder.path, folder.model)
        except (KeyboardInterrupt, FedSparsifyError) as error:
            with ending():
                run = f"--out {folder.path} --resume" if folder.config.exists() else f"{config} --out {folder.path}"
                console.print("Stopped. Nothing is lost; go on with:")
                ports = f"--port {port}" + (f" --superlink-port {superlink_port}" if superlink_port else "")
                console.print(f"  fedsparsify serve {run} {how} --host {host} {ports}", soft_wrap=True)
                if isinstance(error, FedSparsifyError):
                    raise
                return EXIT_CODE
    return 0


def _run_of(config: Path | None, out: Path | None, resume: bool) -> tuple[RunConfig, Any]:
    """The run's config, and its folder."""
    from ..federation.run import RunFolder

    if config is None and not (resume and out):
        raise ConfigError("serve needs a CONFIG.toml; or --resume with the --out of a run.")
    folder = RunFolder(out or Path("runs") / (config.stem if config else ""))
    made = load_config(config or folder.config)
    folder.check(made, resume)
    return made, folder


@click.command()
@click.option("--superlink", required=True, metavar="HOST:PORT", help="where the server listens")
@click.option("--data", help="your samples: FILE.npz or module:function  [default: your part of the run's data set]")
@click.option("--client", type=int, help="your number among the clients  [default: the server gives you one]")
@click.option("--ca", type=PATH, help="certificate of the federation's CA (ca.crt)")
@click.option("--key", type=PATH, help="your private key (node-I)")
@click.option("--insecure", is_flag=True, help="without encryption and without a key: for trials only")
@click.option("--folder", type=PATH, help="where this node keeps masks and momentum  [default: nodes/NUMBER-OR-KEY]")
@click.option("--device", default="cpu", show_default=True, help="where to train: cpu, cuda or cuda:N")
@click.option("--port", type=int, help="local port of the SuperNode's own  [default: a free one]")
@click.option("--tries", default=0, help="how often to start the SuperNode  [default: as often as it takes]")
def join(
    superlink: str,
    data: str | None,
    client: int | None,
    ca: Path | None,
    key: Path | None,
    insecure: bool,
    folder: Path | None,
    device: str,
    port: int | None,
    tries: int,
) -> int:
    """Join a run as a client: a Flower SuperNode that trains on your samples, which never leave this machine.

    --data is an .npz with x_train and y_train, or a module:function that returns them. For a trial, leave it out: this
    client then has its part of the run's own data set, the one that it has in a simulation.
    """
    with uninterrupted():  # an import that is interrupted may leave half a module
        from ..federation.flower.commands import shown, supernode
        from ..federation.flower.processes import free_port, stay

    console = Screen()
    if insecure == bool(ca and key):
        raise ConfigError("join needs either --ca ca.crt with --key node-I, or --insecure.")
    for path in (ca, key):
        if path and not path.exists():
            raise ConfigError(f"there is no file {path}.")
    home = (folder or Path("nodes") / (str(client) if client is not None else key.name if key else "own")).resolve()
    told: dict[str, str | int] = {"folder": str(home), "device": device}
    told |= {} if client is None else {"client": client}
    if data:
        told["data"] = str(Path(data).resolve()) if data.endswith(".npz") else data
    command = supernode(superlink, ca, key, port or free_port(), told)
    home.mkdir(parents=True, exist_ok=True)
    _say(console)(shown(command))
    try:
        return stay(command, home / "flower", tries, console.print)
    except KeyboardInterrupt:
        with ending():
            console.print("Left. Masks and momentum are kept; the same command joins again.")
            return EXIT_CODE


@click.command()
@click.argument("folder", type=PATH)
@click.option("--nodes", default=10, show_default=True, help="how many nodes to make keys for")
@click.option("--host", "hosts", multiple=True, help="a name or address of the server; may be given several times")
def keys(folder: Path, nodes: int, hosts: tuple[str, ...]) -> None:
    """Make a CA, a server certificate and a key for every node.

    Give each node ca.crt and its own node-I. Keep server.key on the server, and the node-I.pub there, too: whoever has
    one of those keys may join.
    """
    from ..federation.flower.keys import make_keys

    make_keys(folder, [*dict.fromkeys([*hosts, "127.0.0.1", "localhost"])], nodes)
    console = Screen()
    console.print(f"In {folder}/: ca.crt, server.crt, server.key and {nodes} keys, good for a year.")
    console.print(f"  the server:  fedsparsify serve CONFIG.toml --keys {folder}", soft_wrap=True)
    where = f"{hosts[0] if hosts else '127.0.0.1'}:8000"
    console.print(f"  node I:      fedsparsify join --superlink {where} --ca ca.crt --key node-I", soft_wrap=True)
