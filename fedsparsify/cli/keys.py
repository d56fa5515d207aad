"""`fedsparsify keys`: the certificate and the keys of a real federation, from the first day to the last."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ..errors import ConfigError
from .flags import PATH
from .screen import Screen

SHOWN = 10  # nodes whose command is printed
PASSPHRASE = "FEDSPARSIFY_CA_PASSPHRASE"
HOST = click.option(
    "--host", "hosts", multiple=True, help="a name or address of the server; may be given several times"
)
DAYS = click.option(
    "--days", default=365, show_default=True, type=click.IntRange(1), help="how long server.crt is good"
)


class KeysGroup(click.Group):
    """Commands on a folder of keys; `keys FOLDER`, without one of their names, is `keys make FOLDER`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments name."""
        return super().resolve_command(ctx, args if args and args[0] in self.commands else ["make", *args])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Flags before the folder belong to `make`."""
        if args and args[0].startswith("-") and args[0] not in ("-h", "--help"):
            args = ["make", *args]
        return super().parse_args(ctx, args)


@click.command("keys", cls=KeysGroup)
def command() -> None:
    """Make, add, revoke and renew the certificates and keys of a federation.

    \b
    fedsparsify keys keys --nodes 10 --host server.example.org     once: a CA, the server's certificate, ten keys
    fedsparsify keys add keys                                      one more node; a running server lets it in
    fedsparsify keys add keys --name mercy --public mercy.pub      the same with a key that the node made itself
    fedsparsify keys revoke keys node-3                            at once, and for good
    fedsparsify keys renew keys                                    a new server.crt; nodes keep their ca.crt
    fedsparsify keys list keys                                     who may join, and until when certificates are good
    """


@command.command("make")
@click.argument("folder", type=PATH)
@click.option("--nodes", default=10, show_default=True, type=click.IntRange(0), help="how many nodes to make keys for")
@HOST
@DAYS
@click.option("--passphrase", is_flag=True, help=f"encrypt ca.key: asks for a passphrase, or takes ${PASSPHRASE}")
def make(folder: Path, nodes: int, hosts: tuple[str, ...], days: int, passphrase: bool) -> None:
    """Make a CA, a server certificate and a key for every node.

    Give each node ca.crt and its own node-I. Keep server.key and all node-I.pub on the server. A node needs one of the
    keys to join. Keep ca.key where the server cannot reach it, and bring it back for `keys renew`.
    """
    from ..federation.flower.keys import make_keys

    secret = _new_passphrase() if passphrase else ""
    make_keys(folder, [*dict.fromkeys([*hosts, "127.0.0.1", "localhost"])], nodes, days, secret)
    console = Screen()
    console.print(f"In {folder}/: ca.crt, ca.key, server.crt (good for {days} days), server.key and {nodes} keys.")
    console.print(f"  the server:  fedsparsify serve CONFIG.toml --keys {folder}", soft_wrap=True)
    where = f"{hosts[0] if hosts else 'localhost'}:8000"
    for node in range(min(nodes, SHOWN)):
        told = f"--superlink {where} --ca {folder}/ca.crt --key {folder}/node-{node} --client {node}"
        console.print(f"  node {node}:      fedsparsify join {told}", soft_wrap=True)
    if not nodes:
        console.print(f"  a node:      fedsparsify keys add {folder} --name NAME --public NAME.pub", soft_wrap=True)
    if nodes > SHOWN:
        console.print(f"  and so on, to node {nodes - 1}", soft_wrap=True)
    console.print("A node on another machine needs copies of ca.crt and of its own key alone.", soft_wrap=True)
    console.print(
        f"Store {folder}/ca.key away from the server: only `fedsparsify keys renew` needs it.", soft_wrap=True
    )


@command.command("add")
@click.argument("folder", type=PATH)
@click.option("--nodes", type=click.IntRange(1), help="how many keys to make, named node-I  [default: 1]")
@click.option("--name", "names", multiple=True, help="a node's name; may be given several times")
@click.option("--public", type=PATH, help="public key that the node made: ssh-keygen -t ecdsa -b 384 -N '' -f NAME")
def add(folder: Path, nodes: int | None, names: tuple[str, ...], public: Path | None) -> None:
    """Let more nodes join. A server that runs with these keys admits them within seconds.

    A name is never used twice. The number of clients is the run's: a new node takes part where a client's number is
    free.
    """
    from ..federation.flower.keys import add_nodes, free_names

    if names and nodes:
        raise ConfigError("give either --nodes or --name.")
    if public and len(names) != 1:
        raise ConfigError("--public needs one --name for the node.")
    made = add_nodes(folder, names or free_names(folder, nodes or 1), public)
    console = Screen()
    for path in made:
        what = "stays with the server" if path.suffix == ".pub" else "give it to the node, with ca.crt"
        console.print(f"{path}: {what}", soft_wrap=True)


