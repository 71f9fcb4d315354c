"""How Sphinx builds these pages (`make docs`)."""

import re
from importlib.metadata import version as installed

project = "dd_jax"
author = "the authors of dd_jax"
release = version = installed("dd-jax")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
]
myst_enable_extensions = ["colon_fence"]
# Anchors of headings as in the files' own links, down to this level.
myst_heading_anchors = 4
# The page of every attack is reached from the list of attacks; the tests look for all others.
suppress_warnings = ["toc.not_included"]
exclude_patterns = ["_static", "_templates", "notebooks/*.py"]
templates_path = ["_templates"]
html_theme = "alabaster"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "description": "Certified data deletion in JAX",
    "fixed_sidebar": True,
    "page_width": "76rem",
    "body_max_width": "58rem",
    "font_family": "system-ui, sans-serif",
    "head_font_family": "system-ui, sans-serif",
}
html_show_sphinx = html_show_copyright = html_show_sourcelink = False
# Shell lines and printed output have no language.
highlight_language = "text"

# --- the reference ------------------------------------------------------------------------------

autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
}
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
# `name` in a docstring is code, as in Markdown.
default_role = "code"

SECTION = re.compile(r"(Args|Attributes|Raises|Returns):$")
LABEL = re.compile(r"([A-Z]\w+): ")
# Code, or a sign that would mean something else to Sphinx.
CODE_OR_SIGN = re.compile(r"(``[^`]*``|`[^`]*`|^\* )(?=(\w)?)|([*|\\]|_(?!\w))", re.MULTILINE)


def _literal(found: re.Match) -> str:
    """Code as it is, parted from a letter that follows; a sign without its meaning."""
    code, letter, sign = found.groups()
    return f"\\{sign}" if sign else code + "\\ " * bool(letter and code != "* ")


def _as_restructured_text(app, what, name, obj, options, lines):
    """Docstrings are plain text with `code`; all other signs mean themselves.

    A label such as "Guarantee:" begins a paragraph, and an indented line is a formula.
    """
    text = CODE_OR_SIGN.sub(_literal, "\n".join(lines))
    made, in_section = [], False
    for line in text.split("\n"):
        before = made[-1] if made else ""
        in_section = bool(SECTION.match(line)) or (in_section and bool(line.strip()))
        if line.startswith("    ") and not in_section:
            if before.strip() == "" or before.startswith("| "):
                line = f"| {line.strip()}"
            else:
                line = f"  {line.strip()}" if before.startswith(("* ", "  ")) else line.strip()
        elif label := LABEL.match(line):
            made.append("")
            line = f"**{label[1]}.** {line[label.end() :]}"
        made.append(line)
    lines[:] = made


def _without_fields(app, what, name, obj, skip, options):
    """The fields of a named tuple are in its docstring; Python's own text on them says nothing."""
    return True if (getattr(obj, "__doc__", "") or "").startswith("Alias for field") else skip


def setup(app):
    """Run before napoleon, which reads the sections."""
    app.connect("autodoc-process-docstring", _as_restructured_text, priority=100)
    app.connect("autodoc-skip-member", _without_fields)
