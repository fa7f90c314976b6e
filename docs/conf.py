"""How Sphinx builds the documentation: `sphinx-build -W -n docs docs/_build/html`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Triton reads it when it is imported; kernels in docstrings need no GPU.
os.environ.setdefault("TRITON_INTERPRET", "1")
sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import shipconf

project = "shipconf"
author = "the shipconf authors"
project_copyright = author
version = release = shipconf.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "command_line"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
# Option names and quotes stand in prose: `--dry-run` must not become an en dash.
smartquotes = False
# Docstrings mark code as Markdown does, with single backticks.
default_role = "code"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 120
nitpicky = True
# Names of other projects, whose documentation the build does not fetch, and shipconf's own types
# that no user makes.
nitpick_ignore_regex = [
    ("py:.*", r"(collections|pathlib|typing|types|triton|torch|module)\b.*"),
    ("py:.*", r"(Any|Path|Entry|Value|KernelInterface|ModuleType)"),
    ("py:.*", r"(Callable|Sequence|Mapping|Iterator)"),
    ("py:.*", r"shipconf\.(hooks|keys|resolver|choice|workload)\..*"),
]

html_theme = "furo"
html_title = "shipconf"
html_static_path = ["_static"]
html_css_files = ["shipconf.css"]
html_extra_path = ["reference/schema-1.json"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "default"
pygments_dark_style = "monokai"
