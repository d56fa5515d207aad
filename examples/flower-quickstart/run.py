"""Run one of the two apps on this machine: a SuperLink, two SuperNodes and `flwr run`, unsecured, for a trial."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from fedsparsify.federation.flower.commands import Link, environment_variables, shown, supernode
from fedsparsify.federation.flower.processes import Server, free_port, running
from fedsparsify.stopping import EXIT_CODE, listen

NODES = 2


def main(which: str) -> int:
    """Run the app in the folder `which`."""
    app = Path(__file__).resolve().parent / which
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        home = Path(folder)
        link = Link("127.0.0.1", free_port(), free_port(), None, home / "flower")
        stack.enter_context(Server(link, print).open())
        for number in range(NODES):
            settings = {"partition-id": number, "num-partitions": NODES}
            command = supernode(link.public_address, None, None, free_port(), settings)
            print(shown(command))
            node = environment_variables(home / f"node-{number}")
            stack.enter_context(running(command, node, home / f"node-{number}.log"))
        print(shown(link.run(app)))
        began = time.perf_counter()
        done = subprocess.run(link.run(app), env=environment_variables(link.home), check=False)
        print(f"{time.perf_counter() - began:.0f} s")
        return done.returncode


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in ("dense", "sparse"):
        sys.exit("usage: python run.py dense|sparse")
    listen()  # SIGTERM ends everything that was started, as Ctrl-C does
    try:
        sys.exit(main(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit(EXIT_CODE)
