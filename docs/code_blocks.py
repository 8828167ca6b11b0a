"""Runs the code of a page as its reader would: from top to bottom, in one folder.

Blocks of ```python share their names; what a ```console block types after `$ ` is run. Where output
follows (below the command, or in an ```output block), it must come, `...` standing for anything.
`<!-- not run: why -->` above a block leaves it out.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from pathlib import Path

_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<why>.+?) -->\n+)?```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)
RUN = ("python", "console")


class Broken(AssertionError):
    """A block that does not do what the page says."""


def blocks(page: Path) -> Iterator[tuple[int, str, str, str | None]]:
    """Line, kind, text and the reason not to run it of each block."""
    source = page.read_text()
    for found in _BLOCK.finditer(source):
        line = source.count("\n", 0, found.start("text")) + 1
        yield line, found["kind"], found["text"], found["why"]


def run(page: Path, folder: Path) -> int:
    """Run a page in a folder. Returns how many blocks were run."""
    names: dict = {"__name__": "__main__"}
    count, printed = 0, ""
    for line, kind, text, why in blocks(page):
        place = f"{page.name}, line {line}"
        if why or kind not in (*RUN, "output"):
            continue
        if kind == "output":
            _compare(text, printed, place)
            continue
        count += 1
        if kind == "python":
            code = compile("\n" * (line - 1) + text, str(page), "exec")
            with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.chdir(folder):
                try:
                    exec(code, names)
                except Exception as wrong:
                    raise Broken(f"{place}: {type(wrong).__name__}: {wrong}") from wrong
            printed = out.getvalue()
        else:
            _type(text, folder, place)
    return count


def _type(text: str, folder: Path, place: str) -> None:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for part in re.split(r"^\$ ", text.replace("\\\n", ""), flags=re.M)[1:]:
        command, _, wanted = part.partition("\n")
        if command.startswith("scaledsgd ") and not set(command) & set("|<>&;$*"):
            code, printed, told = _call(shlex.split(command)[1:], folder)
        else:
            done = subprocess.run(
                ["bash", "-c", command], cwd=folder, env=environment, text=True, capture_output=True
            )
            code, printed, told = done.returncode, done.stdout, done.stderr
        if code:
            raise Broken(f"{place}: {command}: {told}")
        if wanted:
            _compare(wanted, printed, f"{place}: {command}")


def _call(arguments: list[str], folder: Path) -> tuple[int, str, str]:
    """A command of ours, here: another process would take seconds to start."""
    from scaledsgd.cli.main import main

    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as told,
        contextlib.chdir(folder),
    ):
        code = main(arguments)
    return code, out.getvalue(), told.getvalue()


def _compare(wanted: str, got: str, place: str) -> None:
    if not OutputChecker().check_output(wanted, got, ELLIPSIS | NORMALIZE_WHITESPACE):
        raise Broken(f"{place}: it prints\n{got}\nand not\n{wanted}")
