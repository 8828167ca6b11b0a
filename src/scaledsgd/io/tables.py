"""Columns by name: how they are found, how text becomes numbers, and where each came from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np

from ..core.validation import real

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+|nan|inf)", re.IGNORECASE | re.ASCII)
_OBSERVATION = re.compile(r"observation (\d+): ")  # how Observations and its like begin an error

_NOTHING = "nothing where a number belongs"
_TOLD = 60  # letters of a cell that a reason shows: a cell may be a megabyte


class InputError(ValueError):
    """Input that cannot be used: one line with the file, the place and the value."""


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
        self, ids: Sequence[str], numbers: Sequence[str], advance: Advance = lambda _: None,
        times: Sequence[str | None] = (),
    ) -> Table:  # fmt: skip
        """These columns: ids become int64 or strings, numbers float64. Those of the numbers that
        are `times` may be dates."""
        raise InputError(f"{self.path}: holds a matrix, not named columns")

    def matrix(self, name: str | None = None) -> Any:
        """A scipy.sparse matrix, or an array with NaN for the unknown."""
        raise InputError(f"{self.path}: holds named columns, not a matrix")

    def find(self, name: str) -> int:
        """Where a column is."""
        return find_column(name, self.names, self.path)

    def choose(self, given: Mapping[str, str | None], count: int) -> dict[str, str]:
        """Names in the file of the columns that a model calls so: see `choose_columns`."""
        return choose_columns(given, count, self.names, self.path)

    def first(self, count: int) -> list[str]:
        """Names of the first columns, for tables whose columns nobody named."""
        return list(self.choose({str(n): None for n in range(count)}, count).values())

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Whatever a library has to say about bytes from outside, in one line."""
        try:
            yield
        except (InputError, MemoryError):
            raise
        except Exception as why:  # of which they have more than they tell
            raise self.broken(why) from None

    def broken(self, why: object) -> InputError:
        return InputError(f"{self.path}: cannot be read ({' '.join(str(why).split())})")


def find_column(name: str, names: Sequence[str], path: object = None) -> int:
    """The place of a column, which must be there once, in a file or (without a path) a table."""
    found = [at for at, held in enumerate(names) if held == name]
    if len(found) == 1:
        return found[0]
    what = f"column {name!r} is there {len(found)} times" if found else f"no column {name!r}"
    where, held = ("", "table") if path is None else (f"{path}: ", "file")
    raise InputError(f"{where}{what}: the {held} has {', '.join(map(str, names))}")


def choose_columns(
    given: Mapping[str, str | None], count: int, names: Sequence[str] | None, path: object
) -> dict[str, str]:
    """Names in a file of the columns that a model calls by the keys of `given`.

    Of the first `count` keys, those without a name go by the order of the file's columns, or by
    what the model calls them where no header tells (`names` is None). Of the other keys, only those
    with a name are taken.

    >>> given = {"user": None, "item": "what", "value": None}
    >>> choose_columns(given, 2, ["who", "when", "what"], "ratings.csv")
    {'user': 'who', 'item': 'what'}
    """
    own, found = list(given) if names is None else names, {}
    for place, (key, name) in enumerate(given.items()):
        if not name and place < count:
            if place >= len(own):
                told = f"{count} columns are needed, the file has {', '.join(own)}"
                raise InputError(f"{path}: {told}")
            name = own[place]
            if not name:
                raise InputError(f"{path}: column {place + 1}, of {key}, has no name")
        if not name:
            continue
        if names is not None:
            find_column(name, names, path)
        if name in found.values():
            raise InputError(f"{path}: column {name!r} is used twice")
        found[key] = name
    return found


def refuse_others(given: Mapping[str, str | None], keys: Sequence[str], what: str) -> None:
    """Refuse names of columns that a model, or models of a kind, have not."""
    for key, name in given.items():
        if name is not None and key not in keys:
            raise InputError(f"--{key}: the columns of this {what} are {', '.join(keys)}")


def shown(cell) -> str:
    """A cell as a message shows it."""
    try:
        text = ascii(cell)
    except (ValueError, RecursionError):  # a number of thousands of digits
        text = f"a {type(cell).__name__}"
    return text if len(text) <= _TOLD else text[:_TOLD] + "..."


def converted(cells, convert: Callable, found: np.ndarray) -> tuple[np.ndarray, list]:
    """Cells, one by one, into an array; and the rows that could not be, with the reasons."""
    bad = []
    for row, cell in enumerate(cells):
        try:
            found[row] = convert(cell)
        except ValueError as why:
            bad.append((row, str(why)))
    return found, bad


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
    """Numbers, collected a block of text at a time; with `times`, dates may stand for seconds."""

    def __init__(self, times: bool = False):
        self._blocks: list[np.ndarray] = []
        self._times, self._dates = times, False

    def add(self, texts: Sequence[str], table: Table, name: str, row: int) -> None:
        """Take the next rows, of which the first has this number in the table."""
        try:
            if self._dates or not plain_numbers("".join(texts)):
                raise ValueError
            self._blocks.append(np.fromiter(map(float, texts), np.float64, len(texts)))
        except ValueError:
            if not self._times or (self._blocks and not self._dates):
                raise _first_bad(texts, table, name, row) from None
            try:
                self._blocks.append(moments(np.array(texts, object)))
                self._dates = True
            except ValueError:
                raise _first_bad(texts, table, name, row, _moment) from None

    def joined(self, table: Table, name: str) -> np.ndarray:
        return np.concatenate(self._blocks) if self._blocks else np.zeros(0)


def plain_numbers(text: str) -> bool:
    """Whether numbers in a text are spelled as everybody does: `1_000` is none, nor are digits of
    other scripts, though Python takes them.

    >>> plain_numbers("-2.5e7"), plain_numbers("1_000"), plain_numbers("\uff11")
    (True, False, False)
    """
    return text.isascii() and "_" not in text


def _number(value) -> None:
    if isinstance(value, str) and not plain_numbers(value):
        raise ValueError(value)
    float(value)


def moments(times: np.ndarray) -> np.ndarray:
    """Times as numbers that sort: dates, and texts that are dates, in seconds since 1970 (UTC where
    they do not say); a date that is missing is NaN.

    >>> moments(np.array(["1970-01-02", "1970-01-02T01:00:00+01:00"], object))
    array([86400., 86400.])
    """
    if times.dtype.kind == "M":
        exact = times.astype("datetime64[us]").astype(np.float64) / 1e6
        return np.where(np.isnat(times), np.nan, exact)
    if times.dtype.kind in "OU" and len(times) and isinstance(times[0], str):
        return np.fromiter(map(_moment, times), np.float64, len(times))
    return times if times.dtype.kind in "iu" else real(times, "time")


def _moment(text: str) -> float:
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _first_bad(values, table: Table, name: str, start: int = 0, check=_number) -> InputError:
    for at, value in enumerate(values):
        try:
            check(value)
        except (TypeError, ValueError, OverflowError):
            what = "a number" if check is _number else "a number or a date, as 2026-11-16T10:00:00"
            why = f"{shown(value)} is not {what}" if value != "" else _NOTHING
            return table.refused(start + at, name, why)
    raise AssertionError("all of them are numbers")


def typed_numbers(values: np.ndarray, table: Table, name: str, times: bool = False) -> np.ndarray:
    """Numbers from a file that knows what numbers, dates and strings are."""
    if values.dtype.kind == "M" and len(values):
        if not times:
            raise table.refused(0, name, f"{values[0]} is a date, not a number")
        return moments(values)
    if times and values.dtype.kind in "OU":
        column = NumberColumn(times)
        column.add(list(map(str, values)), table, name, 0)
        return column.joined(table, name)
    try:
        return real(values)
    except (TypeError, ValueError):
        raise _first_bad(values, table, name) from None


def columns_of(table, names: Sequence[str]) -> list:
    """Columns of a data frame (pandas, polars, ...) or of a mapping of arrays, by name."""
    if not isinstance(table, Mapping):
        table = nw.from_native(table, eager_only=True)
        held, get = table.columns, lambda name: table[name].to_numpy()
    else:
        held, get = list(table), table.__getitem__
    for name in names:
        find_column(name, held)
    found = {name: get(name) for name in names}
    lengths = {name: len(column) for name, column in found.items() if hasattr(column, "__len__")}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ValueError(f"columns of different lengths do not pair up: {told}")
    return [found[name] for name in names]


def are_files(data) -> bool:
    """Whether data is given by the names of files.

    >>> are_files("events/*.parquet"), are_files([Path("a.parquet")]), are_files([[1.0]])
    (True, True, False)
    """
    several = data if isinstance(data, list | tuple) else [data]
    return bool(several) and all(isinstance(name, str | PathLike) for name in several)
