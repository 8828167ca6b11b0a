"""Columns by name, how text becomes ids and numbers, and where in a file each of them came from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+|nan|inf)", re.IGNORECASE | re.ASCII)
_PADDED = re.compile(r"0\d+", re.ASCII)  # zip codes and the like
# Whole numbers; with zeros behind the point when they have passed through a column with gaps.
_WHOLE = re.compile(r"(\d+)(\.0+)?", re.ASCII)
_OBSERVATION = re.compile(r"observation (\d+): ")  # how Observations and its like begin an error

_NO_ID = "is not a whole number from 0 up that fits 64 bits"


class InputError(ValueError):
    """Input that cannot be used: one line with the file, the place and the value."""


def check_place(path: Path) -> None:
    """Refuse a file that cannot be written, before anything is computed for it."""
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"{path}: cannot be written (not a file in a folder that exists)")


class Table(Mapping[str, np.ndarray]):
    """Columns by name. `lines` holds pairs (row, offset): from that row on, a row is found in the
    file at row + offset.

    >>> table = Table("a.csv", {"x": np.array([1.0, 2.0])}, "line", [(0, 2)])
    >>> table.place(1)
    'a.csv, line 3'
    """

    def __init__(
        self, path: str | PathLike, columns: dict[str, np.ndarray], unit="row", lines=((0, 1),)
    ):
        self.path, self.columns = path, columns
        self.unit, self.lines = unit, lines
        self._origin: np.ndarray | None = None  # which rows of the file these are, if not all

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def place(self, row: int) -> str:
        """File and line (or row, where a file has no lines) as an editor shows it."""
        row = row if self._origin is None else int(self._origin[row])
        offset = [offset for start, offset in self.lines if start <= row][-1]
        return f"{self.path}, {self.unit} {row + offset}"

    def refused(self, row: int, name: str, why: str) -> InputError:
        """The error for one cell."""
        return InputError(f"{self.place(row)}, column {name!r}: {why}")

    def located(self, why: Exception) -> InputError:
        """An error of the learner, with the observation's number turned into a place."""
        at = observation_in(why)
        if at is None:
            return InputError(f"{self.path}: {why}")
        return InputError(f"{self.place(at)}: {str(why).partition(': ')[2]}")

    def kept(self, keep: np.ndarray) -> Table:
        """The rows where `keep` is true."""
        columns = {name: values[keep] for name, values in self.items()}
        table = Table(self.path, columns, self.unit, self.lines)
        rows = np.arange(len(keep)) if self._origin is None else self._origin
        table._origin = rows[keep]
        return table


Advance = Callable[[int], object]  # told how many bytes were read since the last time


class Source:
    """A file of one format. `names` are its columns; a matrix has none."""

    names: Sequence[str] = ()

    def __init__(self, path: Path):
        self.path = path

    def table(
        self, ids: Sequence[str], numbers: Sequence[str], advance: Advance = lambda _: None
    ) -> Table:
        """These columns: ids become int64 or strings, numbers float64."""
        raise InputError(f"{self.path}: holds a matrix, not named columns")

    def matrix(self, name: str | None = None) -> Any:
        """A scipy.sparse matrix, or an array with NaN for the unknown."""
        raise InputError(f"{self.path}: holds named columns, not a matrix")

    def find(self, name: str) -> int:
        """Where a column is."""
        found = [at for at, held in enumerate(self.names) if held == name]
        if len(found) == 1:
            return found[0]
        what = f"column {name!r} is there {len(found)} times" if found else f"no column {name!r}"
        raise InputError(f"{self.path}: {what}: the file has {', '.join(self.names)}")

    def first(self, count: int) -> list[str]:
        """Names of the first columns, for tables whose columns nobody named."""
        if len(self.names) < count:
            raise InputError(
                f"{self.path}: {count} columns are needed, the file has {', '.join(self.names)}"
            )
        return list(self.names[:count])

    def broken(self, why: object) -> InputError:
        return InputError(f"{self.path}: cannot be read ({' '.join(str(why).split())})")


def observation_in(why: Exception) -> int | None:
    """The number of the observation that an error is about, if it is about one.

    >>> observation_in(ValueError("observation 3: target nan is not a finite number"))
    3
    """
    found = _OBSERVATION.match(str(why))
    return int(found[1]) if found else None


def is_number(text: str) -> bool:
    """Whether a word reads as a number.

    >>> is_number("-2.5"), is_number("nan"), is_number("12e4b"), is_number("")
    (True, True, False, False)
    """
    return _NUMBER.fullmatch(text) is not None


