"""Configuration of the documentation: `python -m sphinx -W -n --keep-going docs build/site` builds it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tools import site

import magna

project, release, version = "magna", magna.__version__, magna.__version__
author = "The magna authors"
project_copyright = author
html_title = f"magna {release}"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["assets"]
nitpicky = True
# Types of other packages: their pages are on other hosts, which a build without a network cannot read.
nitpick_ignore_regex = [(r"py:.*", r"(?!magna\.).*")]
nitpick_ignore_regex += [
    (r"py:class", r"magna\..*\._\w+|magna\.config\.options\.Kind")
]  # private types, type variables
highlight_language = "text"

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4

default_role = "code"
smartquotes = False
add_module_names = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 80
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Shapes"]
napoleon_use_rtype = False

# Furo: one column that fits a phone, a dark mode, and no request to another host.
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style, pygments_dark_style = "friendly", "monokai"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# MathJax as one file of the site.
_MATHJAX = importlib.util.find_spec("sphinx-mathjax-offline").submodule_search_locations[0]
html_static_path.append(f"{_MATHJAX}/static/mathjax/tex-svg.js")
mathjax_path = "tex-svg.js"
mathjax3_config = {"options": {"enableMenu": False}}


def setup(app):
    app.connect("autodoc-process-docstring", site.sections, priority=400)  # before napoleon
    app.connect("autodoc-process-signature", site.signature)
    app.connect("autodoc-skip-member", site.is_left_out)
    app.connect("doctree-read", site.dashes)
    app.connect("html-page-context", site.label_tables)
    app.connect("build-finished", site.check_hosts)
