"""How a text file is written: what separates fields, the encoding, whether there is a header."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from .tables import InputError, is_number

# What may separate fields, most telling first: the last ones are found within fields, too.
SEPARATORS = {"::": "::", "tab": "\t", ";": ";", "|": "|", ",": ",", "space": " "}

# What the ending of a file tells of it. None: its first lines tell.
ENDINGS: dict[str, str | None] = {
    ".csv": ",", ".tsv": "\t", ".txt": None, ".dat": None, ".data": None, ".inter": None,
    ".item": None,
}  # fmt: skip

_BARE = (".dat", ".data")  # endings of files that begin with numbers and have no header
_TYPED = re.compile(r"(.+):(?:token|float)(?:_seq)?")  # a name in a header of RecBole's

# Separators that Python's csv does not take or, of several spaces, does not take as one.
_PLAIN: dict[str, Callable[[str], list[str]]] = {
    "::": lambda line: [field.lstrip(" ") for field in line.rstrip("\r\n").split("::")],
    " ": str.split,
}


class TextFormat(NamedTuple):
    """What somebody says about a text file.

    separator : between fields; None: see `find_separator`.
    encoding : as Python calls it.
    header : whether the first line holds names; None: see `names_in`.
    """

    separator: str | None = None
    encoding: str = "utf-8"
    header: bool | None = None

    @property
    def skips_mark(self) -> str:
        """The encoding, of UTF-8 the one that leaves out a byte order mark."""
        return "utf-8-sig" if self.is_utf8 else self.encoding

    @property
    def is_utf8(self) -> bool:
        return self.encoding.lower().replace("_", "-") in ("utf-8", "utf8")

    def not_text(self, line: bytes, at: int) -> str:
        """Why a line is not in this encoding, with what may help."""
        if not self.is_utf8:
            return f"byte {line[at]:#x} is not {self.encoding}"
        return f"byte {line[at]:#x} is not UTF-8: --encoding latin-1 may help"


USUAL = TextFormat()  # nothing is known but what shows


def text_format(
    separator: str | None = None, encoding: str | None = None, no_header: bool = False
) -> TextFormat:
    """A format as it is told on a command line.

    >>> text_format("tab", "latin-1")
    TextFormat(separator='\\t', encoding='latin-1', header=None)
    """
    known = SEPARATORS | {mark: mark for mark in SEPARATORS.values()} | {"\\t": "\t"}
    if separator is not None and separator not in known:
        raise InputError(f"--separator {separator!r}: not one of {' '.join(SEPARATORS)}")
    try:
        "a".encode(encoding or "utf-8")
    except LookupError:
        told = "not an encoding, such as utf-8 or latin-1"
        raise InputError(f"--encoding {encoding!r}: {told}") from None
    header = False if no_header else None  # else what shows
    return TextFormat(known[separator] if separator else None, encoding or "utf-8", header)


def find_separator(lines: Sequence[str], usual: str | None = None) -> str:
    """What separates the fields of a file's first lines: what is usual for its ending, if it is
    there; else what gives all lines as many fields; else what the first line has.

    >>> find_separator(["1::Heat (1995)::Crime", "2::Go, Fish::Comedy"])
    '::'
    >>> find_separator(["user;film", "ann;7"], usual=",")
    ';'
    """
    first = lines[0] if lines else ""
    if usual and usual in first:
        return usual
    # A file of one column, whose ending tells how it is written, may have spaces in its fields.
    found = [mark for mark in SEPARATORS.values() if mark in first and not (usual and mark == " ")]
    even = [mark for mark in found if _even(lines, mark)]
    return (even or found or [usual or ","])[0]


def _even(lines: Sequence[str], mark: str) -> bool:
    try:
        widths = {len(fields) for fields in rows_of(iter(lines), mark) if fields}
    except csv.Error:
        return False
    return len(widths) == 1 and widths != {1}


def names_in(fields: list[str], ending: str, header: bool | None) -> tuple[list[str], bool]:
    """The names of the columns, and whether the first line, of these fields, holds them. Columns
    without names are called 1, 2, 3 and so on.

    >>> names_in(["1", "1193", "5"], ".dat", None)
    (['1', '2', '3'], False)
    >>> names_in(["user_id:token", "rating:float"], ".inter", None)
    (['user_id', 'rating'], True)
    """
    if header is None:
        header = not (ending in _BARE and all(map(is_number, fields)))
    if not header:
        return [str(n) for n in range(1, len(fields) + 1)], False
    typed = [_TYPED.fullmatch(name) for name in fields]
    return [found[1] for found in typed if found] if all(typed) else fields, True


class Rows(Protocol):
    """Fields of one line after the other; `line_num` counts the lines."""

    @property
    def line_num(self) -> int: ...
    def __iter__(self) -> Iterator[list[str]]: ...
    def __next__(self) -> list[str]: ...


def rows_of(lines: Iterator[str], separator: str) -> Rows:
    """The fields of lines, none of a blank one. Fields in quotes may hold separators and line ends,
    but where a separator is of two letters or a space: there, quotes are letters like any other.

    >>> list(rows_of(iter(['1,"a, b"', "", "2, c"]), ","))
    [['1', 'a, b'], [], ['2', 'c']]
    """
    if separator in _PLAIN:
        return _PlainRows(lines, _PLAIN[separator])
    return csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True)


class _PlainRows:
    def __init__(self, lines: Iterator[str], split: Callable[[str], list[str]]):
        self.line_num, self._lines, self._split = 0, lines, split

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        line = next(self._lines)
        self.line_num += 1
        return self._split(line) if line.strip() else []