class NumberColumn:
    """Numbers, collected a block of text at a time."""

    def __init__(self):
        self._blocks: list[np.ndarray] = []

    def add(self, texts: Sequence[str], table: Table, name: str, row: int) -> None:
        """Take the next rows, of which the first has this number in the table."""
        try:
            self._blocks.append(np.fromiter(map(float, texts), np.float64, len(texts)))
        except ValueError:
            raise _first_bad_number(texts, table, name, row) from None

    def joined(self, table: Table, name: str) -> np.ndarray:
        return np.concatenate(self._blocks) if self._blocks else np.zeros(0)


def _first_bad_number(values, table: Table, name: str, start: int = 0) -> InputError:
    for at, value in enumerate(values):
        try:
            float(value)
        except (TypeError, ValueError):
            why = (
                f"{str(value)!r} is not a number"
                if value != ""
                else "nothing where a number belongs"
            )
            return table.refused(start + at, name, why)
    raise AssertionError("all of them are numbers")


class IdColumn:
    """Ids, collected a block of text at a time: whole numbers if all of them are, else words.

    A whole number is one in its usual spelling, so that no two ids become the same: `7` and `007`
    are words.

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
        try:
            numbers = list(map(int, texts))
            if list(map(str, numbers)) == texts:
                self._blocks.append(np.array(numbers, dtype=np.int64))
                return
        except (ValueError, OverflowError):
            pass
        one = self._words.setdefault
        self._blocks.append(np.array([one(text, text) for text in texts], dtype=object))

    def joined(self, table: Table, name: str) -> np.ndarray:
        """All rows, as int64 or as strings."""
        if not self._blocks:
            return np.zeros(0, np.int64)
        if self._words:
            # Whole numbers so far, in their usual spelling: nothing was lost.
            self._blocks = [
                block if block.dtype == object else block.astype(str).astype(object)
                for block in self._blocks
            ]
        column = np.concatenate(self._blocks)
        if not self._words:
            return whole_ids(column, table, name)
        if all(map(is_number, self._words)) and not any(map(_PADDED.fullmatch, self._words)):
            return self._unworded(column, table, name)
        return column

    def _unworded(self, column: np.ndarray, table: Table, name: str) -> np.ndarray:
        """Nothing but numbers, in unusual spellings: `1.0` is 1, but `1.5` is no id."""
        numbers = {}
        for word in self._words:
            found = _WHOLE.fullmatch(word)
            if not found or int(found[1]) >= 2**63:
                row = int(np.argmax(column == word))
                raise table.refused(row, name, f"id {word} {_NO_ID}")
            numbers[word] = int(found[1])
        others = (numbers[word] if word in numbers else int(word) for word in column)
        return np.fromiter(others, np.int64, len(column))


def whole_ids(values: np.ndarray, table: Table, name: str) -> np.ndarray:
    """Ids that came as numbers.

    >>> whole_ids(np.array([3.0, 1.0]), Table("a.npz", {}), "film")
    array([3, 1])
    """
    # The last float64 below 2^63 is 2^63 - 1024, the last integer is 2^63 - 1.
    fits = (values >= 0) & (values <= np.iinfo(np.int64).max)
    if values.dtype.kind == "f":
        fits &= (values == np.floor(values)) & (values < 2.0**63)
    if not fits.all():
        row = int(np.argmin(fits))
        raise table.refused(row, name, f"id {values[row]} {_NO_ID}")
    return values.astype(np.int64)


def typed_ids(values: np.ndarray, table: Table, name: str) -> np.ndarray:
    """Ids from a file that knows what numbers and strings are."""
    if values.dtype.kind in "iuf":
        return whole_ids(values, table, name)
    values = values.astype(object)
    for row, value in enumerate(values):
        if not isinstance(value, str) or not value:
            raise table.refused(row, name, f"id {value!r} is neither a word nor a whole number")
    return values


def typed_numbers(values: np.ndarray, table: Table, name: str) -> np.ndarray:
    """Numbers from a file that knows what numbers and strings are."""
    if values.dtype.kind == "f" and values.dtype.itemsize in (4, 8):
        return values
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError):
        raise _first_bad_number(values, table, name) from None


def columns_of(table, names: Iterable[str]) -> list:
    """Columns of a data frame (pandas, polars, ...) or of a mapping of arrays, by name."""
    if not isinstance(table, Mapping):
        table = nw.from_native(table, eager_only=True)
        held, get = table.columns, lambda name: table[name].to_numpy()
    else:
        held, get = list(table), table.__getitem__
    for name in names:
        if name not in held:
            raise ValueError(f"unknown column {name!r}: the table has {', '.join(map(str, held))}")
    return [get(name) for name in names]


def are_files(data) -> bool:
    """Whether data is given by the names of files.

    >>> are_files("events/*.parquet"), are_files([Path("a.parquet")]), are_files([[1.0]])
    (True, True, False)
    """
    several = data if isinstance(data, list | tuple) else [data]
    return bool(several) and all(isinstance(name, str | PathLike) for name in several)
