"""The documentation's build: sections of docstrings, signatures, and requests to other hosts."""

from __future__ import annotations

import html
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from tools.settings import limits_of

from magna.config.options import Options
from magna.config.toml import toml
from magna.graph import Graph

_REQUESTS = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc=[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|<link\b(?![^>]*rel=[\"']?canonical)[^>]*?\bhref=[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|(?:url\(|@import\s)[\"']?((?:https?:)?//[^\"')\s]+)",
    re.IGNORECASE,
)
_TAG = re.compile(r"<[^>]+>")
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
        if (match := _SEE.fullmatch(line)) is None:
            result.append(line)
            continue
        options, indent = getattr(import_module(match["module"]), match["kind"]).options(), line[: match.start("names")]
        result += [f"{indent}{name}: {options[name].help}" for name in match["names"].split(", ")]
    return result


def option_fields(kind: type[Options]) -> list[str]:
    """The options that a class adds to those of its bases, as the fields of a docstring."""
    lines = ["Args:"]
    for name in vars(kind).get("__annotations__", {}):
        if (info := kind.options().get(name)) is not None:
            limits = f" {words}." if (words := limits_of(info)) else ""
            lines.append(f"    {name}: {info.help}{limits} Default: `{toml(getattr(kind, name))}`.")
    return lines if len(lines) > 1 else []


def signature(_app: Any, _what: str, _name: str, kind: Any, _options: Any, arguments: str, returns: str) -> Any:
    """Shorten a signature: none for a class that is not called or lists its fields, and no addresses of functions."""
    if isinstance(kind, type) and (issubclass(kind, Options | Graph) or getattr(kind, "_is_protocol", False)):
        return "", None
    return re.sub(r"<function [^>]*>+", "...", arguments) if arguments else arguments, returns


def is_left_out(_app: Any, _what: str, _name: str, member: Any, _skip: bool, _options: Any) -> bool | None:
    """True for fields of named tuples, which say nothing of themselves."""
    return True if (getattr(member, "__doc__", "") or "").startswith("Alias for field number") else None


def dashes(_app: Any, doctree: Any) -> None:
    """Put dashes between the names and the meanings of arguments."""
    from docutils import nodes

    for text in [node for node in doctree.findall(nodes.Text) if node == " -- "]:
        text.parent.replace(text, nodes.Text(" – "))


def label_tables(_app: Any, _page: str, _template: str, context: dict[str, Any], _doctree: Any) -> None:
    if "body" in context:
        context["body"] = with_labels(context["body"])


def with_labels(body: str) -> str:
    """A page whose narrow tables, and those with commands, name the column in each cell: a phone shows rows as cards.

    >>> head, row = "<tr><th>x</th><th>y</th><th>z</th></tr>", "<tr><td>a</td><td><p></p></td><td>c</td></tr>"
    >>> with_labels(f'<table class="docutils">{head}{row}</table>').partition("</tr>")[2]
    '<tr><td data-label="x">a</td><td class="empty"></td><td data-label="z">c</td></tr></table>'
    """

    def labelled(table: re.Match[str]) -> str:
        heads = [html.escape(_TAG.sub("", head)) for head in re.findall(r"<th\b[^>]*>(.*?)</th>", table[0], re.DOTALL)]
        if not 2 <= len(heads) <= 4 and "command" not in heads:
            return table[0]

        classes = 'class="cards commands ' if "command" in heads else 'class="cards '

        def cells(row: re.Match[str]) -> str:
            names = iter(heads)
            labels = re.sub(r"<td\b", lambda _: f'<td data-label="{next(names, "")}"', row[0])
            return re.sub(r'<td data-label="[^"]*">\s*(<p>\s*</p>)?\s*</td>', '<td class="empty"></td>', labels)

        return re.sub(r"<tr\b.*?</tr>", cells, table[0].replace('class="', classes, 1), flags=re.DOTALL)

    return re.sub(r"<table\b.*?</table>", labelled, body, flags=re.DOTALL)
