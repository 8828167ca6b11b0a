"""Parquet files."""

from __future__ import annotations

import hashlib
from collections import deque
from pathlib import Path

import numpy as np

from ...io.parquet import ParquetFile, cells, parquet_files
from ...io.tables import InputError
from ..sources import Batch, Feed, Stopped, never

_FOOTER = 4096  # bytes at the end of a file: where its row groups lie, and how many rows they have


class ParquetFeed(Feed):
    """Parquet files in the order of their names; batches reach from one into the next.

    A position tells which files were read to their end, so that one whose name comes before theirs
    is read as well, when it comes. Files are known by their names and their ends.
    """

    def __init__(self, pattern: str):
        path = Path(pattern)
        path = path / "*.parquet" if path.is_dir() else path
        super().__init__(str(path.parent.resolve() / path.name))
        self._files = [Path(file) for file in parquet_files(path)]
        self._file, self._row, self._parts = 0, 0, None
        self._left: deque = deque()  # (table, file, row) that a batch has not used up
        self._done: list[str] = []  # what files are known by that were read before, and
        self._prints: dict[Path, str] = {}  # those that were opened since
        self.names = list(ParquetFile(self._files[0]).names)

    def go_to(self, position: dict) -> None:
        now = {file.name: _print(file) for file in self._files}
        current, *done = (told.partition(" ")[2] for told in position["files"])
        if current not in now:
            raise InputError(f"{self.key}: {current}, read before, is gone: --restart begins anew")
        for told in position["files"]:
            name = told.partition(" ")[2]
            if now.get(name, told) != told:
                raise InputError(
                    f"{self.key}: {name} is not the file that was learned from before: give it "
                    "another name, or --restart to begin anew"
                )
        self._done = [now[name] for name in done if name in now]
        others = [file for file in self._files if file.name not in (current, *done)]
        self._files = [self._files[0].with_name(current), *others]
        self._file, self._row, self._prints = 0, position["row"], {self._files[0]: now[current]}

    def _position(self, file: int, row: int) -> dict:
        """Behind a row of a file: the file, and all that were read before it."""
        files = [self._prints[self._files[n]] for n in range(file, -1, -1)]
        return {"files": [*files, *self._done], "row": row}

    def read(self, count: int, stopped: Stopped = never) -> Batch:
        import pyarrow as pa

        while sum(len(table) for table, *_ in self._left) < count and self._more(count):
            pass
        taken, missing = [], count
        while missing and self._left:
            table, file, row = self._left.popleft()
            if len(table) > missing:
                self._left.appendleft((table.slice(missing), file, row + missing))
            taken.append((table.slice(0, missing), file, row))
            missing -= len(taken[-1][0])
        if not taken:
            rows = sum(ParquetFile(self._files[-1]).groups())
            after = self._position(len(self._files) - 1, rows)
            return Batch(0, [[] for _ in self.wanted], [], [], after, str)
        table, file, row = taken[-1]
        after = self._position(file, row + len(table))
        whole = pa.concat_tables([table for table, *_ in taken])
        starts = np.cumsum([0] + [len(table) for table, *_ in taken])

        def place(n: int) -> str:
            part = int(np.searchsorted(starts, n, "right")) - 1
            return f"{self._files[taken[part][1]]}, row {taken[part][2] + n - starts[part] + 1}"

        columns = [cells(whole[name].combine_chunks()) for name in self.wanted]
        return Batch(len(whole), columns, range(len(whole)), [], after, place)

    def _more(self, count: int) -> bool:
        """Read on; False when all files have been read."""
        import pyarrow as pa

        if self._file >= len(self._files):
            return False
        self._parts = self._parts or self._rest_of_file(count)
        part = next(self._parts, None)
        if part is None:
            self._parts, self._row, self._file = None, 0, self._file + 1
            return True
        self._left.append((pa.Table.from_batches([part]), self._file, self._row))
        self._row += len(part)
        return True

    def _rest_of_file(self, count: int):
        """Record batches from the present row on; row groups before it are not read."""
        source = ParquetFile(self._files[self._file])
        self._prints[source.path] = _print(source.path)
        for name in self.wanted:
            source.find(name)
        ends = np.cumsum([0, *source.groups()])
        first = int(np.searchsorted(ends, self._row, "right")) - 1
        before, groups = self._row - int(ends[first]), range(first, len(ends) - 1)
        with source.reading():
            for part in source.arrow.iter_batches(count, groups, self.wanted):
                if before < len(part):
                    yield part.slice(before)
                before = max(0, before - len(part))


def _print(path: Path) -> str:
    """What a file is known by: its size and its end, before its name."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - _FOOTER))
        end = hashlib.sha256(file.read()).hexdigest()
    return f"{size}:{end[:16]} {path.name}"
