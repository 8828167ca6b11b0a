"""Comma- and tab-separated values."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from .tables import Advance, IdColumn, InputError, NumberColumn, Source, Table, is_number

# Rows that exist as Python strings at a time, some 20 MB of them; the rest are arrays.
_BLOCK = 1 << 17

# Rows that exist as lists of fields at a time, which stay in the processor's cache.
_BATCH = 512


class TextFile(Source):
    """Values separated by commas or tabs, below a header.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.tsv")
    ...     _ = path.write_text("name\\tsize\\nash\\t2\\nelm\\t3\\n")
    ...     dict(TextFile(path).table(["name"], ["size"]))
    {'name': array(['ash', 'elm'], dtype=object), 'size': array([2., 3.])}
    """

    def __init__(self, path: Path):
        super().__init__(path)
        self._mark = "\t" if path.suffix.lower() == ".tsv" else ","
        found = (fields for batch in self._batches(1) for _, fields in batch if fields)
        self.names = next(found, [])
        if not self.names:
            raise InputError(f"{path}: the file is empty")

    def first(self, count: int) -> list[str]:
        names = super().first(count)
        for name in filter(is_number, names):
            raise InputError(f"{self.path}, line 1: {name!r} is a number: the header is missing")
        return names

    def table(self, ids, numbers, advance: Advance = lambda _: None) -> Table:
        wanted = {name: IdColumn() for name in ids} | {name: NumberColumn() for name in numbers}
        row, lines = 0, [(0, 2)]
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
        width, header = len(self.names), True
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
                why = f"{len(fields)} fields, but the header has {len(self.names)}"
                raise InputError(f"{self.path}, line {line}: {why}")
        return batch

    def _batches(
        self, size: int, advance: Advance = lambda _: None
    ) -> Iterator[list[tuple[int, list[str]]]]:
        """Lines with their numbers, some at a time."""
        try:
            with self.path.open(encoding="utf-8-sig", newline="") as file:
                reader = self._reader(self._lines(file, advance))
                while batch := [(reader.line_num, fields) for fields in islice(reader, size)]:
                    yield batch
        except csv.Error as why:
            raise self._malformed(why) from None
        except UnicodeDecodeError:
            raise self._undecodable() from None
        except OSError as why:
            raise self.broken(why.strerror) from None

    def _reader(self, lines):
        return csv.reader(lines, delimiter=self._mark, skipinitialspace=True, strict=True)

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
        with self.path.open(encoding="utf-8-sig", newline="") as file:
            reader = self._reader(file)
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
                    line.decode()
                except UnicodeDecodeError as why:
                    byte = f"byte {line[why.start]:#x}"
                    return InputError(f"{self.path}, line {number}: {byte} is not UTF-8")
        return self.broken("not UTF-8")
