"""`fedsparsify serve`: a run for real clients, over Flower."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..config import RunConfig, load_config
from ..errors import ConfigError, FedSparsifyError, RunError
from ..federation.flower.serve_settings import ServeSettings
from ..stopping import EXIT_CODE, ending, uninterrupted
from .ending import show_ending, show_stopped
from .flags import JSON_HELP, METRICS, PAGE_AT, PATH, PORT, flags_of
from .json_lines import json_lines
from .log import with_log
from .screen import Screen

if TYPE_CHECKING:
    from ..federation.ledger import Entry
    from ..federation.run import RunFolder
    from ..monitor.address import Address

RESTARTS = 3  # of a ServerApp that was killed


@click.command("serve")
@click.argument("config", required=False, type=PATH)
@click.option("--out", type=PATH, help="folder for the run  [default: runs/NAME-OF-CONFIG]")
@click.option("--resume", is_flag=True, help="go on where the run in --out stopped")
@click.option("--host", default="0.0.0.0", show_default=True, help="address to listen at")
@click.option("--port", type=PORT, default=8000, show_default=True, help="port to listen at")
@click.option("--superlink-port", type=PORT, help="the SuperLink's port at 127.0.0.1  [default: a free one, kept]")
@click.option("--keys", type=PATH, help="folder with certificate and nodes' public keys, see `fedsparsify keys`")
@click.option("--insecure", is_flag=True, help="without encryption and without keys: for trials only")
@click.option(
    "--ray", is_flag=True, help="no real clients: Flower's simulation engine, on a Ray cluster or this machine"
)
@flags_of(ServeSettings)
@METRICS
@PAGE_AT
@click.option("--app-only", is_flag=True, help="write the Flower app, print the commands and start nothing")
@click.option("--json", "as_json", is_flag=True, help=JSON_HELP)
@with_log
def command(
    console: Screen,
    config: Path | None,
    out: Path | None,
    resume: bool,
    host: str,
    port: int,
    superlink_port: int | None,
    keys: Path | None,
    insecure: bool,
    ray: bool,
    metrics: Address | None,
    page: Address | None,
    app_only: bool,
    as_json: bool,
    **waiting: Any,
) -> int:
    """Serve a run to real clients: a Flower SuperLink, a proxy in front of it, and our app.

    CONFIG is the TOML file that `fedsparsify run` takes. The server needs test samples alone, or none where clients
    evaluate: data = "clients", with shape and classes. Clients join with `fedsparsify join`. The Flower commands behind
    this are printed as they run.
    """
    with uninterrupted():  # an interrupted import may leave half a module
        from ..federation.early_stopping import check_patience
        from ..federation.flower.commands import Keys, Link, last_superlink_port, shown, write_app
        from ..federation.flower.prepare import make_task, most_body_bytes
        from ..federation.flower.processes import Server, free_port
        from ..federation.ledger import read_history
        from ..federation.lock import held
        from ..monitor.status import Status
        from ..monitor.watch import watched
        from .progress import Progress

    lines = click.get_current_context().with_resource(json_lines(as_json))
    if (keys is not None) + insecure + ray != 1:
        raise ConfigError("serve needs one of --keys DIR (make it with `fedsparsify keys DIR`), --insecure and --ray.")
    settings = ServeSettings(**waiting)
    made, folder = _run_of(config, out, resume)
    if made.diagnose:
        raise ConfigError("diagnose looks at training samples, which a server does not have: leave it out.")
    check_patience(made)
    home = folder.path.resolve() / "flower"
    secured = Keys(keys) if keys else None
    if secured:
        secured.check()
        if len(secured.nodes) < made.min_clients:
            raise ConfigError(
                f"{keys} holds {len(secured.nodes)} public keys of nodes (*.pub), and a round needs min_clients = "
                f"{made.min_clients}."
            )
    task, app = make_task(made, folder), folder.path / "app"
    simulated = made.clients if ray else 0
    inner = superlink_port or last_superlink_port(home) or (port if ray else free_port())
    link = Link(host, port, inner, secured, home, simulated, most_body_bytes(task))
    told = task.settings() | {"out": str(folder.path.resolve())} | asdict(settings)
    told |= {"nodes": len(secured.nodes)} if secured else {}
    if app_only:
        write_app(app, told | {"resume": resume})
        link.write_connection()
        commands = [link.superlink(), *link.register(), *([] if ray else [link.proxy()]), link.run(app)]
        for text in (f"export FLWR_HOME={link.home}", *map(shown, commands)):
            Screen().print(text, soft_wrap=True)  # for a shell: no log
        return 0
    how = f"--keys {keys}" if keys else "--ray" if ray else "--insecure"
    status = Status("server", "waiting for clients", made.rounds, keys=keys)

    def show(entry: Entry) -> None:
        progress.show(entry)
        status.show(entry)
        if lines:
            lines.show(entry)

    with held(home):  # the SuperLink's folder; the ServerApp locks the run's own
        try:
            with (
                watched(status, metrics, page, folder.path) as watching,
                Server(link, console.show_command, console.print, console.log_line).open() as server,
                Progress(console, made, every_round=True) as progress,
            ):
                status.processes = server.processes
                for line in watching:
                    console.print(line, soft_wrap=True)
                where = "In Flower's simulation engine" if ray else f"Listening at {host}, port {port}"
                console.print(f"{where}: {made.clients} clients take part.")
                write_app(app, told | {"resume": resume})
                for left in range(RESTARTS, -1, -1):
                    if server.run_app(app, folder, made.rounds, show):
                        break
                    if not left:
                        raise RunError(f"the ServerApp ended {RESTARTS + 1} times too early. See {link.home}/run.log.")
                    console.print("The ServerApp ended early; it is started again from its checkpoint.", style="yellow")
                    write_app(app, told | {"resume": True})
                    status.restarts += 1
            show_ending(console, made, read_history(folder.history), folder.path, folder.model)
        except (KeyboardInterrupt, FedSparsifyError) as error:
            with ending():
                run = f"--out {folder.path} --resume" if folder.config.exists() else f"{config} --out {folder.path}"
                ports = f"--port {port}" + (f" --superlink-port {superlink_port}" if superlink_port else "")
                ports += "".join(f" --{name} {at}" for name, at in (("metrics", metrics), ("page", page)) if at)
                show_stopped(console, f"serve {run} {how} --host {host} {ports}")
                if isinstance(error, FedSparsifyError):
                    raise
                return EXIT_CODE
    return 0


def _run_of(config: Path | None, out: Path | None, resume: bool) -> tuple[RunConfig, RunFolder]:
    """The run's config, and its folder."""
    from ..federation.run import RunFolder, with_noise

    if config is None and not (resume and out):
        raise ConfigError("serve needs a CONFIG.toml; or --resume with the --out of a run.")
    folder = RunFolder(out or Path("runs") / (config.stem if config else ""))
    made = with_noise(load_config(config or folder.config))
    folder.check(made, resume)
    return made, folder
