"""`fedsparsify`, and `python -m fedsparsify`: errors raised on purpose become one line and exit code 2."""

from __future__ import annotations

import signal
import sys
import warnings
from typing import TextIO

from .errors import FedSparsifyError
from .notices import Notice
from .text import plain

MESSAGE = 3000  # letters of an error

EXTRAS = {
    "numba": "infer",
    "llvmlite": "infer",
    "torch": "train",
    "matplotlib": "report",
    "flwr": "flower",
    "cryptography": "flower",
    "onnx": "export",
    "safetensors": "export",
    "tensorboard": "track",
    "mlflow": "track",
}


def show_notice(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A notice of ours as one line; any other warning as Python shows it."""
    ours = issubclass(category, Notice)
    note = f"Note: {plain(message, MESSAGE)}\n"
    text = note if ours else warnings.formatwarning(message, category, filename, lineno, line)
    print(text, end="", file=file or sys.stderr)


def main() -> None:
    """Run the command line. A service manager's wish to stop is the same as Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    warnings.showwarning = show_notice
    try:
        import click

        from .cli import cli
    except ImportError as error:
        sys.exit(f"the command line needs {error.name}: pip install 'fedsparsify[train]'")
    try:
        sys.exit(cli(standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        print("Stopped.", file=sys.stderr)
        sys.exit(130)
    except FedSparsifyError as error:
        print(f"{type(error).__name__}: {plain(error, MESSAGE)}", file=sys.stderr)
        sys.exit(2)
    except ImportError as error:
        if error.name not in EXTRAS:
            raise
        print(f"this needs {error.name}: pip install 'fedsparsify[{EXTRAS[error.name]}]'", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