@command.command("revoke")
@click.argument("folder", type=PATH)
@click.argument("names", nargs=-1, required=True)
def revoke(folder: Path, names: tuple[str, ...]) -> None:
    """Keep nodes out for good. A server that runs with these keys disconnects them within seconds.

    Their public keys go to FOLDER/revoked. No server with this folder admits them again, under any name and with any
    database.
    """
    from ..federation.flower.keys import revoke_nodes

    before = revoke_nodes(folder, names)
    console = Screen()
    for name in (name.removesuffix(".pub") for name in names):
        console.print(f"{name} was revoked before." if name in before else f"{name} is revoked.")


@command.command("renew")
@click.argument("folder", type=PATH)
@HOST
@DAYS
@click.option("--ca-key", type=PATH, help="the CA's private key  [default: FOLDER/ca.key]")
@click.option("--new-key", is_flag=True, help="replace server.key, too: if others may have seen it")
@click.option("--new-ca", is_flag=True, help="begin a new CA beside the old one, and leave server.crt as it is")
@click.option("--passphrase", is_flag=True, help=f"with --new-ca: encrypt ca.key (asks, or takes ${PASSPHRASE})")
def renew(
    folder: Path,
    hosts: tuple[str, ...],
    days: int,
    ca_key: Path | None,
    new_key: bool,
    new_ca: bool,
    passphrase: bool,
) -> None:
    """Replace server.crt. The CA stays, so nodes change nothing; a running server takes the new one by itself.

    Without --host the new certificate is for the names of the old one. If ca.key is lost or its ten years are over:
    `--new-ca`, give every node the new ca.crt, which trusts both, then `renew` again.
    """
    from ..federation.flower.certificates import hosts_of
    from ..federation.flower.keys import begin_authority, encrypted
    from ..federation.flower.keys import renew as renew_certificate

    console = Screen()
    if new_ca:
        if ca_key or new_key or hosts:
            raise ConfigError("--new-ca changes ca.crt and ca.key alone: leave out --ca-key, --new-key and --host.")
        begin_authority(folder, _new_passphrase() if passphrase else "")
        console.print(f"{folder}/ca.crt trusts the old CA and a new one. Give it to every node, then:", soft_wrap=True)
        console.print(f"  fedsparsify keys renew {folder}", soft_wrap=True)
        return
    where = ca_key or folder / "ca.key"
    secret = _passphrase(where) if where.exists() and encrypted(where) else ""
    made = renew_certificate(folder, hosts, days, ca_key, secret, new_key)
    ends = f"{made.not_valid_after_utc:%Y-%m-%d}"
    console.print(f"{folder}/server.crt is good until {ends}, for {', '.join(hosts_of(made))}.", soft_wrap=True)


@command.command("list")
@click.argument("folder", type=PATH)
def show(folder: Path) -> None:
    """Show who may join, who was revoked, and until when the certificates are good."""
    from ..federation.flower.keys import certificates_in, fingerprint, node_keys, revoked_keys

    rows = []
    for name in ("ca.crt", "server.crt"):
        for certificate in certificates_in(folder / name):
            rows.append((name, "certificate", f"good until {certificate.not_valid_after_utc:%Y-%m-%d}"))
    rows += [(key.name, "may join", fingerprint(key)) for key in node_keys(folder)]
    rows += [(key.name, "revoked", fingerprint(key)) for key in revoked_keys(folder)]
    wide = max(len(name) for name, _, _ in rows)
    for name, state, what in rows:
        Screen().print(f"{name:{wide}}  {state:11}  {what}", soft_wrap=True)


def _passphrase(path: Path) -> str:
    return os.environ.get(PASSPHRASE) or str(click.prompt(f"Passphrase of {path}", hide_input=True))


def _new_passphrase() -> str:
    return os.environ.get(PASSPHRASE) or str(
        click.prompt("New passphrase for ca.key", hide_input=True, confirmation_prompt=True)
    )
