"""Results on a terminal, or as JSON in a pipe."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..research.demo import Result


_CONTROLS = re.compile("[\x7f-\x9f]")  # which JSON does not escape, and terminals obey


def printable(text: str) -> str:
    """A text on one line without what a terminal would take for a command.

    >>> printable("a \x1b[2J\\n  b")
    'a \\\\x1b[2J b'
    """
    words = " ".join(text.split())
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in words)


def show(facts: dict, as_json: bool = False) -> None:
    """Names and values on stdout."""
    if as_json:
        # JSON has no infinity, which a loss can be.
        endless = [n for n, v in facts.items() if isinstance(v, float) and not math.isfinite(v)]
        print(json.dumps(facts | dict.fromkeys(endless), indent=2))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        text = escape(printable(text))  # names of files may hold brackets
        table.add_row(name.replace("_", " "), text)
    Console(highlight=False).print(table)


def show_rows(title: str, rows: list[dict], as_json: bool = False) -> None:
    """Rows under the names of their columns, or a JSON list of them."""
    if as_json or not rows or not sys.stdout.isatty():
        text = json.dumps(rows, indent=2, ensure_ascii=False)
        print(_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text))
        return
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("", *rows[0], box=box.SIMPLE_HEAD, pad_edge=False)
    for column, value in zip(table.columns, (0, *rows[0].values()), strict=True):
        column.justify = "left" if isinstance(value, str) else "right"
    for at, row in enumerate(rows, 1):
        texts = (
            f"{v:.3f}" if isinstance(v, float) else escape(printable(str(v))) for v in row.values()
        )
        table.add_row(str(at), *texts)
    console = Console(highlight=False)
    console.print(f"[bold]{escape(printable(title))}[/bold]")
    console.print(table)


def write_rows(header: list[str], columns: Iterable[Iterable], as_json: bool) -> None:
    """Columns as CSV on stdout, or a JSON object a row."""
    rows = zip(*columns, strict=True)
    if as_json:
        for row in rows:
            print(json.dumps(dict(zip(header, row, strict=True))))
        return
    if sys.stdout.isatty():
        rows = ([printable(str(cell)) for cell in row] for row in rows)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)


def show_results(
    results: Iterable[tuple[str, Result]], write: Callable[[dict[str, Result]], Path], as_json: bool
) -> None:
    """Results by name, each when it is there; then the page of all is written, and named."""
    found = {}
    for name, result in results:
        found[name] = result
        if not as_json:
            _print_result(result)
    path = write(found)
    if as_json:
        show({name: one.numbers() for name, one in found.items()} | {"page": str(path)}, True)
    else:
        print(path)


def _print_result(result: Result) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(f"\n[bold]{result.title}[/bold]\n{result.words}\n")
    table = Table(*result.header, box=box.SIMPLE_HEAD, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "left" if result.in_words else "right"
    for row in result.rows:
        table.add_row(*row)
    console.print(table)
