"""`fedsparsify`, and `python -m fedsparsify`: errors raised on purpose become one line and exit code 2."""

from __future__ import annotations

import sys
from contextlib import suppress

from . import stopping
from .errors import FedSparsifyError
from .text import plain

MESSAGE = 3000  # letters of an error

EXTRAS = {
    "numba": "compile",
    "llvmlite": "compile",
    "torch": "train",
    "matplotlib": "report",
    "flwr": "flower",
    "cryptography": "flower",
    "onnx": "export",
    "safetensors": "export",
    "tensorboard": "track",
    "mlflow": "track",
    "wandb": "track",
    "prometheus_client": "monitor",
}


def main() -> None:
    """Run the command line. A service manager's wish to stop is the same as Ctrl-C."""
    stopping.listen()
    code = _command()
    stopping.ignore()
    sys.exit(code)


def _command() -> int | str | None:
    """The exit code of the command, or what to say with exit code 1."""
    try:
        with stopping.uninterrupted():  # an import that is interrupted may leave half a module
            import click

            from .cli import cli
    except ImportError as error:
        return f"the command line needs {error.name}: pip install 'fedsparsify[train]'"
    except KeyboardInterrupt:
        return _stopped()
    try:
        code: int | None = cli(standalone_mode=False)
        return code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _stopped()
    except FedSparsifyError as error:
        if not error.logged:
            print(f"{type(error).__name__}: {plain(error, MESSAGE)}", file=sys.stderr)
        return 2
    except Exception as error:
        if stopping.under_way():  # a library made another error of the KeyboardInterrupt
            return _stopped()
        if not isinstance(error, ImportError) or error.name not in EXTRAS:
            raise
        print(f"this needs {error.name}: pip install 'fedsparsify[{EXTRAS[error.name]}]'", file=sys.stderr)
        return 2


def _stopped() -> int:
    with stopping.ending():
        with suppress(OSError):  # of a terminal that was closed
            print("Stopped.", file=sys.stderr)
        return stopping.EXIT_CODE


if __name__ == "__main__":
    main()
