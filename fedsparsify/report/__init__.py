"""Pictures and pages of runs, made from the files that runs leave and from nothing else."""

from .run_report import write_report

__all__ = ["write_report"]
