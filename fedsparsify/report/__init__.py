"""Tables, figures and pages of runs, made from the files that runs leave and from nothing else."""

from .docs import fill_page
from .environments import environments_of
from .load import load_runs
from .packed import write_packed
from .run_report import PAGE, write_report, write_sweep_report
from .site import write_site

__all__ = [
    "PAGE",
    "environments_of",
    "fill_page",
    "load_runs",
    "write_packed",
    "write_report",
    "write_site",
    "write_sweep_report",
]
