"""Sphinx's settings for the site: `make docs` builds it into site/.

The source folder is the repository, so that pages of `docs/` may link to SECURITY.md, examples/ and deploy/ as they do
on a code host. Pages with `<!-- made from: … -->` are completed from the package itself (`generate.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import generate  # noqa: E402

import fedsparsify  # noqa: E402

project, author = "fedsparsify", "the authors of fedsparsify"
release = version = fedsparsify.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md", "examples/**README.md"]
exclude_patterns = [".*", "**/.*", "build", "site", "results", "runs", "tests", "fedsparsify", "**/__pycache__"]

myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 4
smartquotes = False  # flags begin with two hyphens
suppress_warnings = ["myst.header"]  # CHANGELOG.md and examples may begin below level 1

default_role = "code"  # docstrings write `name`
autoclass_content = "both"
toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 90
napoleon_google_docstring, napoleon_numpy_docstring = True, False
napoleon_custom_sections = [("Settings", "params_style")]
add_module_names = False

html_theme = "furo"
html_title = f"fedsparsify {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["../build/site-extra"]  # the report of results/, and the page that leads to docs/
html_copy_source = False
html_show_sphinx = html_show_copyright = False
html_theme_options = {"footer_icons": [], "navigation_with_keys": True}
pygments_style, pygments_dark_style = "friendly", "native"


def setup(app: object) -> None:
    """Connect the generator."""
    generate.setup(app)
