"""`fedsparsify keys`: the certificate and the keys of a real federation."""

from __future__ import annotations

from pathlib import Path

import click

from .flags import PATH
from .screen import Screen


@click.command("keys")
@click.argument("folder", type=PATH)
@click.option("--nodes", default=10, type=click.IntRange(1), show_default=True, help="how many nodes to make keys for")
@click.option("--host", "hosts", multiple=True, help="a name or address of the server; may be given several times")
def command(folder: Path, nodes: int, hosts: tuple[str, ...]) -> None:
    """Make a CA, a server certificate and a key for every node.

    Give each node ca.crt and its own node-I. Keep server.key and all node-I.pub on the server. A node needs one of the
    keys to join.
    """
    from ..federation.flower.keys import make_keys

    make_keys(folder, [*dict.fromkeys([*hosts, "127.0.0.1", "localhost"])], nodes)
    console = Screen()
    console.print(f"In {folder}/: ca.crt, server.crt, server.key and {nodes} keys, good for a year.")
    console.print(f"  the server:  fedsparsify serve CONFIG.toml --keys {folder}", soft_wrap=True)
    where = f"{hosts[0] if hosts else '127.0.0.1'}:8000"
    console.print(f"  node I:      fedsparsify join --superlink {where} --ca ca.crt --key node-I", soft_wrap=True)
