"""Code blocks of the documentation, and a runner for them.

- A ```python block runs in the namespace of its page, a ```pycon block also compares its output.
- Lines of a ```console block that start with `$ ` are commands.
- A block with a `:caption:` is a file of that name.
- `<!-- not run: REASON -->` above a block leaves it out.
- `<!-- setup: COMMAND -->` is a command that readers of the page have run before.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import magna

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INSTALLS = re.compile(r"(python -m )?pip install\b")

_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>.+?) -->\n+)?^(?P<fence>`{3,})(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=fence)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_OPTION = re.compile(r":([\w-]+):[ \t]*(.*)\n")
_SETUP = re.compile(r"<!-- setup: (.+?) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block: language, options, content, line, and the reason for which it is not run."""

    language: str
    options: dict[str, str]
    content: str
    line: int
    reason: str

    @property
    def commands(self) -> list[str]:
        """Commands of a console block; a line that ends with a backslash continues on the next."""
        lines = re.sub(r"\\\n(> )?", "", self.content).splitlines()
        return [line[2:] for line in lines if line.startswith("$ ")]


def blocks(text: str) -> Iterator[Block]:
    r"""The fenced blocks of a page.

    >>> page = "```python\n1\n```\n\n```{code-block} csv\n:caption: a.csv\n\n1\n```\n"
    >>> [(block.language, block.options) for block in blocks(page)]
    [('python', {}), ('csv', {'caption': 'a.csv'})]
    """
    for match in _BLOCK.finditer(text):
        info, body, options = match["info"].strip(), match["body"], {}
        if info.startswith("{"):
            while option := _OPTION.match(body):
                options[option[1]], body = option[2], body[option.end() :]
            body = body.removeprefix("\n")
        directive, _, argument = info.partition("}")
        language = argument.strip() if directive == "{code-block" else info
        line = text.count("\n", 0, match.start("fence")) + 1
        yield Block(language, options, body, line, match["reason"] or "")


@dataclass
class Page:
    """A page of the documentation."""

    path: Path
    blocks: list[Block] = field(init=False)
    setup: list[str] = field(init=False)

    def __post_init__(self) -> None:
        text = self.path.read_text(encoding="utf-8")
        self.blocks, self.setup = list(blocks(text)), _SETUP.findall(text)

    def run(self, folder: Path, *, commands: bool) -> None:
        """Run the page in a folder that is the working directory: its Python, and its `commands` as typed."""
        namespace: dict[str, Any] = {"__name__": "__main__"}
        for command in self.setup:
            run_command(command, folder)
        for block in self.blocks:
            if block.reason:
                continue
            if "caption" in block.options:
                (folder / block.options["caption"]).parent.mkdir(parents=True, exist_ok=True)
                (folder / block.options["caption"]).write_text(block.content, encoding="utf-8")
            if block.language == "python":
                # Empty lines make the lines of a traceback those of the page.
                code = "\n" * block.line + block.content
                exec(compile(code, str(self.path), "exec"), namespace)
            elif block.language == "pycon":
                self._compare(block, namespace)
            elif block.language == "console" and commands:
                for command in block.commands:
                    if not INSTALLS.match(command):
                        run_command(command, folder)

    def _compare(self, block: Block, namespace: dict[str, Any]) -> None:
        flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
        runner, report = doctest.DocTestRunner(optionflags=flags), list[str]()
        test = doctest.DocTestParser().get_doctest(block.content, namespace, self.path.name, str(self.path), block.line)
        runner.run(test, out=report.append, clear_globs=False)
        namespace.update(test.globs)
        assert not runner.failures, "".join(report)


def run_command(command: str, folder: Path) -> str:
    """The output of a line typed in a shell, where `magna` is the package under test."""
    programs = folder / ".programs"
    programs.mkdir(exist_ok=True)
    for name, words in (("magna", "-m magna"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (programs / name).chmod(0o755)
    # The package that this process has imported, installed or not, without the checkout's other folders.
    source = str(Path(magna.__file__).parents[1])
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "80"}
    environment["PYTHONPATH"] = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout
