"""Tables and matrices from files: text, Parquet, NumPy's .npz and Matrix Market.

>>> import pathlib, tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = pathlib.Path(folder, "ratings.csv")
...     _ = path.write_text("user,film,stars\\nann,7,4.5\\nbob,9,3\\n")
...     source = open_file(path)
...     table = source.table(ids=["user", "film"], numbers=["stars"])
>>> source.names, table["user"].tolist(), table["film"], table["stars"]
(['user', 'film', 'stars'], ['ann', 'bob'], array([7, 9]), array([4.5, 3. ]))
"""

from __future__ import annotations

import csv
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import compress, islice
from os import PathLike
from pathlib import Path
from zipfile import BadZipFile, is_zipfile

import numpy as np
import scipy.io
import scipy.sparse as sp

from .ids import IdColumn, typed_ids
from .parquet import ParquetFile
from .tables import Advance, InputError, NumberColumn, Source, Table, is_number, typed_numbers
from .text_format import ENDINGS, USUAL, TextFormat, find_separator, names_in, rows_of

# What NumPy and SciPy raise, between them, on archives that something has happened to.
_UNSOUND = (OSError, ValueError, LookupError, TypeError, AttributeError, BadZipFile, zlib.error)

# Rows that exist as Python strings at a time, some 20 MB of them; the rest are arrays.
_BLOCK = 1 << 17

# Rows that exist as lists of fields at a time, which stay in the processor's cache.
_BATCH = 512

_FIRST = 20  # lines that tell what separates fields


def open_file(path: str | PathLike, text: TextFormat = USUAL) -> Source:
    """The file, read as far as its header. Args: text, what is known of it if it is a text; a file
    of any ending is one whose separator is known."""
    path = Path(path)
    ending = path.suffix.lower()
    if ending not in _FORMATS and not text.separator:
        raise InputError(f"{path}: {path.suffix or 'no ending'!r} is not one of {_ENDINGS}")
    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise InputError(f"{path}: the file is empty")
    except OSError as why:
        raise InputError(f"{path}: cannot be read ({why.strerror})") from None
    make = _FORMATS.get(ending, TextFile)
    return TextFile(path, text) if make is TextFile else make(path)


class TextFile(Source):
    """Fields between separators, mostly below a header: see `text_format`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.tsv")
    ...     _ = path.write_text("name\\tsize\\nash\\t2\\nelm\\t3\\n")
    ...     dict(TextFile(path).table(["name"], ["size"]))
    {'name': array(['ash', 'elm'], dtype=object), 'size': array([2., 3.])}
    """

    def __init__(self, path: Path, text: TextFormat = USUAL):
        super().__init__(path)
        self._text, ending = text, path.suffix.lower()
        self._mark = text.separator or find_separator(self._beginning(), ENDINGS.get(ending))
        found = (fields for batch in self._batches(1) for _, fields in batch if fields)
        self.names, self._header = names_in(next(found, []), ending, text.header)
        if not self.names:
            raise InputError(f"{path}: the file is empty")

    def choose(self, given, count: int) -> dict[str, str]:
        by_order = [self._header and not name for name in given.values()][:count]
        for name in filter(is_number, compress(self.names, by_order)):
            told = f"{name!r} is a number: the header is missing (--no-header, if there is none)"
            raise InputError(f"{self.path}, line 1: {told}")
        return super().choose(given, count)

    def table(self, ids, numbers, advance: Advance = lambda _: None) -> Table:
        wanted = {name: IdColumn() for name in ids} | {name: NumberColumn() for name in numbers}
        row, lines = 0, [(0, 1 + self._header)]
        table = Table(self.path, {}, "line", lines)
        for at, *texts in self._blocks([self.find(name) for name in wanted], advance):
            offsets = np.array(at) - np.arange(row, row + len(at))
            jumps = np.flatnonzero(np.diff(offsets, prepend=lines[-1][1]))
            lines += [(row + int(jump), int(offsets[jump])) for jump in jumps]
            for (name, column), block in zip(wanted.items(), texts, strict=True):
                column.add(block, table, name, row)
            row += len(at)
        table.columns |= {name: column.joined(table, name) for name, column in wanted.items()}
        return table

    def _blocks(self, places: list[int], advance: Advance) -> Iterator[list[list]]:
        """Some rows at a time: the numbers of their lines, and the texts at these places."""
        block: list[list] = [[] for _ in range(len(places) + 1)]
        width, header = len(self.names), self._header
        for batch in self._batches(_BATCH, advance):
            if {len(fields) for _, fields in batch} != {width}:
                batch = self._even(batch)
            batch, header = batch[header:], header and not batch
            block[0] += [line for line, _ in batch]
            for texts, place in zip(block[1:], places, strict=True):
                texts += [fields[place] for _, fields in batch]
            if len(block[0]) >= _BLOCK:
                yield block
                block = [[] for _ in block]
        if block[0]:
            yield block

    def _even(self, batch: list[tuple[int, list[str]]]) -> list[tuple[int, list[str]]]:
        """The lines that are not blank, all as long as the header."""
        batch = [(line, fields) for line, fields in batch if fields]
        for line, fields in batch:
            if len(fields) != len(self.names):
                where = "header" if self._header else "first line"
                why = f"{len(fields)} fields, but the {where} has {len(self.names)}"
                raise InputError(f"{self.path}, line {line}: {why}")
        return batch

    def _batches(
        self, size: int, advance: Advance = lambda _: None
    ) -> Iterator[list[tuple[int, list[str]]]]:
        """Lines with their numbers, some at a time."""
        with self._opened() as file:
            reader = rows_of(self._lines(file, advance), self._mark)
            while batch := [(reader.line_num, fields) for fields in islice(reader, size)]:
                yield batch

    def _beginning(self) -> list[str]:
        """The first lines that are not blank."""
        with self._opened() as file:
            lines = (line.rstrip("\r\n") for line in self._lines(file, lambda _: None))
            return list(islice(filter(str.strip, lines), _FIRST))

    @contextmanager
    def _opened(self):
        """The file as text. What goes wrong in it is told with its place."""
        try:
            with self.path.open(encoding=self._text.skips_mark, newline="") as file:
                yield file
        except csv.Error as why:
            raise self._malformed(why) from None
        except UnicodeError:
            raise self._undecodable() from None
        except OSError as why:
            raise self.broken(why.strerror) from None

    def _lines(self, file, advance: Advance) -> Iterator[str]:
        done = 0
        for number, line in enumerate(file, 1):
            if "\0" in line:
                raise InputError(f"{self.path}, line {number}: a NUL byte: not a text file")
            if number % _BLOCK == 0:
                advance(file.buffer.tell() - done)
                done = file.buffer.tell()
            yield line
        advance(file.buffer.tell() - done)

    # Lines are read and decoded many at a time: only a second look finds the one at fault.

    def _malformed(self, why: csv.Error) -> InputError:
        last = 0
        with self.path.open(encoding=self._text.skips_mark, newline="") as file:
            reader = rows_of(iter(file), self._mark)
            try:
                for _ in reader:
                    last = reader.line_num
            except csv.Error:
                pass
        return InputError(f"{self.path}, line {last + 1}: not a table ({why})")

    def _undecodable(self) -> InputError:
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    line.decode(self._text.encoding)
                except UnicodeDecodeError as why:
                    told = self._text.not_text(line, why.start)
                    return InputError(f"{self.path}, line {number}: {told}")
        return self.broken(f"not {self._text.encoding}")


class ArrayFile(Source):
    """.npz: a sparse matrix of scipy's, columns of one length, or full matrices by name."""

    def __init__(self, path: Path):
        super().__init__(path)
        if not is_zipfile(path):
            raise self.broken("not an archive of arrays")
        try:
            self._arrays = np.load(path, allow_pickle=False)
            self._sparse = "format" in self._arrays
            self._held = {} if self._sparse else {name: self._arrays[name] for name in self._arrays}
        except _UNSOUND as why:
            raise self.broken(why) from None
        if self._held and all(array.ndim == 1 for array in self._held.values()):
            self.names = list(self._held)

    def table(self, ids, numbers, advance: Advance = lambda _: None) -> Table:
        if not self.names:
            return super().table(ids, numbers)
        table = Table(self.path, {})
        for name in (*ids, *numbers):
            self.find(name)
            clean = typed_ids if name in ids else typed_numbers
            table.columns[name] = clean(self._held[name], table, name)
        lengths = {name: len(values) for name, values in table.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise InputError(f"{self.path}: columns of different lengths: {told}")
        return table

    def matrix(self, name: str | None = None):
        if self.names:
            return super().matrix()
        if self._sparse:
            try:
                found = sp.load_npz(self.path)
                if hasattr(found, "check_format"):  # wrong pointers crash SciPy's conversions
                    found.check_format(full_check=True)
                return found
            except _UNSOUND as why:
                raise self.broken(why) from None
        if name is None and len(self._held) == 1:
            name = next(iter(self._held))
        if name not in self._held:
            what = "name one of its arrays" if name is None else f"no array {name!r}"
            raise InputError(f"{self.path}: {what}: it has {', '.join(self._held) or 'none'}")
        return self._held[name]


class MarketFile(Source):
    """Matrix Market."""

    def matrix(self, name: str | None = None):
        try:
            found = scipy.io.mmread(self.path)
        except (OSError, ValueError, OverflowError, StopIteration) as why:
            raise self.broken(why) from None
        if np.iscomplexobj(found):
            raise InputError(f"{self.path}: the entries are complex numbers")
        return found


_FORMATS: dict[str, type[Source]] = {
    **dict.fromkeys(ENDINGS, TextFile),
    ".parquet": ParquetFile,
    ".npz": ArrayFile,
    ".mtx": MarketFile,
}
_ENDINGS = ", ".join(_FORMATS)
