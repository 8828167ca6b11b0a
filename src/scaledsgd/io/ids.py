"""Ids: what users call their rows, against the row numbers that kernels use; and every rule about
them.

Ids are all whole numbers of 64 bits or all words. In files, streams and on the command line they
are numbers from 0 up in their usual spelling, so that no two become the same: `7` is a number, and
`007` a word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.validation import are_whole, is_whole
from .tables import Table, converted, is_number, shown

if TYPE_CHECKING:
    from .numbering import Numbering

_NO_ID = "is not a whole number from 0 up that fits 64 bits"
_LONGEST = 19  # digits of a number of 64 bits
_WORDS = 0.05  # share of words among a stream's ids from which on all are: broken lines are fewer
_PADDED = re.compile(r"0\d+", re.ASCII)  # zip codes and the like
# Whole numbers; with zeros behind the point when they have passed through a column with gaps.
_WHOLE = re.compile(r"(\d+)(\.0+)?", re.ASCII)


class Ids:
    """Row numbers for names, given out in order of first appearance.

    Names are all integers or all strings.

    >>> ids = Ids()
    >>> ids.add(["tea", "rye", "tea"])
    array([0, 1, 0])
    >>> ids.rows(["rye"]), ids.names([0])
    (array([1]), array(['tea'], dtype=object))
    """

    def __init__(self, names=()):
        self._words: dict[str, int] = {}
        self._numbers: Numbering | None = None
        self._still: _FrozenIds | None = None
        self.add(names)

    def __len__(self) -> int:
        return len(self._words) + len(self._numbers or ())

    def __contains__(self, name) -> bool:
        if self._numbers is None or not is_whole(name):
            return name in self._words
        return bool(self._numbers.rows(np.array([name]))[0] >= 0)

    def __eq__(self, other) -> bool:
        return isinstance(other, Ids) and self.names().tolist() == other.names().tolist()

    @property
    def kind(self) -> type | None:
        """int or str, as all the names are; None before the first."""
        return None if not len(self) else str if self._words else int

    def add(self, names, column: str = "id") -> np.ndarray:
        """Row numbers of the names, new ones for those not seen before."""
        names = _checked(names, column)
        kind = int if names.dtype.kind == "i" else str
        if len(names) and self.kind not in (None, kind):
            new, old = (some[:1].tolist()[0] for some in (names, self.names()))
            raise TypeError(
                f"column {column!r}: {new!r} is not of the type of {old!r}, seen before"
            )
        if kind is int and len(names):
            from .numbering import Numbering  # compiled: not loaded for words

            self._numbers = self._numbers or Numbering()
            return self._numbers.add(names)
        rows = self._words
        for name in dict.fromkeys(names):
            rows.setdefault(name, len(rows))
        return np.fromiter(map(rows.__getitem__, names), np.int64, len(names))

    def keep(self, count: int) -> None:
        """Forget all but the first names."""
        if self._numbers is not None:
            self._numbers.keep(count)
        while len(self._words) > count:
            self._words.popitem()

    def rows(self, names, column: str = "id") -> np.ndarray:
        """Row numbers of names that must be known."""
        names = _checked(names, column)
        rows = self._look_up(names)
        if len(rows) and rows.min() < 0:
            unknown = names[rows < 0][:1].tolist()[0]
            raise ValueError(f"{column} {unknown!r} was never seen in training")
        return rows

    def find(self, names) -> np.ndarray:
        """Row numbers of ids from a file or a command line, -1 where there are none. Whether a
        column holds numbers or words depends on all of its rows, and may differ between files.

        >>> Ids([70, 12]).find(np.array(["12", "012"], object))
        array([ 1, -1])
        """
        names = _checked(names, "id")
        if self.kind is str and names.dtype.kind == "i":
            names = names.astype(str).astype(object)
        elif self.kind is int and names.dtype.kind == "O":
            good = np.array([spelled(name) and is_whole(int(name)) for name in names], bool)
            rows = np.full(len(names), -1)
            rows[good] = self._look_up(names[good].astype(np.int64))
            return rows
        return self._look_up(names)

    def _look_up(self, names: np.ndarray) -> np.ndarray:
        if self._numbers is not None and names.dtype.kind == "i":
            return self._numbers.rows(names)
        return np.fromiter((self._words.get(n, -1) for n in names), np.int64, len(names))

    def names(self, rows: Any = slice(None)) -> np.ndarray:
        """Names of the rows."""
        if self._words:
            return _objects(list(self._words))[rows]
        return np.empty(0, np.int64) if self._numbers is None else self._numbers.names[rows].copy()

    def frozen(self) -> Ids:
        """These names for readers in other threads: it does not see names that are added later.
        Costs what was added since the last one was asked for.

        >>> ids = Ids(["tea"])
        >>> still, _ = ids.frozen(), ids.add(["rye"])
        >>> still.names(), "rye" in still, "rye" in ids
        (array(['tea'], dtype=object), False, True)
        """
        before, count = self._still, len(self)
        if before is None or len(before) != count or before.kind is not self.kind:
            old = self.names(slice(0)) if before is None or not len(before) else before.names()
            if self._words:
                new = _objects([*islice(reversed(self._words), count - len(old))][::-1])
            else:
                new = self.names(slice(len(old), count))
            self._still = _FrozenIds(self._words, copy(self._numbers), np.concatenate([old, new]))
        assert self._still is not None
        return self._still


class _FrozenIds(Ids):
    """The first so many names of a table that somebody else lets grow. Rows never change, and
    whoever is added comes after those that are there: the table itself can be shared."""

    def __init__(self, words: dict[str, int], numbers: Numbering | None, names: np.ndarray):
        self._words, self._numbers, self._names = words, numbers, names

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name) -> bool:
        return bool(self._look_up(_checked([name], "id"))[0] >= 0)

    def _look_up(self, names: np.ndarray) -> np.ndarray:
        rows = super()._look_up(names)
        rows[rows >= len(self)] = -1
        return rows

    def names(self, rows: Any = slice(None)) -> np.ndarray:
        return self._names[rows]

    def frozen(self) -> Ids:
        return self


def _objects(names) -> np.ndarray:
    objects = np.empty(len(names), dtype=object)
    objects[:] = names
    return objects


def _checked(names, column: str) -> np.ndarray:
    """An int64 array, or an object array of strings."""
    if isinstance(names, list | tuple) and any(isinstance(n, str) for n in names):
        names = _objects(names)  # or NumPy makes strings of numbers and drops trailing NULs
    try:
        names = np.asarray(names)
    except ValueError:  # lists of different lengths
        names = np.empty((0, 0))
    if names.ndim != 1:
        raise TypeError(
            f"column {column!r}: ids form a list, not an array of {names.ndim} dimensions"
        )
    if names.dtype.kind == "i":
        return names.astype(np.int64, copy=False)
    if names.dtype.kind in "uf":
        good, why = are_whole(names), "id {} is not a whole number of 64 bits"
        if not good.all():
            at = int(np.argmin(good))
            raise ValueError(f"column {column!r}, row {at}: " + why.format(names[at]))
        return names.astype(np.int64, copy=False)
    names = names.astype(object)
    if set(map(type, names)) == {str}:
        return names
    kinds = [str if isinstance(n, str) else int if is_whole(n) else None for n in names]
    for at, kind in enumerate(kinds):
        if kind is None:
            what = f"id {names[at]!r} is neither a string nor an integer of 64 bits"
            raise TypeError(f"column {column!r}, row {at}: {what}")
        if kind is not kinds[0]:
            what = f"{names[0]!r} in row 0 and {names[at]!r} in row {at}"
            raise TypeError(f"column {column!r}: ids of mixed types, {what}")
    return names.astype(np.int64) if kinds and kinds[0] is int else names


def spelled(text: str) -> bool:
    """Whether a text is a whole number from 0 up in its usual spelling.

    >>> spelled("7"), spelled("007"), spelled("-7"), spelled("x")
    (True, False, False, False)
    """
    digits = text.isdecimal() and text.isascii() and len(text) <= _LONGEST
    return digits and str(int(text)) == text


def _spelled_out(texts: list[str]) -> np.ndarray | None:
    """The numbers of 64 bits, of either sign, that all of the texts are in their usual spelling."""
    try:
        numbers = list(map(int, texts))
        return np.array(numbers, np.int64) if list(map(str, numbers)) == texts else None
    except (ValueError, OverflowError):
        return None


def typed_id(text: str, ids: Ids | None, count: int) -> int | str | None:
    """The id that somebody has typed, if there is one: of these ids, or of so many row numbers.

    >>> typed_id("7", Ids([7, 12]), 0), typed_id("7", None, 5), typed_id("4", None, 5)
    (7, None, 4)
    """
    if ids is None:
        return int(text) if spelled(text) and int(text) < count else None
    rows = ids.find(_objects([text]))
    return ids.names(rows).tolist()[0] if rows[0] >= 0 else None


# --- From files ----------------------------------------------------------------------------------


class IdColumn:
    """Ids, collected a block of text at a time: whole numbers if all of them are, else words.

    >>> table, column = Table("a.csv", {}), IdColumn()
    >>> column.add(["7", "12"], table, "film", 0)
    >>> column.joined(table, "film")
    array([ 7, 12])
    >>> column.add(["007"], table, "film", 2)
    >>> column.joined(table, "film")
    array(['7', '12', '007'], dtype=object)
    """

    def __init__(self):
        self._blocks: list[np.ndarray] = []
        self._words: dict[str, str] = {}  # one object a word, not one a row

    def add(self, texts: list[str], table: Table, name: str, row: int) -> None:
        """Take the next rows, of which the first has this number in the table."""
        if "" in texts:
            raise table.refused(row + texts.index(""), name, "nothing where an id belongs")
        block = _spelled_out(texts)
        if block is None:
            one = self._words.setdefault
            block = _objects([one(text, text) for text in texts])
        self._blocks.append(block)

    def joined(self, table: Table, name: str) -> np.ndarray:
        """All rows, as int64 or as strings."""
        if not self._blocks:
            return np.zeros(0, np.int64)
        if not self._words:
            return typed_ids(np.concatenate(self._blocks), table, name)
        # Other blocks are numbers in their usual spelling: nothing was lost.
        texts = (block if block.dtype == object else block.astype(str) for block in self._blocks)
        column = np.concatenate([block.astype(object, copy=False) for block in texts])
        if all(map(is_number, self._words)) and not any(map(_PADDED.fullmatch, self._words)):
            return self._unworded(column, table, name)
        return column

    def _unworded(self, column: np.ndarray, table: Table, name: str) -> np.ndarray:
        """Nothing but numbers, in unusual spellings: `1.0` is 1, but `1.5` is no id."""
        numbers = {}
        for word in self._words:
            found = _WHOLE.fullmatch(word)
            if not found or not is_whole(int(found[1])):
                row = int(np.argmax(column == word))
                raise table.refused(row, name, f"id {word} {_NO_ID}")
            numbers[word] = int(found[1])
        others = (numbers[word] if word in numbers else int(word) for word in column)
        return np.fromiter(others, np.int64, len(column))


def typed_ids(values: np.ndarray, table: Table, name: str) -> np.ndarray:
    """Ids from a file that knows what numbers and words are: int64, or objects that are strings.

    >>> typed_ids(np.array([3.0, 1.0]), Table("a.npz", {}), "film")
    array([3, 1])
    """
    if values.dtype.kind in "iuf":
        good = are_whole(values) & (values >= 0)
        why = f"id {{}} {_NO_ID}"
    else:
        values = values.astype(object)
        good = np.fromiter((isinstance(v, str) and v != "" for v in values), bool, len(values))
        why = "id {!r} is neither a word nor a whole number"
    if not good.all():
        row = int(np.argmin(good))
        raise table.refused(row, name, why.format(values[row]))
    return values if values.dtype.kind == "O" else values.astype(np.int64)


# --- From streams, where what is no id is refused and the rest goes on ----------------------------

Cells = Sequence | np.ndarray  # values of Python's own, or an array of numbers


def kind_of(columns: Sequence[Cells]) -> type:
    """Whether ids that share their names are numbers (int) or, if more than a few are, words."""
    texts = [cell for c in columns if isinstance(c, list) for cell in c if isinstance(cell, str)]
    words = sum(not spelled(text) for text in texts)
    return str if words > _WORDS * sum(map(len, columns)) else int


def id_column(cells: Cells, kind: type) -> tuple[np.ndarray, list[tuple[int, str]]]:
    """Ids (int64, or objects that are strings), and the rows that have none, with the reasons.

    >>> id_column(["7", 8, "x"], int)
    (array([7, 8, 0]), [(2, "'x' is not a whole number from 0 up that fits 64 bits")])
    """
    return (_numbers if kind is int else _words)(cells)


def _numbers(cells) -> tuple[np.ndarray, list]:
    if isinstance(cells, np.ndarray):
        wrong = ~are_whole(cells) | (cells < 0)
        found = np.where(wrong, 0, cells).astype(np.int64)
        why = ((row, f"{cells[row].item()} {_NO_ID}") for row in np.flatnonzero(wrong).tolist())
        return found, list(why)
    found, kinds = None, set(map(type, cells))
    if kinds == {str}:
        found = _spelled_out(cells)
    elif kinds == {int} and max(cells) < 2**63:
        found = np.array(cells)
    if found is not None and found.min() >= 0:
        return found, []
    return converted(cells, _number, np.zeros(len(cells), np.int64))


def _number(cell) -> int:
    if (type(cell) is str and spelled(cell)) or (type(cell) is float and cell.is_integer()):
        cell = int(cell)
    if type(cell) is int and cell >= 0 and is_whole(cell):
        return cell
    raise ValueError(f"{shown(cell)} {_NO_ID}")


def _words(cells) -> tuple[np.ndarray, list]:
    cells = cells.tolist() if isinstance(cells, np.ndarray) else cells
    if set(map(type, cells)) == {str} and "" not in cells and _writable("".join(cells)):
        return _objects(cells), []
    return converted(cells, _word, np.empty(len(cells), object))


def _word(cell) -> str:
    if type(cell) is int:  # numbers where others are words: they are words here, too
        cell = str(cell)
    if type(cell) is str and cell and _writable(cell):
        return cell
    raise ValueError(f"{shown(cell)} is not a word")


def _writable(text: str) -> bool:
    """Whether a text can be written to a file: no halves of surrogate pairs, and no NULs."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False
