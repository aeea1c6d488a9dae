"""The documentation's build: sections of docstrings, signatures, and requests to other hosts."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from magna.config.options import Options
from magna.config.toml import toml

_REQUESTS = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc=[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|<link\b(?![^>]*rel=[\"']?canonical)[^>]*?\bhref=[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|(?:url\(|@import\s)[\"']?((?:https?:)?//[^\"')\s]+)",
    re.IGNORECASE,
)
_SEE = re.compile(r" +(?P<names>[\w, ]+): see :class:`(?P<module>magna[\w.]*)\.(?P<kind>\w+Options)`\.")


def requests_of(text: str) -> list[str]:
    """Addresses on other hosts that a browser requests when it shows a page or reads a style sheet.

    >>> requests_of('<a href="https://a.org"> <script src="https://b.org/x.js"></script> <img src="c.png">')
    ['https://b.org/x.js']
    >>> requests_of("@import url(//fonts.org/f.css);")
    ['//fonts.org/f.css']
    """
    return [next(filter(None, match.groups())) for match in _REQUESTS.finditer(text)]


def check_hosts(app: Any, error: Exception | None) -> None:
    """Warn of requests to other hosts in a built site."""
    from sphinx.util import logging

    if error is None and app.builder.format == "html":
        for path in (*Path(app.outdir).rglob("*.html"), *Path(app.outdir).rglob("*.css")):
            for address in requests_of(path.read_text(encoding="utf-8")):
                logging.getLogger(__name__).warning("%s requests %s", path.relative_to(app.outdir), address)


def sections(_app: Any, _what: str, _name: str, kind: Any, _options: Any, lines: list[str]) -> None:
    """Give shapes and the first example of a docstring headings, and list the fields of options."""
    lines[:] = with_headings(with_options(lines))
    if isinstance(kind, type) and issubclass(kind, Options):
        lines += ["", *option_fields(kind)]


def with_headings(lines: list[str]) -> list[str]:
    """The lines of a docstring with its shapes as a section and a heading above its first example.

    >>> with_headings(["Sum.", "", "Shapes: x [N].", "", ">>> add(x)"])
    ['Sum.', '', 'Shapes:', '    x [N].', '', '.. rubric:: Example', '', '>>> add(x)']
    """
    result: list[str] = []
    in_shapes = has_example = False
    for line in lines:
        in_shapes = bool(line.strip()) and (in_shapes or line.startswith("Shapes: "))
        if line.startswith(">>>") and not has_example:
            result += [".. rubric:: Example", ""]
            has_example = True
        if line.startswith("Shapes: "):
            result += ["Shapes:", f"    {line.removeprefix('Shapes: ')}"]
        else:
            result.append(f"    {line.lstrip()}" if in_shapes else line)
    return result


def with_options(lines: list[str]) -> list[str]:
    """The lines of a docstring with the help of options in place of a reference to the class that has them.

    >>> with_options(["    K, dropout: see :class:`magna.config.layers.NamedOptions`."])[0]
    '    K: Number of hops; 0 passes the values through.'
    """
    result = []
    for line in lines:
        match = _SEE.fullmatch(line)
        kind = match and getattr(import_module(match["module"]), match["kind"])
        names = match["names"].split(", ") if match else []
        result += [f"{line[: match.start('names')]}{name}: {kind.options()[name].help}" for name in names] or [line]
    return result


def option_fields(kind: type[Options]) -> list[str]:
    """The options that a class adds to those of its bases, as the fields of a docstring."""
    lines = ["Args:"]
    for name in vars(kind).get("__annotations__", {}):
        if (info := kind.options().get(name)) is not None:
            limits = f" {info.range.capitalize()}." if info.range else ""
            lines.append(f"    {name}: {info.help}{limits} Default: `{toml(getattr(kind, name))}`.")
    return lines if len(lines) > 1 else []


def signature(_app: Any, _what: str, _name: str, kind: Any, _options: Any, arguments: str, returns: str) -> Any:
    """Shorten a signature: none for options, whose fields are listed, and no addresses of functions."""
    if isinstance(kind, type) and issubclass(kind, Options):
        return "", None
    return re.sub(r"<function [^>]*>+", "...", arguments) if arguments else arguments, returns
